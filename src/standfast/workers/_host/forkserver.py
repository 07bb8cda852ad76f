"""The host's side of a fork-server: started by exec, ordered about over a socket, shared by reference."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from standfast.workers._host.frame_socket import FrameSocket
from standfast.workers.config import MB, SessionConfig
from standfast.workers.errors import SandboxUnavailable, StartFailed
from standfast.workers.wire.control import (
    SANDBOX_LEVELS,
    SINGLE_THREAD_ENVIRONMENT,
    ForkCommand,
    ForkReply,
    SandboxLevel,
    SandboxSpec,
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


def get_writable_paths(config: SessionConfig) -> tuple[str, ...]:
    return (*config.sandbox.writable, *((config.workdir,) if config.workdir else ()))


def build_sandbox_spec(config: SessionConfig, level: SandboxLevel) -> SandboxSpec:
    """The policy in the child's terms, at one level."""
    policy = config.sandbox
    network = policy.network if isinstance(policy.network, str) else "proxy"
    return SandboxSpec(
        level=level,
        readable=policy.readable,
        writable=get_writable_paths(config),
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
class ForkedSupervisor:
    """A keeper just forked: its pid in the server's eyes and a descriptor for it, where there are such."""

    pid: int
    pidfd: int | None

    def close(self) -> None:
        """Let go of it. A keeper that nobody speaks to ends by itself."""
        if self.pidfd is not None:
            os.close(self.pidfd)


class ForkServer:
    """One fork-server process. ``open`` starts it and waits until it is up; leaving ends it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
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
        order = StartServerCommand(
            jail=build_sandbox_spec(config, level),
            preload=config.preload if config.mode == "fork" else (),
            import_path=config.import_path,
            host_pid=os.getpid(),
        )
        try:
            server._frame_socket.send(encode_control(order))
            async with asyncio.timeout(_START_TIMEOUT):
                await asyncio.shield(server._ready)
            yield server
        except TimeoutError as late:
            raise StartFailed(f"the fork-server was not up within {_START_TIMEOUT} s") from late
        finally:
            await server._close()

    @property
    def ready_message(self) -> ServerReady:
        """What the server said when it was up."""
        return self._ready.result()

    @property
    def is_alive(self) -> bool:
        return not self._frame_socket.closed

    async def fork(self, command: ForkCommand, fds: tuple[int, ...]) -> ForkedSupervisor:
        """Fork one keeper. The caller keeps its own copies of the descriptors."""
        if not self.is_alive:
            raise StartFailed("the fork-server is gone")
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[ForkedSupervisor] = asyncio.get_running_loop().create_future()
        self._pending_forks[number] = answer
        self._frame_socket.send(encode_control(msgspec.structs.replace(command, id=number)), fds)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the very turn in which the caller was cancelled.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()
            raise
        finally:
            self._pending_forks.pop(number, None)

    def _on_frame(self, payload: bytes | OversizedFrame) -> None:
        if isinstance(payload, OversizedFrame):
            return
        try:
            word = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._frame_socket.close()
            self._on_disconnect()
            return
        if isinstance(word, ServerReady):
            if not self._ready.done():
                self._ready.set_result(word)
        elif isinstance(word, ServerStartFailed):
            if not self._ready.done():
                self._ready.set_exception(StartFailed(word.error))
        else:
            self._on_fork_reply(word)

    def _on_fork_reply(self, reply: ForkReply) -> None:
        fds = self._frame_socket.take_fds()
        pidfd = fds.pop(0) if fds else None
        answer = self._pending_forks.get(reply.id)
        if answer is None or answer.done():
            ForkedSupervisor(reply.pid, pidfd).close()
        elif reply.error:
            answer.set_exception(StartFailed(reply.error))
        else:
            answer.set_result(ForkedSupervisor(reply.pid, pidfd))

    def _on_disconnect(self) -> None:
        problem = StartFailed("the fork-server ended")
        if not self._ready.done():
            self._ready.set_exception(problem)
        for waiting in self._pending_forks.values():
            if not waiting.done():
                waiting.set_exception(problem)
        if not self._ready.cancelled():
            # Mark as seen: nobody may be waiting any more.
            self._ready.exception()

    async def _close(self) -> None:
        self._frame_socket.close()
        self._on_disconnect()
        with contextlib.suppress(OSError):
            self.process.kill()
        # Killed, so this is a matter of a moment; a watcher would be one more thing to own.
        while self.process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def _spawn_process(python: str, sock: socket.socket) -> subprocess.Popen[bytes]:
    # The package's own location, so that a worker runs the same standfast as its host.
    import_root = str(Path(__file__).resolve().parents[3])
    command = [python, "-I", "-X", "utf8", "-c", _BOOTSTRAP, import_root, str(sock.fileno())]
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and code
            command, pass_fds=(sock.fileno(),), stdin=subprocess.DEVNULL, env=dict(_ENVIRONMENT), cwd="/",
            start_new_session=True,
        )  # fmt: skip
    except OSError as problem:
        raise StartFailed(f"cannot start {python}: {problem}") from problem


def list_candidate_levels(config: SessionConfig) -> tuple[SandboxLevel, ...]:
    """From the strongest the policy uses to the weakest it accepts, as this platform may have them."""
    policy = config.sandbox
    most, least = SANDBOX_LEVELS.index(policy.level), SANDBOX_LEVELS.index(policy.require)
    possible: tuple[SandboxLevel, ...] = tuple(reversed(SANDBOX_LEVELS[least : most + 1]))
    if not sys.platform.startswith("linux"):
        possible = tuple(level for level in possible if level == "plain")
        if not possible:
            raise SandboxUnavailable(policy.require, "plain", "only Linux has these")
    return possible


def _check_paths(config: SessionConfig) -> None:
    """A path that is not there is a slip for which no level is to blame: a weaker one would only hide it."""
    for access, paths in (("readable", config.sandbox.readable), ("writable", get_writable_paths(config))):
        for path in paths:
            if not os.path.isabs(path) or not os.path.exists(path):
                raise StartFailed(f"{path!r} is to be {access} in the worker, but there is no such absolute path")


@asynccontextmanager
async def open_best_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """A fork-server at the strongest level that can be had. Raises SandboxUnavailable when none is enough."""
    _check_paths(config)
    reasons: list[str] = []
    for level in list_candidate_levels(config):
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


ServerKey = tuple[Any, ...]


class _SharedServer:
    """One server and the task that owns it."""

    def __init__(self, config: SessionConfig) -> None:
        loop = asyncio.get_running_loop()
        self.user_count = 0
        self.server: asyncio.Future[ForkServer] = loop.create_future()
        self._close_requested = asyncio.Event()
        self._owner_task = loop.create_task(self._run(config), name="fork-server")

    async def _run(self, config: SessionConfig) -> None:
        try:
            async with open_best_server(config) as server:
                self.server.set_result(server)
                await self._close_requested.wait()
        except Exception as problem:  # noqa: BLE001 - carried to whoever waits for the server
            if not self.server.done():
                self.server.set_exception(problem)
                self.server.exception()

    @property
    def is_usable(self) -> bool:
        if self._close_requested.is_set():
            return False
        if not self.server.done():
            return True
        return self.server.exception() is None and self.server.result().is_alive

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
    return (config.python, config.preload, config.import_path, config.sandbox, config.workdir)


@asynccontextmanager
async def fork_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """Hold the fork-server for this configuration; it starts with its first user and ends with its last.

    Hold it around several sessions and each of them starts in milliseconds. In spawn mode every holder
    gets a server of its own.
    """
    if config.mode == "spawn":
        async with open_best_server(config) as own:
            yield own
        return
    table = _servers_by_loop.setdefault(asyncio.get_running_loop(), {})
    key = _make_key(config)
    shared = table.get(key)
    if shared is None or not shared.is_usable:
        shared = table[key] = _SharedServer(config)
    shared.user_count += 1
    try:
        yield await asyncio.shield(shared.server)
    finally:
        shared.user_count -= 1
        if shared.user_count == 0:
            if table.get(key) is shared:
                del table[key]
            await shared.close()
