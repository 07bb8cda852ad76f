"""The host's side of a fork server: a process that is started by exec, forks workers on command, and is shared.

Sessions with the same configuration share one server. After its last user it is kept for a while (``idle_servers``).
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from standfast.workers._host.frame_socket import FrameSocket
from standfast.workers._host.idle_servers import IdleServer, add_idle_server, take_idle_server
from standfast.workers._host.sandbox_levels import (
    LevelUnavailable,
    build_sandbox_spec,
    check_paths,
    describe_remedies,
    get_writable_paths,
    list_candidate_levels,
    warn_of_weaker_level,
)
from standfast.workers.config import SessionConfig
from standfast.workers.errors import SandboxUnavailable, StartFailed
from standfast.workers.wire.control import (
    SINGLE_THREAD_ENVIRONMENT,
    ForkCommand,
    ForkReply,
    IdleCommand,
    SandboxLevel,
    ServerMessage,
    ServerReady,
    ServerStartFailed,
    StartServerCommand,
    encode_control,
)
from standfast.workers.wire.frames import OversizedFrame

_decoder: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from standfast.workers.child.forkserver import main; "
    "sys.path.pop(0); main(int(sys.argv[2]))"
)
_ENVIRONMENT = {"LANG": "C.UTF-8", "MPLBACKEND": "agg", **SINGLE_THREAD_ENVIRONMENT}
_START_TIMEOUT = 30.0
# An idle server that does not answer in this time is replaced. On a busy machine that can be a mistake.
_WAKE_TIMEOUT = 5.0


ServerKey = tuple[Any, ...]


@dataclass(frozen=True)
class ForkedSupervisor:
    """A supervisor that was just forked: its pid as the server sees it, and a pidfd where the system has them."""

    pid: int
    pidfd: int | None

    def close(self) -> None:
        """Close the pidfd. A supervisor without a connection to the host exits."""
        if self.pidfd is not None:
            os.close(self.pidfd)


class ForkServer:
    """One fork server process. ``open`` starts it and waits until it is ready; leaving the block ends it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self._is_retired = self._is_parked = False
        self._ready: asyncio.Future[ServerReady] = asyncio.get_running_loop().create_future()
        self._pending_forks: dict[int, asyncio.Future[ForkedSupervisor]] = {}
        self._last_id = 0
        self._frame_socket = FrameSocket(
            sock, on_frame=self._on_frame, on_disconnect=self._on_disconnect, accept_fds=True
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, config: SessionConfig, level: SandboxLevel) -> AsyncIterator["ForkServer"]:
        ours, theirs = socket.socketpair()
        try:
            process = _spawn_process(config.python, theirs)
        except StartFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        server = cls(process, ours)
        command = StartServerCommand(
            sandbox=build_sandbox_spec(config, level),
            preload=config.preload if config.mode == "fork" else (),
            import_path=config.import_path,
            host_pid=os.getpid(),
        )
        try:
            server._frame_socket.send(encode_control(command))
            async with asyncio.timeout(_START_TIMEOUT):
                await asyncio.shield(server._ready)
            yield server
        except TimeoutError as problem:
            raise StartFailed(f"the fork server was not ready within {_START_TIMEOUT} s") from problem
        finally:
            await server._close()

    @classmethod
    @asynccontextmanager
    async def reopen(cls, idle: IdleServer) -> AsyncIterator["ForkServer"]:
        """Use a server again that was parked, in this loop. Raises StartFailed if it is gone."""
        server = cls(idle.process, idle.sock)
        try:
            server._frame_socket.send(encode_control(IdleCommand()))
            try:
                async with asyncio.timeout(_WAKE_TIMEOUT):
                    await asyncio.shield(server._ready)
            except TimeoutError as problem:
                raise StartFailed("the idle fork server does not answer") from problem
            yield server
        finally:
            await server._close()

    def park(self, seconds: float) -> IdleServer:
        """Release the process without ending it. It exits by itself after this time."""
        self._frame_socket.send(encode_control(IdleCommand(seconds=seconds)))
        self._is_parked = True
        return IdleServer(self.process, self._frame_socket.detach())

    @property
    def ready_message(self) -> ServerReady:
        """The message with which the server reported that it is ready."""
        return self._ready.result()

    @property
    def is_alive(self) -> bool:
        return not self._frame_socket.closed

    @property
    def accepts_sessions(self) -> bool:
        """Whether new sessions may use it: it is alive and was not retired."""
        return self.is_alive and not self._is_retired

    @property
    def is_quiet(self) -> bool:
        """Whether it can be parked: new sessions may use it, and no reply is awaited."""
        return self.accepts_sessions and not self._pending_forks

    def retire(self) -> None:
        """Let new sessions use another server, since a worker of this one failed to start. Its workers continue."""
        self._is_retired = True

    async def fork(self, fds: tuple[int, ...]) -> ForkedSupervisor:
        """Fork one supervisor. The server gets copies of the descriptors; the caller closes its own."""
        if not self.is_alive:
            raise StartFailed("the fork server has ended")
        self._last_id += 1
        fork_id = self._last_id
        reply: asyncio.Future[ForkedSupervisor] = asyncio.get_running_loop().create_future()
        self._pending_forks[fork_id] = reply
        self._frame_socket.send(encode_control(ForkCommand(id=fork_id)), fds)
        try:
            return await reply
        except asyncio.CancelledError:
            # The reply may have arrived in the same iteration of the loop as the cancellation.
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                reply.result().close()
            raise
        finally:
            self._pending_forks.pop(fork_id, None)

    def _on_frame(self, payload: bytes | OversizedFrame) -> None:
        if isinstance(payload, OversizedFrame):
            return
        try:
            message = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._frame_socket.close()
            self._on_disconnect()
            return
        if isinstance(message, ServerReady):
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, ServerStartFailed):
            if not self._ready.done():
                kind = StartFailed if message.sandboxed else LevelUnavailable
                self._ready.set_exception(kind(message.error))
        else:
            self._on_fork_reply(message)

    def _on_fork_reply(self, reply: ForkReply) -> None:
        fds = self._frame_socket.take_fds()
        pidfd = fds.pop(0) if fds else None
        future = self._pending_forks.get(reply.id)
        if future is None or future.done():
            ForkedSupervisor(reply.pid, pidfd).close()
        elif reply.error:
            future.set_exception(StartFailed(reply.error))
        else:
            future.set_result(ForkedSupervisor(reply.pid, pidfd))

    def _on_disconnect(self) -> None:
        problem = StartFailed("the fork server ended")
        if not self._ready.done():
            self._ready.set_exception(problem)
        for future in self._pending_forks.values():
            if not future.done():
                future.set_exception(problem)
        if not self._ready.cancelled():
            # Mark the exception as retrieved, since the future may have no waiter.
            self._ready.exception()

    async def _close(self) -> None:
        self._frame_socket.close()
        self._on_disconnect()
        if self._is_parked:
            return
        with contextlib.suppress(OSError):
            self.process.kill()
        # The process was killed and exits within milliseconds, so polling is enough.
        while self.process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def _spawn_process(python: str, sock: socket.socket) -> subprocess.Popen[bytes]:
    # The worker imports the same standfast as its host, whatever its interpreter has installed.
    import_root = str(Path(__file__).resolve().parents[3])
    command = [python, "-I", "-X", "utf8", "-c", _BOOTSTRAP, import_root, str(sock.fileno())]
    try:
        return subprocess.Popen(  # noqa: S603 - the configured interpreter and our code
            command, pass_fds=(sock.fileno(),), stdin=subprocess.DEVNULL, env=dict(_ENVIRONMENT), cwd="/",
            start_new_session=True,
        )  # fmt: skip
    except OSError as problem:
        raise StartFailed(f"cannot start the interpreter {python}: {problem}") from problem


