"""What the methods of a session return: built from the messages of an execution, and shown as text to a model."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from standfast.workers._host.output import StreamName, estimate_size
from standfast.workers.errors import Cause, ExecutionTimeout
from standfast.workers.state import SessionState
from standfast.workers.wire import messages as m
from standfast.workers.wire.messages import (
    OMITTED_MIME_TYPE,
    DisplayMessage,
    ErrorMessage,
    ExecutionUsage,
    NamespaceState,
)

_IMAGE_TYPES = ("image/png", "image/jpeg")
_CARRY_OVER_NOTES = {
    "variables": "",
    "files": "[this is a new Python session: the variables of earlier calls are gone, their files are still there]",
    "nothing": "[this is a new Python session: variables and files of earlier calls are gone]",
}


class ExecutionResult(msgspec.Struct, frozen=True):
    """Everything one execution produced, within the limits of the session.

    ``dropped`` says what is missing: the number of bytes of ``stdout`` and ``stderr``, and of ``displays``.
    ``error`` is None when the code ran to its end. ``state`` says whether the session still has its variables, and
    ``reason`` why it has not.
    """

    execution_id: str
    """The id of the execution."""
    value: Any = None
    """The value of the last expression, if it is plain data within ``value_limit``."""
    repr: str = ""
    """The ``repr`` of that value, within ``repr_limit``."""
    data: dict[str, Any] = {}
    """Representations of that value by media type, such as ``image/png``."""
    stdout: str = ""
    """What the code wrote to standard output."""
    stderr: str = ""
    """What the code wrote to standard error."""
    dropped: dict[str, int] = {}
    """What is missing, and how much of it."""
    displays: tuple[DisplayMessage, ...] = ()
    """What the code displayed."""
    error: ErrorMessage | None = None
    """The error that ended the code."""
    timed_out: bool = False
    """Whether the code was stopped by its timeout."""
    usage: ExecutionUsage = ExecutionUsage()
    """Processor time and peak memory of the execution."""
    execution_time: float = 0.0
    """Seconds from the start of the code to its end."""
    rolled_back: bool = False
    """Whether the transaction of the execution was rolled back, so that the variables are those of before."""
    state: NamespaceState = "preserved"
    """Whether the variables survived: ``preserved``, or ``lost``."""
    reason: str = ""
    """Why the variables are lost."""

    @property
    def ok(self) -> bool:
        """Whether the code ended without an error."""
        return self.error is None


@dataclass(frozen=True)
class InterruptResult:
    """The outcome of an interrupt or a cancel. It is true when the variables survived.

    ``stopped`` is False when no execution was running.
    """

    stopped: bool
    state: NamespaceState
    reason: str = ""

    def __bool__(self) -> bool:
        return self.state == "preserved"


@dataclass(frozen=True)
class SnapshotPoint:
    """A snapshot of a worker, which ends with the worker. ``hazards`` lists what was not copied."""

    id: str
    hazards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A namespace as bytes, which only a worker unpickles, never the host.

    ``kept`` are the saved names; ``lost`` has the reason for each name that could not be saved.
    """

    data: bytes
    name: str = ""
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    function_count: int = 0
    class_count: int = 0


@dataclass(frozen=True)
class RestoreResult:
    """The names that a checkpoint restored, and the reason for each that it could not."""

    kept: tuple[str, ...]
    lost: dict[str, str]


@dataclass(frozen=True)
class WorkspaceReport:
    """What a workspace restored, and the reason for each variable and file that it could not.

    ``lost`` includes what was not in the workspace, because it could not be captured.
    """

    kept: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    lost_files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerUsage:
    """Resources of all processes of a worker: proportional set size (PSS) and private memory in bytes, CPU seconds.

    ``memory`` is what the memory limit counts: the PSS, the whole size of shared anonymous memory and of memory files,
    and page tables. ``cpu_seconds`` includes processes that have exited and were waited for.
    """

    pss: int = 0
    private: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0
    memory: int = 0


@dataclass(frozen=True)
class SessionInfo:
    """The state of a session at one moment. Memory, CPU and namespace size are those of the last heartbeat."""

    session_id: str
    """The id of the session."""
    state: SessionState
    """The state of its worker."""
    created_at: float
    """When its worker was created, in seconds since 1970."""
    last_used_at: float
    """When code last ran in it, in seconds since 1970."""
    execution_count: int = 0
    """The number of executions so far."""
    error_count: int = 0
    """The number of executions that ended with an error."""
    memory_usage: int = 0
    """Bytes of memory of the worker's processes."""
    cpu_percent: float = 0.0
    """Processor use as of the last heartbeat, in percent."""
    namespace_size: int = 0
    """The number of variables."""
    last_heartbeat_at: float | None = None
    """When the worker last answered, in seconds since 1970."""
    cause: Cause | None = None
    """How the worker ended, if it has."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Facts about the worker, such as ``sandbox`` and ``sandbox_notes``."""
    metrics: dict[str, int] = field(default_factory=dict)
    """Counters of the session."""
    telemetry: dict[str, Any] = field(default_factory=dict)
    """Counters of the messages between host and worker."""


class EncodedImage(NamedTuple):
    mime: str
    base64: str


