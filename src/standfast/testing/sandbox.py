"""A sandbox session that answers by a script, for tests of agents and capabilities."""

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from standfast.agents.types import maybe_await
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.sessions import BaseSandboxSession, SandboxSessionState
from standfast.sandbox.snapshot import NoopSnapshot
from standfast.sandbox.types import ExecResult, FileEntry, PtyExecUpdate, User

SandboxStepReason: TypeAlias = Literal["invalid_input", "unsupported_field", "unsupported_method", "missing_outcome"]
METHODS = (
    "exec", "read", "write", "ls", "mkdir", "mv", "rm", "persist_workspace", "hydrate_workspace", "pty_exec_start",
    "pty_write_stdin",
)  # fmt: skip
_OUTCOMES = ("result", "error", "responder")


class SandboxScriptError(Exception):
    """A script does not fit what was done with the session."""


class InvalidSandboxStep(SandboxScriptError):
    """A step is malformed."""

    def __init__(self, message: str, *, reason: SandboxStepReason, input_index: int, method: str | None) -> None:
        super().__init__(message)
        self.reason, self.input_index, self.method = reason, input_index, method


@dataclass(frozen=True)
class SandboxCall:
    """A call of a method of the session."""

    call_index: int
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class UnexpectedSandboxCall(SandboxScriptError):
    """The next step of the script is for another method, or the script has ended."""

    def __init__(
        self, message: str, *, call: SandboxCall, call_index: int, expected_method: str | None, remaining_steps: int
    ) -> None:
        super().__init__(message)
        self.call, self.call_index = call, call_index
        self.expected_method, self.remaining_steps = expected_method, remaining_steps


class SandboxCallMatcherError(SandboxScriptError):
    """The ``match`` of a step refused the call."""

    def __init__(self, message: str, *, call: SandboxCall, call_index: int) -> None:
        super().__init__(message)
        self.call, self.call_index = call, call_index


class UnconsumedSandboxSteps(SandboxScriptError):
    """Steps of the script were not used."""

    def __init__(self, message: str, *, remaining_steps: int, pending_methods: tuple[str, ...]) -> None:
        super().__init__(message)
        self.remaining_steps, self.pending_methods = remaining_steps, pending_methods


class SandboxStepSpec(TypedDict):
    """One step: the method, and its result, its error, or a function of the call that gives the result."""

    method: str
    result: NotRequired[Any]
    error: NotRequired[BaseException]
    responder: NotRequired[Callable[[SandboxCall], Any]]
    match: NotRequired[Callable[[SandboxCall], bool]]


class _ScriptedState(SandboxSessionState):
    type: Literal["scripted"] = "scripted"


class ScriptedSandboxSession(BaseSandboxSession):
    """A session whose methods take the steps of a script one after the other. Starting it runs nothing."""

    def __init__(self, steps: list[dict[str, Any]], manifest: Manifest) -> None:
        super().__init__()
        self.state = _ScriptedState(snapshot=NoopSnapshot(id="scripted"), manifest=manifest)
        self._steps, self._calls, self._running = steps, list[SandboxCall](), False

    @property
    def calls(self) -> tuple[SandboxCall, ...]:
        """The calls so far."""
        return tuple(self._calls)

    @property
    def remaining_steps(self) -> int:
        """How many steps of the script are left."""
        return len(self._steps)

    def assert_complete(self) -> None:
        """Raise if steps of the script are left."""
        if self._steps:
            methods = tuple(step["method"] for step in self._steps)
            raise UnconsumedSandboxSteps(
                f"{len(methods)} steps of the script were not used: {', '.join(methods)}",
                remaining_steps=len(methods),
                pending_methods=methods,
            )

    async def _take(self, method: str, *args: Any, **kwargs: Any) -> Any:
        call = SandboxCall(len(self._calls), method, args, MappingProxyType(kwargs))
        self._calls.append(call)
        expected = self._steps[0]["method"] if self._steps else None
        if expected != method:
            raise UnexpectedSandboxCall(
                f"the script expects {expected or 'no further call'}, not {method}",
                call=call,
                call_index=call.call_index,
                expected_method=expected,
                remaining_steps=len(self._steps),
            )
        step = self._steps.pop(0)
        if "match" in step and not step["match"](call):
            raise SandboxCallMatcherError(
                f"the step for {method} does not match its call", call=call, call_index=call.call_index
            )
        if "error" in step:
            raise step["error"]
        return await maybe_await(step["responder"](call)) if "responder" in step else step.get("result")

    # --- the session ------------------------------------------------------------------------------

    async def start(self) -> None:
        self._running = True

    async def _launch(self) -> None:
        self._running = True

    async def stop(self) -> None:
        return

    async def running(self) -> bool:
        return self._running

    async def shutdown(self) -> None:
        self._running = False

    def supports_pty(self) -> bool:
        return any(step["method"].startswith("pty_") for step in self._steps) or any(
            call.method.startswith("pty_") for call in self._calls
        )

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        result: ExecResult = await self._take("exec", *command, timeout=timeout, shell=shell, user=user)
        return result

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        result: io.IOBase = await self._take("read", path, user=user)
        return result

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._take("write", path, data, user=user)

    async def _write_bytes(self, path: PurePosixPath, data: bytes) -> None:
        await self._take("write", Path(path), io.BytesIO(data), user=None)

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        result: list[FileEntry] = await self._take("ls", path, user=user)
        return result

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Create a directory."""
        await self._take("mkdir", path, parents=parents, user=user)

    async def mv(self, source: Path | str, destination: Path | str, *, user: str | User | None = None) -> None:
        """Move a file or a directory."""
        await self._take("mv", source, destination, user=user)

    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Remove a file or, with ``recursive``, a directory."""
        await self._take("rm", path, recursive=recursive, user=user)

    async def persist_workspace(self) -> io.IOBase:
        result: io.IOBase = await self._take("persist_workspace")
        return result

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        await self._take("hydrate_workspace", data)

    async def pty_exec_start(self, *command: str | Path, **options: Any) -> PtyExecUpdate:
        result: PtyExecUpdate = await self._take("pty_exec_start", *command, **options)
        return result

    async def pty_write_stdin(self, **options: Any) -> PtyExecUpdate:
        result: PtyExecUpdate = await self._take("pty_write_stdin", **options)
        return result


def scripted_sandbox_session(
    steps: Iterable[SandboxStepSpec | Mapping[str, Any]] = (), *, manifest: Manifest | None = None
) -> ScriptedSandboxSession:
    """Return a session that answers by a script: a step for each call that is expected, in their order."""
    return ScriptedSandboxSession([_check_step(step, at) for at, step in enumerate(steps)], manifest or Manifest())


def _check_step(step: Any, index: int) -> dict[str, Any]:
    def make_error(reason: SandboxStepReason, problem: str, method: str | None = None) -> InvalidSandboxStep:
        return InvalidSandboxStep(f"step {index + 1} {problem}", reason=reason, input_index=index, method=method)

    if not isinstance(step, Mapping):
        raise make_error("invalid_input", f"must be a dict, not {type(step).__name__}")
    method = step.get("method")
    if method not in METHODS:
        raise make_error("unsupported_method", f"has no known method: {method!r}", method)
    if unknown := set(step) - {"method", "match", *_OUTCOMES}:
        raise make_error("unsupported_field", f"has unknown fields: {', '.join(sorted(unknown))}", method)
    if sum(name in step for name in _OUTCOMES) > 1:
        raise make_error("missing_outcome", "must have one of result, error and responder", method)
    return dict(step)