@asynccontextmanager
async def open_best_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """Start a fork server at the strongest available level. Raises SandboxUnavailable when that is too weak."""
    check_paths(config)
    reasons: list[str] = []
    for level in list_candidate_levels(config):
        async with contextlib.AsyncExitStack() as stack:
            try:
                server = await stack.enter_async_context(ForkServer.open(config, level))
            except LevelUnavailable as problem:
                reasons.append(f"{level}: {problem}")
                continue
            warn_of_weaker_level(config, level, reasons)
            yield server
            return
    if config.sandbox.weakest_level == "plain":
        raise StartFailed("; ".join(reasons))
    reasons.append(describe_remedies(config.sandbox.weakest_level))
    raise SandboxUnavailable(config.sandbox.weakest_level, "plain", "; ".join(reasons))


@asynccontextmanager
async def _open_server(config: SessionConfig, key: ServerKey) -> AsyncIterator[ForkServer]:
    """Use the idle server for this configuration, or start one."""
    check_paths(config)
    idle = take_idle_server(key)
    server: ForkServer | None = None
    async with contextlib.AsyncExitStack() as stack:
        if idle is not None:
            with contextlib.suppress(StartFailed):
                server = await stack.enter_async_context(ForkServer.reopen(idle))
        yield server if server is not None else await stack.enter_async_context(open_best_server(config))


