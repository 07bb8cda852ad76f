"""The host's side of a fork-server: started by exec, ordered about over a socket, shared by reference."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from holdfast.workers.config import MB, SessionConfig
from holdfast.workers.errors import SandboxUnavailable, StartFailed
from holdfast.workers.line import Line
from holdfast.workers.wire.frames import Oversize
from holdfast.workers.wire.orders import (
    LEVELS,
    ONE_THREAD,
    Forked,
    ForkOrder,
    FromServer,
    Jail,
    Level,
    ServeOrder,
    ServerDown,
    ServerUp,
    pack,
)

_decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from holdfast.workers.child.server import main; "
    "sys.path.pop(0); main(int(sys.argv[2]))"
)
_ENVIRONMENT = {"LANG": "C.UTF-8", "MPLBACKEND": "agg", **ONE_THREAD}
_START_TIMEOUT = 30.0


def writable_of(config: SessionConfig) -> tuple[str, ...]:
    return (*config.sandbox.writable, *((config.workdir,) if config.workdir else ()))


def jail_of(config: SessionConfig, level: Level) -> Jail:
    """The policy in the child's terms, at one level."""
    policy = config.sandbox
    network = policy.network if isinstance(policy.network, str) else "proxy"
    return Jail(
        level=level,
        readable=policy.readable,
        writable=writable_of(config),
        network=network,
        memory=policy.memory_mb * MB if policy.memory_mb else None,
        cpu_seconds=policy.cpu_seconds,
        processes=policy.processes,
        open_files=policy.open_files,
        file_size=policy.disk_mb * MB,
        disk=policy.disk_mb * MB,
        uid=policy.run_as if os.geteuid() == 0 else None,
    )


@dataclass(frozen=True)
class Offspring:
    """A keeper just forked: its pid in the server's eyes and a descriptor for it, where there are such."""

    pid: int
    pidfd: int | None

    def disown(self) -> None:
        """Let go of it. A keeper that nobody speaks to ends by itself."""
        if self.pidfd is not None:
            os.close(self.pidfd)


class ForkServer:
    """One fork-server process. ``open`` starts it and waits until it is up; leaving ends it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self._first: asyncio.Future[ServerUp] = asyncio.get_running_loop().create_future()
        self._orders: dict[int, asyncio.Future[Offspring]] = {}
        self._number = 0
        self._line = Line(sock, heard=self._heard, gone=self._gone, descriptors=True)

    @classmethod
    @asynccontextmanager
    async def open(cls, config: SessionConfig, level: Level) -> AsyncIterator["ForkServer"]:
        ours, theirs = socket.socketpair()
        try:
            process = _execute(config.python, theirs)
        except StartFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        server = cls(process, ours)
        order = ServeOrder(
            jail=jail_of(config, level),
            preload=config.preload if config.mode == "fork" else (),
            import_path=config.import_path,
            host_pid=os.getpid(),
        )
        try:
            server._line.send(pack(order))
            async with asyncio.timeout(_START_TIMEOUT):
                await asyncio.shield(server._first)
            yield server
        except TimeoutError as late:
            raise StartFailed(f"the fork-server was not up within {_START_TIMEOUT} s") from late
        finally:
            await server._close()

    @property
    def up(self) -> ServerUp:
        """What the server said when it was up."""
        return self._first.result()

    @property
    def alive(self) -> bool:
        return not self._line.closed

    async def fork(self, order: ForkOrder, fds: tuple[int, ...]) -> Offspring:
        """Fork one keeper. The caller keeps its own copies of the descriptors."""
        if not self.alive:
            raise StartFailed("the fork-server is gone")
        self._number += 1
        number = self._number
        answer: asyncio.Future[Offspring] = asyncio.get_running_loop().create_future()
        self._orders[number] = answer
        self._line.send(pack(msgspec.structs.replace(order, id=number)), fds)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the very turn in which the caller was cancelled.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().disown()
            raise
        finally:
            self._orders.pop(number, None)

    def _heard(self, payload: bytes | Oversize) -> None:
        if isinstance(payload, Oversize):
            return
        try:
            word = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._line.close()
            self._gone()
            return
        if isinstance(word, ServerUp):
            if not self._first.done():
                self._first.set_result(word)
        elif isinstance(word, ServerDown):
            if not self._first.done():
                self._first.set_exception(StartFailed(word.error))
        else:
            self._forked(word)

    def _forked(self, word: Forked) -> None:
        fds = self._line.take_fds()
        pidfd = fds.pop(0) if fds else None
        answer = self._orders.get(word.id)
        if answer is None or answer.done():
            Offspring(word.pid, pidfd).disown()
        elif word.error:
            answer.set_exception(StartFailed(word.error))
        else:
            answer.set_result(Offspring(word.pid, pidfd))

    def _gone(self) -> None:
        problem = StartFailed("the fork-server ended")
        if not self._first.done():
            self._first.set_exception(problem)
        for waiting in self._orders.values():
            if not waiting.done():
                waiting.set_exception(problem)
        if not self._first.cancelled():
            # Mark as seen: nobody may be waiting any more.
            self._first.exception()

    async def _close(self) -> None:
        self._line.close()
        self._gone()
        with contextlib.suppress(OSError):
            self.process.kill()
        # Killed, so this is a matter of a moment; a watcher would be one more thing to own.
        while self.process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def _execute(python: str, sock: socket.socket) -> subprocess.Popen[bytes]:
    # The package's own location, so that a worker runs the same holdfast as its host.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = [python, "-I", "-X", "utf8", "-c", _START, package, str(sock.fileno())]
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and code
            command, pass_fds=(sock.fileno(),), stdin=subprocess.DEVNULL, env=dict(_ENVIRONMENT), cwd="/",
            start_new_session=True,
        )  # fmt: skip
    except OSError as problem:
        raise StartFailed(f"cannot start {python}: {problem}") from problem


def levels_to_try(config: SessionConfig) -> tuple[Level, ...]:
    """From the strongest the policy uses to the weakest it accepts, as this platform may have them."""
    policy = config.sandbox
    most, least = LEVELS.index(policy.level), LEVELS.index(policy.require)
    possible: tuple[Level, ...] = tuple(reversed(LEVELS[least : most + 1]))
    if not sys.platform.startswith("linux"):
        possible = tuple(level for level in possible if level == "plain")
        if not possible:
            raise SandboxUnavailable(policy.require, "plain", "only Linux has these")
    return possible


def _check_paths(config: SessionConfig) -> None:
    """A path that is not there is a slip for which no level is to blame: a weaker one would only hide it."""
    for access, paths in (("readable", config.sandbox.readable), ("writable", writable_of(config))):
        for path in paths:
            if not os.path.isabs(path) or not os.path.exists(path):
                raise StartFailed(f"{path!r} is to be {access} in the worker, but there is no such absolute path")


@asynccontextmanager
async def best_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """A fork-server at the strongest level that can be had. Raises SandboxUnavailable when none is enough."""
    _check_paths(config)
    reasons: list[str] = []
    for level in levels_to_try(config):
        async with contextlib.AsyncExitStack() as owned:
            try:
                server = await owned.enter_async_context(ForkServer.open(config, level))
            except StartFailed as problem:
                reasons.append(f"{level}: {problem}")
                continue
            yield server
            return
    if config.sandbox.require == "plain":
        raise StartFailed("; ".join(reasons))
    raise SandboxUnavailable(config.sandbox.require, "plain", "; ".join(reasons))