def as_text(
    result: ExecutionResult,
    *,
    carried_over: str = "variables",
    limit: int = 20_000,
    notes: Sequence[str] = (),
    is_kept: bool = False,
) -> str:
    """Return a result as text for a model: output, displays and value or traceback, and whether variables were lost.

    ``carried_over`` says what the code still had of earlier calls: ``variables``, ``files`` or ``nothing``. A text over
    the limit keeps its head and its tail. ``notes`` come first. With ``is_kept`` the state before code that lost the
    worker is restored with the next call.
    """
    parts = [*notes, _CARRY_OVER_NOTES[carried_over], result.stdout]
    if result.stderr:
        parts.append(f"[stderr]\n{result.stderr}")
    parts += [_format_mime_bundle(item.data) for item in result.displays]
    if "displays" in result.dropped:
        parts.append(f"[{result.dropped['displays']} displays left out]")
    if result.repr:
        parts.append(_format_mime_bundle({**result.data, "text/plain": result.repr}))
    text = "\n".join(part.rstrip("\n") for part in (*parts, *_format_problems(result, is_kept=is_kept)) if part)
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"
    return text or "[no output]"


def extract_images(result: ExecutionResult) -> list[EncodedImage]:
    """Return the images among the displays, in order, and that of the last value."""
    bundles = [*(item.data for item in result.displays), result.data]
    return [EncodedImage(mime, text) for data in bundles for mime, text in _find_images(data)]


def _find_images(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for mime in _IMAGE_TYPES:
        content = data.get(mime)
        if isinstance(content, bytes):
            yield mime, base64.b64encode(content).decode()
            return
        if isinstance(content, str):  # already encoded, as notebooks have it
            yield mime, content.strip()
            return


def _format_mime_bundle(data: dict[str, Any]) -> str:
    text = str(data.get("text/markdown") or data.get("text/plain") or "")
    notes = [f"[{mime}]" for mime, _ in _find_images(data)]
    omitted = data.get(OMITTED_MIME_TYPE)
    if isinstance(omitted, dict):
        notes += [f"[{mime} left out: {size} bytes are too many]" for mime, size in omitted.items()]
    return "\n".join([text, *notes] if text else notes)


def _format_problems(result: ExecutionResult, *, is_kept: bool) -> Iterator[str]:
    error = result.error
    if result.timed_out:
        variables = "; the variables are still there" if result.state == "preserved" else ""
        yield f"[stopped: the code took too long{variables}]"
    elif error is not None and result.state == "preserved":
        yield error.traceback or f"{error.exception_type}: {error.exception_message}"
    if result.state == "lost" and is_kept:
        yield f"[the Python session was lost ({result.reason}): variables and files are those from before this call]"
    elif result.state == "lost":
        yield f"[the Python session was lost ({result.reason}): all variables are gone]"


class ResultCollector:
    """Keeps what an execution produced. Output is limited before it arrives here; displays are limited here."""

    def __init__(self, execution_id: str, *, display_limit: int) -> None:
        self._execution_id, self._display_limit = execution_id, display_limit
        self._texts: dict[StreamName, io.StringIO] = {}
        self._displays: list[m.DisplayMessage] = []
        self._display_bytes = 0
        self._dropped: dict[str, int] = {}

    def add(self, message: m.Message, size: int | None = None) -> None:
        """Add an output or display message, of this estimated size if it is known; others are ignored."""
        if isinstance(message, m.OutputMessage):
            self._add_output(message)
        elif isinstance(message, m.DisplayMessage):
            self._add_display(message, estimate_size(message) if size is None else size)

    def _add_output(self, message: m.OutputMessage) -> None:
        # One text instead of a list of messages: a worker may write each character by itself.
        text = self._texts.get(message.stream)
        if text is None:
            text = self._texts[message.stream] = io.StringIO()
        if message.dropped:
            self._dropped[message.stream] = self._dropped.get(message.stream, 0) + message.dropped
            text.write(f"\n... {message.dropped} bytes left out ...\n")
        text.write(message.data)

    def _add_display(self, message: m.DisplayMessage, size: int) -> None:
        if "displays" not in self._dropped:
            self._display_bytes += size
            if self._display_bytes <= self._display_limit:
                self._displays.append(message)
                return
        self._dropped["displays"] = self._dropped.get("displays", 0) + 1

    def build(self, last: m.ResultMessage | m.ErrorMessage) -> ExecutionResult:
        """Return the result of an execution that ended with the message ``last``."""
        if isinstance(last, m.ResultMessage):
            result = ExecutionResult(
                execution_id=self._execution_id, value=last.value, repr=last.repr, data=last.data, usage=last.usage,
                execution_time=last.execution_time, rolled_back=last.rolled_back,
            )  # fmt: skip
        else:
            result = ExecutionResult(
                execution_id=self._execution_id, error=last, usage=last.usage, execution_time=last.execution_time,
                rolled_back=last.rolled_back, state=last.state,
                reason=last.exception_message if last.state == "lost" else "",
            )  # fmt: skip
        return self._add_to(result)

    def build_timed_out(self, problem: ExecutionTimeout) -> ExecutionResult:
        """Return the result of an execution that was stopped at its deadline."""
        error = m.ErrorMessage(
            exception_type="ExecutionTimeout", exception_message=str(problem), execution_id=self._execution_id
        )
        state: m.NamespaceState = "lost" if problem.state == "lost" else "preserved"
        return self._add_to(
            ExecutionResult(self._execution_id, error=error, timed_out=True, state=state, reason=str(problem))
        )

    def _add_to(self, result: ExecutionResult) -> ExecutionResult:
        if not self._texts and not self._displays and not self._dropped:
            return result
        texts = {stream: text.getvalue() for stream, text in self._texts.items()}
        return msgspec.structs.replace(result, dropped=self._dropped, displays=tuple(self._displays), **texts)