class _SharedServer:
    """A fork server with several users, and the task that owns it."""

    def __init__(self, config: SessionConfig, key: ServerKey) -> None:
        loop = asyncio.get_running_loop()
        self._key, self._idle_seconds = key, config.fork_server_idle
        self.user_count = 0
        self.server: asyncio.Future[ForkServer] = loop.create_future()
        self._close_requested = asyncio.Event()
        self._owner_task = loop.create_task(self._run(config), name="fork-server")

    async def _run(self, config: SessionConfig) -> None:
        try:
            async with _open_server(config, self._key) as server:
                self.server.set_result(server)
                await self._close_requested.wait()
                if self._idle_seconds and server.is_quiet:
                    add_idle_server(self._key, server.park(self._idle_seconds))
        except Exception as problem:  # noqa: BLE001 - raised to everyone who waits for the server
            if not self.server.done():
                self.server.set_exception(problem)
                self.server.exception()

    @property
    def is_usable(self) -> bool:
        if self._close_requested.is_set():
            return False
        if not self.server.done():
            return True
        return self.server.exception() is None and self.server.result().accepts_sessions

    async def close(self) -> None:
        self._close_requested.set()
        if not self.server.done():
            self._owner_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._owner_task)


_servers_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ServerKey, _SharedServer]] = (
    weakref.WeakKeyDictionary()
)


def _make_key(config: SessionConfig) -> ServerKey:
    # A directory that was removed and created again is another one, which the server does not have in its sandbox.
    paths = (config.python, *config.import_path, *config.sandbox.readable, *get_writable_paths(config))
    return (
        config.python, config.preload, config.import_path, config.sandbox, config.workdir,
        tuple(_identify_path(path) for path in paths),
    )  # fmt: skip


def _identify_path(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


@asynccontextmanager
async def fork_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """Hold the fork server for this configuration. It starts with its first user.

    Sessions that are started while it is held start in milliseconds. After its last user it waits for another one for
    ``SessionConfig.fork_server_idle`` seconds; ``close_idle_fork_servers`` ends it at once. In spawn mode, every user
    gets its own server.
    """
    if config.mode == "spawn":
        async with open_best_server(config) as own:
            yield own
        return
    table = _servers_by_loop.setdefault(asyncio.get_running_loop(), {})
    key = _make_key(config)
    shared = table.get(key)
    if shared is None or not shared.is_usable:
        shared = table[key] = _SharedServer(config, key)
    shared.user_count += 1
    try:
        yield await asyncio.shield(shared.server)
    finally:
        shared.user_count -= 1
        if shared.user_count == 0:
            if table.get(key) is shared:
                del table[key]
            await shared.close()
