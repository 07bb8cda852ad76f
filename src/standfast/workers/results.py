"""Gathering the messages of one execution into a result."""

from typing import TYPE_CHECKING

from holdfast.workers.errors import ExecutionTimeout
from holdfast.workers.result import ExecutionResult
from holdfast.workers.wire import messages as m

if TYPE_CHECKING:
    from holdfast.workers.executing import ExecutionMixin

_FINAL_TYPES = (m.ResultMessage, m.ErrorMessage)


async def collect_result(
    session: "ExecutionMixin", message: m.ExecuteMessage, timeout: float | None
) -> ExecutionResult:
    """Run and gather. A timeout is a result too: what was printed until then is in it."""
    output: list[m.OutputMessage] = []
    displays: list[m.DisplayMessage] = []
    last: m.ResultMessage | m.ErrorMessage | None = None
    late: ExecutionTimeout | None = None
    running = await session.open_execution(message, timeout)
    outlet = running.queue
    try:
        while (item := outlet.get_nowait() or await outlet.get()) is not None:
            # What every execution has is tried first: that a struct is not of a kind takes long to find out.
            if isinstance(item, m.AckMessage):
                continue
            if isinstance(item, _FINAL_TYPES):
                last = item
                break
            if isinstance(item, m.OutputMessage):
                output.append(item)
            elif isinstance(item, m.DisplayMessage):
                displays.append(item)
    except TimeoutError:
        late = await session.finish_timed_out(running)
    finally:
        session.close_execution(running)
    stdout, stderr, dropped = _join_output(output) if output else ("", "", {})
    shown = tuple(displays)
    if late is not None:
        error = m.ErrorMessage(exception_type="ExecutionTimeout", exception_message=str(late), execution_id=message.id)
        return ExecutionResult(
            execution_id=message.id, stdout=stdout, stderr=stderr, dropped=dropped, displays=shown, error=error,
            timed_out=True, state="lost" if late.state == "lost" else "preserved", reason=str(late),
        )  # fmt: skip
    if isinstance(last, m.ResultMessage):
        return ExecutionResult(
            execution_id=message.id, stdout=stdout, stderr=stderr, dropped=dropped, displays=shown,
            value=last.value, repr=last.repr, data=last.data, usage=last.usage,
            execution_time=last.execution_time, rolled_back=last.rolled_back,
        )  # fmt: skip
    assert last is not None  # noqa: S101 - a stream ends in one of the two
    return ExecutionResult(
        execution_id=message.id, stdout=stdout, stderr=stderr, dropped=dropped, displays=shown,
        error=last, usage=last.usage, execution_time=last.execution_time,
        rolled_back=last.rolled_back, state=last.state,
        reason=last.exception_message if last.state == "lost" else "",
    )  # fmt: skip


def _join_output(output: list[m.OutputMessage]) -> tuple[str, str, dict[str, int]]:
    """What reached stdout and stderr, and how many bytes of each were left out."""
    text: dict[str, list[str]] = {"stdout": [], "stderr": []}
    dropped: dict[str, int] = {}
    for item in output:
        if item.dropped:
            dropped[item.stream] = dropped.get(item.stream, 0) + item.dropped
            text[item.stream].append(f"\n... {item.dropped} bytes left out ...\n")
        text[item.stream].append(item.data)
    return "".join(text["stdout"]), "".join(text["stderr"]), dropped
