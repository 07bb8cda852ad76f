"""Gathering the messages of one execution into a result."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from standfast.workers.errors import Cause, ExecutionTimeout
from standfast.workers.state import SessionState
from standfast.workers.wire import messages as m
from standfast.workers.wire.messages import DisplayMessage, ErrorMessage, ExecutionUsage

if TYPE_CHECKING:
    from standfast.workers._host.executions import ExecutionMixin

NamespaceState = Literal["preserved", "lost"]


class ExecutionResult(msgspec.Struct, frozen=True):
    """Everything one execution produced.

    ``error`` is None when the code ran to its end. ``state`` says whether the session's variables are still
    there, from the worker's own word; ``reason`` why not.
    """

    execution_id: str
    value: Any = None
    repr: str = ""
    data: dict[str, Any] = {}
    stdout: str = ""
    stderr: str = ""
    dropped: dict[str, int] = {}
    displays: tuple[DisplayMessage, ...] = ()
    error: ErrorMessage | None = None
    timed_out: bool = False
    usage: ExecutionUsage = ExecutionUsage()
    execution_time: float = 0.0
    rolled_back: bool = False
    state: NamespaceState = "preserved"
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class InterruptResult:
    """How an interrupt or a cancel went. ``stopped`` is False when nothing was running."""

    stopped: bool
    state: NamespaceState
    reason: str = ""

    def __bool__(self) -> bool:
        return self.state == "preserved"


@dataclass(frozen=True)
class SnapshotPoint:
    """A place to go back to, within the life of this worker."""

    id: str
    hazards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A namespace as bytes. Only a worker can read them; the host never does."""

    data: bytes
    name: str = ""
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    function_count: int = 0
    class_count: int = 0


@dataclass(frozen=True)
class RestoreResult:
    """What a checkpoint brought back."""

    kept: tuple[str, ...]
    lost: dict[str, str]


@dataclass(frozen=True)
class WorkerUsage:
    """Memory by the kernel's fair accounting (PSS), private bytes, processor seconds: of all processes."""

    pss: int = 0
    private: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0


@dataclass(frozen=True)
class SessionInfo:
    """A session at one moment."""

    session_id: str
    state: SessionState
    created_at: float
    last_used_at: float
    execution_count: int = 0
    error_count: int = 0
    memory_usage: int = 0
    cpu_percent: float = 0.0
    namespace_size: int = 0
    last_heartbeat_at: float | None = None
    cause: Cause | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    telemetry: dict[str, Any] = field(default_factory=dict)


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
