"""A shell in a sandbox: commands and files of one environment, for frameworks that bring their own agents.

The environment is a worker session. Commands run in forks of it, several at a time; files are read and written by the
worker itself, so that what its code cannot reach, a path cannot reach either.
"""

import asyncio
import base64
import contextlib
import dataclasses
import errno
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from standfast.base.errors import Closed
from standfast.lifecycle.scope import run_to_end
from standfast.workers.config import SandboxPolicy, SessionConfig
from standfast.workers.errors import WorkerDied, WorkerError
from standfast.workers.results import ExecutionResult
from standfast.workers.session import WorkerSession

SHELL_POLICY = SandboxPolicy(disk_mb=256, processes=128, readable=("/usr",))
"""The policy of shells: programs of ``/usr``, no network, 256 MB for files."""

MAX_FILE_BYTES = 256 << 20
"""The largest file that :meth:`WorkerShell.read` returns."""

T = TypeVar("T")
_CHUNK_SIZE = 512 << 10
_RUN = """
def run(argv, environment, directory):
    import os, subprocess, sys
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, **environment}, cwd=directory)
    except FileNotFoundError as problem:
        if not os.path.isdir(directory):
            raise
        sys.stderr.write(f"{argv[0]}: not found\\n")
        return 127
    except PermissionError:
        sys.stderr.write(f"{argv[0]}: permission denied\\n")
        return 126
    code = process.wait()
    return code if code >= 0 else 128 - code
"""
_FILES = """
def operate(name, *arguments):
    import os, shutil, stat
    def open_regular(path, flags):
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            kind = IsADirectoryError if stat.S_ISDIR(os.fstat(fd).st_mode) else OSError
            os.close(fd)
            raise kind(21 if kind is IsADirectoryError else 22, "it is not a regular file", path)
        return fd
    def read(path, offset, size):
        with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size)
    def write(path, data, is_first):
        if is_first:
            make(os.path.dirname(path), is_parent=True)
        fd = open_regular(path, os.O_WRONLY | (os.O_CREAT | os.O_TRUNC if is_first else os.O_APPEND))
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view):]
    def status(path):
        found = os.stat(path)
        return [stat.S_ISDIR(found.st_mode), found.st_size if stat.S_ISREG(found.st_mode) else None]
    def list_directory(path):
        return [[entry, entry_status(os.path.join(path, entry))] for entry in sorted(os.listdir(path))]
    def entry_status(path):
        try:
            return status(path)
        except OSError:
            return [False, None]
    def remove(path):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
    def make(path, is_parent=False):
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            if not is_parent and os.path.isdir(os.path.dirname(path)):
                raise
            raise NotADirectoryError(20, "Not a directory", path) from None
    table = {"read": read, "write": write, "status": status, "list": list_directory, "remove": remove, "make": make,
             "exists": os.path.exists, "realpath": os.path.realpath}
    try:
        return ["ok", table[name](*arguments)]
    except OSError as problem:
        return ["error", problem.errno or 5, problem.strerror or str(problem)]
"""


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed, and its exit code: 127 if there is no such program, 128 and the signal if one ended it.

    ``is_complete`` is False if it printed more than is kept.
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    is_complete: bool = True


@dataclass(frozen=True)
class PathStatus:
    """A file or directory; a symbolic link is what it refers to. ``size`` is None for all but regular files."""

    path: str
    is_directory: bool
    size: int | None = None


