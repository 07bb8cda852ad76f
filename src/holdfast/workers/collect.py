"""Gathering the messages of one execution into a result."""

from typing import TYPE_CHECKING, Any

from holdfast.workers.errors import ExecutionTimeout
from holdfast.workers.result import ExecutionResult
from holdfast.workers.wire import messages as m

if TYPE_CHECKING:
    from holdfast.workers.executing import Executing


async def collect(session: "Executing", message: m.ExecuteMessage, timeout: float | None) -> ExecutionResult:
    """Run and gather. A timeout is a result too: what was printed until then is in it."""
    text: dict[str, list[str]] = {"stdout": [], "stderr": []}
    dropped: dict[str, int] = {}
    displays: list[m.DisplayMessage] = []
    last: m.Message | None = None
    late: ExecutionTimeout | None = None
    running = await session.open(message, timeout)
    try:
        while (item := await running.outlet.get()) is not None:
            last = item
            if isinstance(item, m.OutputMessage):
                if item.dropped:
                    dropped[item.stream] = dropped.get(item.stream, 0) + item.dropped
                    text[item.stream].append(f"\n... {item.dropped} bytes left out ...\n")
                text[item.stream].append(item.data)
            elif isinstance(item, m.DisplayMessage):
                displays.append(item)
    except TimeoutError:
        late = await session.overrun(running)
    finally:
        session.leave(running)
    gathered: dict[str, Any] = {
        "execution_id": message.id,
        "stdout": "".join(text["stdout"]),
        "stderr": "".join(text["stderr"]),
        "dropped": dropped,
        "displays": tuple(displays),
    }
    if late is not None:
        error = m.ErrorMessage(exception_type="ExecutionTimeout", exception_message=str(late), execution_id=message.id)
        return ExecutionResult(
            **gathered, error=error, timed_out=True, state="lost" if late.state == "lost" else "preserved",
            reason=str(late),
        )  # fmt: skip
    if isinstance(last, m.ResultMessage):
        return ExecutionResult(
            **gathered, value=last.value, repr=last.repr, data=last.data, usage=last.usage,
            execution_time=last.execution_time, rolled_back=last.rolled_back,
        )  # fmt: skip
    assert isinstance(last, m.ErrorMessage)  # noqa: S101 - a stream ends in one of the two
    return ExecutionResult(
        **gathered, error=last, usage=last.usage, execution_time=last.execution_time,
        rolled_back=last.rolled_back, state=last.state,
        reason=last.exception_message if last.state == "lost" else "",
    )  # fmt: skip
