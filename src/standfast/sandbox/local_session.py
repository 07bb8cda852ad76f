"""Sandboxes on this machine: a workspace in a worker process with the full sandbox, without network.

The workspace lies in the worker's own memory-backed file system. Of the host's files, it shows only what commands need
below ``/usr`` and what the manifest grants.
"""

import asyncio
import dataclasses
import importlib.resources
import io
import itertools
import shlex
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from standfast.base.errors import Closed, InvalidInput, NotFound
from standfast.sandbox.errors import (
    ConfigurationError,
    ExecTimeoutError,
    ExecTransportError,
    PtySessionNotFoundError,
    UnsupportedAccountError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from standfast.sandbox.manifest import Environment
from standfast.sandbox.output import truncate_output
from standfast.sandbox.sessions import BaseSandboxSession, SandboxSessionState
from standfast.sandbox.types import EntryKind, ExecResult, FileEntry, Permissions, PtyExecUpdate, User
from standfast.workers.config import SandboxPolicy, SessionConfig
from standfast.workers.errors import ExecutionTimeout, WorkerError
from standfast.workers.session import WorkerSession
from standfast.workers.shell import SHELL_POLICY

ROOT = "/session/work"
PTY_PROCESSES_MAX = 64
MAX_OUTPUT = 16 << 20
_ARCHIVE_PIECE = ".standfast-archive-piece"
_PIECE_BYTES = 1 << 20
_MAX_ARCHIVE_BYTES = 1 << 31
_SPOOLED_BYTES = 16 << 20
_POLL_SECONDS = 0.25
_CALL_SECONDS = 300.0
_PROBLEM = str | None
_KINDS = {0o100000: EntryKind.FILE, 0o040000: EntryKind.DIRECTORY, 0o120000: EntryKind.SYMLINK}


class UnixLocalSandboxSessionState(SandboxSessionState):
    """The state of a local sandbox; its files are in the snapshot."""

    type: Literal["unix_local"] = "unix_local"
    workspace_root_owned: bool = True


class UnixLocalSandboxSession(BaseSandboxSession):
    """A workspace in a worker process. See :class:`BaseSandboxSession`."""

    state: UnixLocalSandboxSessionState

    def __init__(self, *, state: UnixLocalSandboxSessionState, policy: SandboxPolicy | None = None) -> None:
        super().__init__()
        self.state = state
        self._policy = policy or SHELL_POLICY
        self._worker: WorkerSession | None = None
        self._resolved: Environment | None = None
        self._variables: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._running: set[int] = set()
        self.host_environment: dict[str, str] = {}

    @classmethod
    def from_state(cls, state: UnixLocalSandboxSessionState) -> "UnixLocalSandboxSession":
        """Return a session with this state, which is not started."""
        return cls(state=state)

    # --- life cycle -------------------------------------------------------------------------------

    async def _launch(self) -> None:
        manifest = self.state.manifest
        if manifest.users or manifest.groups:
            self.check_user((manifest.users or manifest.groups[0].users or [User(name=manifest.groups[0].name)])[0])
        await self._resolve_environment()
        grants = manifest.extra_path_grants
        if mapped := [grant.path for grant in grants if grant.host_path not in (None, grant.path)]:
            raise ConfigurationError(f"a local sandbox has granted paths where they are on the host: {mapped[0]}")
        policy = dataclasses.replace(
            self._policy,
            terminals=True,
            readable=(*self._policy.readable, *(grant.path for grant in grants if grant.read_only)),
            writable=(*self._policy.writable, *(grant.path for grant in grants if not grant.read_only)),
        )
        config = SessionConfig(sandbox=policy, default_execute_timeout=None, value_limit=4 << 20, allow_input=False)
        self._worker = WorkerSession(config)
        try:
            await self._worker.start()
            source = importlib.resources.files("standfast.sandbox").joinpath("worker_commands.py").read_text()
            result = await self._worker.run(source)
            if result.error is not None:
                raise WorkspaceStartError(path=Path(ROOT), message=f"the sandbox cannot run commands: {result.error}")
        except WorkerError as problem:
            raise WorkspaceStartError(path=Path(ROOT), message=str(problem), cause=problem) from problem

    async def running(self) -> bool:
        return self._worker is not None and self._worker.is_alive

    async def shutdown(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.terminate()

    async def _call(self, function: str, *arguments: Any, kind: Any = None) -> Any:
        """Call a function of ``worker_commands`` in the worker, and return its value, which is of this type.

        Commands can replace the function: one that does not answer in time, or with another type, ends the sandbox.
        """
        if self._worker is None:
            raise Closed("this sandbox is not running: enter it with 'async with', or call start()")
        code = f"{function}({', '.join(map(repr, arguments))})"
        result = await self._worker.run(code, timeout=_CALL_SECONDS)
        if result.error is not None:
            raise Closed(f"the sandbox can no longer be used: {result.error}")
        try:
            return msgspec.convert(result.value, kind, builtin_types=(bytes,))
        except msgspec.ValidationError as problem:
            raise Closed(f"the sandbox can no longer be used: {function} returned something else: {problem}") from None

    def check_user(self, user: str | User | None) -> None:
        if user is not None:
            name = user.name if isinstance(user, User) else user
            raise UnsupportedAccountError(
                f"a local sandbox has one account, so nothing can run as {name!r}: leave it out"
            )

    # --- commands ---------------------------------------------------------------------------------

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        self.check_user(user)
        number = await self._start(command, shell=shell, cwd=ROOT, tty=False, merged=False)
        outputs = [bytearray(), bytearray()]
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        code: int | None = None
        try:
            close_input = True
            while code is None:
                left = _POLL_SECONDS if deadline is None else deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    raise ExecTimeoutError(command=command, timeout_s=timeout)
                new, code, _ = await self._poll(number, command, min(left, _POLL_SECONDS), close_input=close_input)
                close_input = False
                for kept, data in zip(outputs, new, strict=True):
                    kept += data[: MAX_OUTPUT - len(kept)]
        finally:
            if code is None:
                await self._kill(number)
        return ExecResult(stdout=bytes(outputs[0]), stderr=bytes(outputs[1]), exit_code=code)

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
        cwd: str = ROOT,
    ) -> PtyExecUpdate:
        self.check_user(user)
        if len(self._running) >= PTY_PROCESSES_MAX:
            raise ExecTransportError(
                command=command, message=f"{PTY_PROCESSES_MAX} commands are already running: end some of them first"
            )
        number = await self._start(command, shell=shell, cwd=cwd, tty=tty, merged=True)
        self._running.add(number)
        return await self._watch(number, command, b"", yield_time_s, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        if session_id not in self._running:
            raise PtySessionNotFoundError(session_id=session_id)
        return await self._watch(session_id, (), chars.encode(), yield_time_s, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        numbers, self._running = sorted(self._running), set()
        if numbers and await self.running():
            await self._call("kill", numbers)

    async def _resolve_environment(self) -> dict[str, str]:
        """Return the variables of the manifest, which are resolved once unless others are added to it."""
        environment = self.state.manifest.environment
        if self._resolved is not environment:
            self._variables, self._resolved = await environment.resolve(), environment
        return self._variables

    async def _start(
        self, command: tuple[str | Path, ...], *, shell: bool | list[str], cwd: str, tty: bool, merged: bool
    ) -> int:
        arguments = make_arguments(command, shell)
        number = next(self._numbers)
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "HOME": "/session/home",
            "TMPDIR": "/session/tmp",
            "LANG": "C.UTF-8",
            "TERM": "xterm" if tty else "dumb",
            **self.host_environment,
            **await self._resolve_environment(),
        }
        try:
            problem = await self._call("start", number, arguments, cwd, environment, tty, merged, kind=_PROBLEM)
        except (WorkerError, Closed) as error:
            raise ExecTransportError(command=command, cause=error) from error
        if problem is not None:
            raise ExecTransportError(command=command, message=f"the command cannot be started: {problem}")
        return number

    async def _poll(
        self, number: int, command: tuple[str | Path, ...], seconds: float, *, written: bytes = b"", close_input: bool
    ) -> tuple[list[bytes], int | None, int]:
        kind = tuple[tuple[bytes, ...], int | None, int] | None
        try:
            found = await self._call("poll", number, seconds, written, close_input, kind=kind)
        except (WorkerError, Closed, ExecutionTimeout) as error:
            self._running.discard(number)
            raise ExecTransportError(command=command, cause=error) from error
        if found is None:
            raise PtySessionNotFoundError(session_id=number)
        outputs, code, taken = found
        return [*outputs, b"", b""][:2], code, max(0, taken)

    async def _kill(self, number: int) -> None:
        self._running.discard(number)
        if await self.running():
            await self._call("kill", [number])

    async def _watch(
        self, number: int, command: tuple[str | Path, ...], written: bytes, seconds: float | None, tokens: int | None
    ) -> PtyExecUpdate:
        """Return the output of a running command until it ends or ``seconds`` have passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (10.0 if seconds is None else seconds)
        output, code = bytearray(), None
        while True:
            left = max(0.0, deadline - loop.time())
            (new, _), code, taken = await self._poll(
                number, command, min(left, _POLL_SECONDS), written=written[:4096], close_input=False
            )
            output += new[: MAX_OUTPUT - len(output)]
            written = written[taken:]
            if code is not None or (left <= 0 and not written):
                break
            if left <= 0 and not taken:
                message = f"the command does not read its input: {len(written)} bytes were not written"
                raise ExecTransportError(command=command, message=message)
        if code is not None:
            self._running.discard(number)
        text, count = truncate_output(bytes(output), tokens)
        return PtyExecUpdate(None if code is not None else number, text, code, count)

    # --- files ------------------------------------------------------------------------------------

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        self.check_user(user)
        absolute = self.normalize_path(path)
        if not absolute.is_relative_to(ROOT):
            return await self._read_granted(path, absolute)
        relative = absolute.relative_to(ROOT)
        try:
            return io.BytesIO(await self._get_worker().files.read(relative.as_posix()))
        except NotFound as problem:
            raise WorkspaceReadNotFoundError(path=path, cause=problem) from None
        except InvalidInput as problem:
            raise WorkspaceArchiveReadError(path=path, message=str(problem), op="read", cause=problem) from problem

    async def _read_granted(self, path: Path, absolute: Path) -> io.IOBase:
        result = await self.exec("cat", "--", str(absolute), shell=False)
        if result.exit_code:
            raise WorkspaceReadNotFoundError(path=path, context={"stderr": result.stderr.decode(errors="replace")})
        return io.BytesIO(result.stdout)

    async def _write_bytes(self, path: PurePosixPath, data: bytes) -> None:
        try:
            await self._get_worker().files.write(str(path), data)
        except InvalidInput as problem:
            raise WorkspaceArchiveWriteError(path=path, message=str(problem), op="write", cause=problem) from problem

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        self.check_user(user)
        kind = list[tuple[str, int, int, int, int]] | str
        found = await self._call("list_directory", str(self.normalize_path(path)), kind=kind)
        if isinstance(found, str):
            raise WorkspaceReadNotFoundError(path=path, context={"reason": found})
        return [
            FileEntry(
                path=name,
                permissions=Permissions.from_mode(mode),
                owner=str(uid),
                group=str(gid),
                size=size,
                kind=_KINDS.get(mode & 0o170000, EntryKind.OTHER),
            )
            for name, mode, uid, gid, size in found
        ]

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Create a directory."""
        self.check_user(user)
        await self._change(path, "make_directory", str(self.normalize_path(path, for_write=True)), parents)

    async def mv(self, source: Path | str, destination: Path | str, *, user: str | User | None = None) -> None:
        """Move a file or a directory."""
        self.check_user(user)
        paths = (self.normalize_path(path, for_write=True) for path in (source, destination))
        await self._change(source, "move", *map(str, paths))

    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Remove a file or, with ``recursive``, a directory."""
        self.check_user(user)
        await self._change(path, "remove", str(self.normalize_path(path, for_write=True)), recursive)

    async def _change(self, path: Path | str, function: str, *arguments: Any) -> None:
        problem = await self._call(function, *arguments, kind=_PROBLEM)
        if problem is not None:
            raise WorkspaceArchiveWriteError(path=path, message=f"{path}: {problem}", op="write")

    async def persist_workspace(self) -> io.IOBase:
        await self._call("pack", ROOT, self.get_skipped_paths())
        # On the disk, since files with holes or many names are larger than the workspace.
        archive: Any = tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES)  # noqa: SIM115 - the caller closes it
        try:
            while True:
                data, problem = await self._call("read_archive", _PIECE_BYTES, kind=tuple[bytes, _PROBLEM])
                if problem is None and archive.tell() > _MAX_ARCHIVE_BYTES:
                    problem = f"it has more than {_MAX_ARCHIVE_BYTES} bytes"
                if problem is not None:
                    raise WorkspaceArchiveReadError(path=ROOT, message=f"the workspace cannot be archived: {problem}")
                if not data:
                    break
                archive.write(data)
            archive.seek(0)
        except BaseException:
            archive.close()
            raise
        archive_file: io.IOBase = archive
        return archive_file

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        await self._call("unpack", ROOT)
        while piece := await asyncio.to_thread(data.read, _PIECE_BYTES):
            await self._write_bytes(PurePosixPath(_ARCHIVE_PIECE), piece)
            await self._call("write_archive", f"{ROOT}/{_ARCHIVE_PIECE}", kind=_PROBLEM)
        problem = await self._call("write_archive", None, kind=_PROBLEM)
        if problem is not None:
            raise WorkspaceArchiveWriteError(path=ROOT, message=f"the archive cannot be extracted: {problem}")

    def _get_worker(self) -> WorkerSession:
        if self._worker is None:
            raise Closed("this sandbox is not running: enter it with 'async with', or call start()")
        return self._worker


def make_arguments(command: tuple[str | Path, ...], shell: bool | list[str]) -> list[str]:
    """Return the words of a command; with ``shell`` as a command line of a login shell, or of the given one."""
    words = [str(word) for word in command]
    if not words or any("\0" in word for word in words):
        raise ExecTransportError(command=command, message="a command needs at least one word, without NUL characters")
    if shell is False:
        return words
    line = words[0] if len(words) == 1 else shlex.join(words)
    return [*(["sh", "-lc"] if shell is True else shell), line]