class WorkerShell:
    """``async with WorkerShell() as shell: await shell.run(["ls", "-l"])``

    Raises WorkerDied or Closed when the environment is gone; errors of paths are those of the system, as OSError.
    """

    def __init__(self, config: SessionConfig | None = None) -> None:
        config = config or SessionConfig(sandbox=SHELL_POLICY)
        self.session = WorkerSession(dataclasses.replace(config, default_execute_timeout=None))
        self._forks: set[WorkerSession] = set()

    async def __aenter__(self) -> "WorkerShell":
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the worker. ``async with`` does it."""
        await self.session.start()
        result = await self.session.run(_RUN + _FILES)
        if result.error is not None:
            raise WorkerError(f"the shell did not start: {result.error.exception_message}")

    async def close(self) -> None:
        """End the environment with everything in it. Commands that run raise WorkerDied."""
        await asyncio.gather(*(session.terminate() for session in (self.session, *self._forks)))

    @property
    def directory(self) -> str:
        """The directory in which commands start, as they see it."""
        resources = self.session._worker.resources
        if resources is None:
            raise Closed("the shell has ended")
        return self.session.config.workdir or f"{resources.sandbox.directory}/work"

    @property
    def temporary_directory(self) -> str:
        """A directory beside that of the shell, for files that do not belong to it."""
        resources = self.session._worker.resources
        if resources is None:
            raise Closed("the shell has ended")
        return posixpath.join(resources.sandbox.directory, "tmp")

    async def run(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        """Run a program with its arguments, or a line for ``sh``, with no input, and wait for its end.

        Processes that it leaves in the background keep running. A timeout, and cancelling the call, ends it and what it
        has started.
        """
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        code = f"run({argv!r}, {dict(environment or {})!r}, {directory or self.directory!r})"
        async with self._fork() as fork:
            result = await fork.run(code, timeout=timeout, allow_input=False)
            _raise_if_lost(self.session, fork, result)
        if result.timed_out:
            return CommandOutput(-1, result.stdout, result.stderr, timed_out=True, is_complete=not result.dropped)
        if result.error is not None:
            raise WorkerError(f"the command was not run: {result.error.exception_message}")
        return CommandOutput(result.value, result.stdout, result.stderr, is_complete=not result.dropped)

    @contextlib.asynccontextmanager
    async def _fork(self) -> AsyncIterator[WorkerSession]:
        fork = await self.session.fork()
        self._forks.add(fork)
        try:
            yield fork
        finally:
            self._forks.discard(fork)
            # Ends code that still runs, and what it has started, before the worker of the fork.
            await run_to_end(fork.shutdown(), grace=None)

    # -- files, by absolute paths inside the sandbox

    async def read(self, path: str, *, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raises OSError (EFBIG) when it has more than ``limit`` bytes."""
        content = bytearray()
        while True:
            part = await self._operate("read", path, len(content), _CHUNK_SIZE, kind=bytes)
            content += part
            # Counted here: files in /proc have no size, and code in the shell may have replaced what reads them.
            if len(content) > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit} bytes", path)
            if len(part) != _CHUNK_SIZE:
                return bytes(content)

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, and create its missing parent directories. Writes through symbolic links."""
        for start in range(0, max(1, len(data)), _CHUNK_SIZE):
            await self._operate("write", path, data[start : start + _CHUNK_SIZE], start == 0, kind=type(None))

    async def status(self, path: str) -> PathStatus:
        """Return kind, size and times of a file or directory."""
        return PathStatus(path, *await self._operate("status", path, kind=tuple[bool, int | None]))

    async def list_directory(self, path: str) -> tuple[PathStatus, ...]:
        """Return the entries of a directory."""
        entries = await self._operate("list", path, kind=tuple[tuple[str, tuple[bool, int | None]], ...])
        return tuple(PathStatus(posixpath.join(path, name), *status) for name, status in entries)

    async def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        await self._operate("make", path, kind=type(None))

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its content. Raises ValueError for the shell's own directory."""
        own, target = self.directory, posixpath.normpath(path)
        if own == target or own.startswith(target.rstrip("/") + "/"):
            raise ValueError(f"{path!r} contains the directory of the shell")
        await self._operate("remove", path, kind=type(None))

    async def exists(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        return await self._operate("exists", path, kind=bool)

    async def resolve(self, path: str) -> str:
        """Return the path without symbolic links; what does not exist stays as it is."""
        return await self._operate("realpath", path, kind=str)

    async def _operate(self, name: str, *arguments: object, kind: type[T]) -> T:
        literals = ", ".join(_write_literal(argument) for argument in arguments)
        result = await self.session.run(f"operate({name!r}, {literals})", timeout=None, allow_input=False)
        _raise_if_lost(self.session, self.session, result)
        if result.error is not None:
            raise WorkerError(f"the file operation failed: {result.error.exception_message}")
        if result.value is None:
            raise OSError(
                errno.EIO, "the answer is too large, or names something by bytes that are no text", arguments[0]
            )
        try:
            answer = msgspec.convert(result.value, _Answer)
            if answer.status == "error":
                raise OSError(msgspec.convert(answer.value, int), answer.message, arguments[0])
            return msgspec.convert(answer.value, kind, builtin_types=(bytes,))
        except msgspec.ValidationError as problem:
            raise WorkerError(f"the file operation was answered by other code: {problem}") from None


class _Answer(msgspec.Struct, array_like=True):
    """What ``operate`` returns: a value, or a number and a message. Commands can replace that function."""

    status: Literal["ok", "error"]
    value: Any
    message: str = ""


def _write_literal(value: object) -> str:
    if isinstance(value, bytes):
        return f"__import__('base64').b64decode({base64.b64encode(value).decode()!r})"
    return repr(value)


def _raise_if_lost(session: WorkerSession, fork: WorkerSession, result: ExecutionResult) -> None:
    if result.state == "lost":
        cause = fork.info.cause or session.info.cause
        if cause is not None:
            raise WorkerDied(cause)
        raise Closed("the shell has ended")
