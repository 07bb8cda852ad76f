"""The connection to a supervisor process and its workers: one at first, more when a session is forked."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from standfast.workers._host.cgroups import ControlGroups
from standfast.workers._host.frame_socket import FrameSocket
from standfast.workers.errors import Cause, StartFailed
from standfast.workers.wire.control import (
    EndCaptureCommand,
    EndProcessesCommand,
    KillCommand,
    ProcessesEnded,
    SandboxFailed,
    SandboxReady,
    SignalProcessesCommand,
    StartWorkerCommand,
    SupervisorMessage,
    WakeCommand,
    WorkerExited,
    encode_control,
)
from standfast.workers.wire.frames import OversizedFrame

if TYPE_CHECKING:
    import socket

_decoder: msgspec.msgpack.Decoder[SupervisorMessage] = msgspec.msgpack.Decoder(SupervisorMessage)
ExitCallback = Callable[[Cause], None]


class ProcessGroup:
    """Sends commands to one supervisor and reports the exit of each worker to its exit callback.

    It closes when the last worker is unregistered.
    """

    def __init__(self, sock: "socket.socket", pidfd: int | None, pid: int, cgroups: ControlGroups) -> None:
        self.pid, self.cgroups = pid, cgroups
        self.directory_fd: int | None = None
        self.proxy_fd: int | None = None
        self.sandbox_ready: asyncio.Future[SandboxReady] = asyncio.get_running_loop().create_future()
        self.exit_callbacks: dict[str, ExitCallback] = {}
        self._pidfd = pidfd
        self._kill_reasons: dict[str, Cause] = {}
        self._ending: dict[str, list[asyncio.Future[None]]] = {}
        self._frame_socket = FrameSocket(
            sock, on_frame=self._on_frame, on_disconnect=self._on_disconnect, accept_fds=True
        )

    @property
    def supervisor_pid(self) -> int:
        """The supervisor's pid as this process sees it; 0 when the supervisor has ended or the pid is unknown."""
        if self._pidfd is None:
            return self.pid
        try:
            with open(f"/proc/self/fdinfo/{self._pidfd}") as file:
                pids = [line.split()[1] for line in file if line.startswith("Pid:")]
        except OSError:
            return 0
        return max(0, int(pids[0])) if pids else 0

    def start_worker(self, command: StartWorkerCommand) -> None:
        """Let the waiting supervisor enter its control groups and fork the worker."""
        try:
            with self.cgroups.open_members() as fds:
                self._frame_socket.send(encode_control(command), fds)
        except OSError as problem:
            raise StartFailed(f"the control groups of the worker cannot be opened: {problem}") from problem

    def register(self, token: str, on_exit: ExitCallback) -> None:
        self.exit_callbacks[token] = on_exit

    def wake(self, token: str) -> None:
        """Make a busy worker read its messages."""
        self._frame_socket.send(encode_control(WakeCommand(token=token)))

    def signal_processes(self, token: str, number: int) -> None:
        """Send a signal to the processes that the code of a worker has started."""
        self._frame_socket.send(encode_control(SignalProcessesCommand(token=token, number=number)))

    def kill(self, token: str, reason: Cause) -> None:
        """Kill one worker; its exit is reported with ``reason``. With the last worker, the supervisor is killed too."""
        self._kill_reasons.setdefault(token, reason)
        if set(self.exit_callbacks) <= {token}:
            self._frame_socket.send(encode_control(KillCommand()))
            if self._pidfd is not None and self._uses_namespaces:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            self._frame_socket.send(encode_control(KillCommand(token=token)))

    def end_capture(self, capture_id: str) -> None:
        """Kill the copy of a worker that captures its workspace."""
        self._frame_socket.send(encode_control(EndCaptureCommand(capture_id=capture_id)))

    async def end_processes(self, token: str, *, snapshots: int, captures: tuple[str, ...]) -> None:
        """Kill what the code of a worker has started, but not the worker, this many snapshots of it, and captures.

        Returns when none is left, or when the worker has exited.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending.setdefault(token, []).append(future)
        self._frame_socket.send(
            encode_control(EndProcessesCommand(token=token, snapshots=snapshots, captures=captures))
        )
        await future

    def kill_all(self, reason: Cause) -> None:
        """Kill every worker. The supervisor then kills all other processes that user code has started."""
        for token in list(self.exit_callbacks):
            self._kill_reasons.setdefault(token, reason)
        self._frame_socket.send(encode_control(KillCommand()))

    @property
    def _uses_namespaces(self) -> bool:
        ready = self.sandbox_ready
        is_up = ready.done() and not ready.cancelled() and ready.exception() is None
        return is_up and ready.result().level == "namespaces"

    def unregister(self, token: str) -> None:
        """Remove a worker. Removing the last one closes the process group."""
        self.exit_callbacks.pop(token, None)
        if not self.exit_callbacks:
            self.close()

    def close(self) -> None:
        self._frame_socket.close()
        if not self.sandbox_ready.done():
            self.sandbox_ready.cancel()
        for fd in (self.directory_fd, self.proxy_fd, self._pidfd):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.directory_fd = self.proxy_fd = self._pidfd = None

    def _on_frame(self, payload: bytes | OversizedFrame) -> None:
        if isinstance(payload, OversizedFrame):
            return
        try:
            message = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._frame_socket.close()
            self._on_disconnect()
            return
        if isinstance(message, SandboxReady):
            fds = self._frame_socket.take_fds()
            self.directory_fd = fds.pop(0) if fds else None
            self.proxy_fd = fds.pop(0) if fds else None
            if not self.sandbox_ready.done():
                self.sandbox_ready.set_result(message)
        elif isinstance(message, SandboxFailed):
            if not self.sandbox_ready.done():
                self.sandbox_ready.set_exception(StartFailed(message.error))
                self.sandbox_ready.exception()
        elif isinstance(message, ProcessesEnded):
            for future in self._ending.pop(message.token, ()):
                if not future.done():
                    future.set_result(None)
        else:
            self._notify_exit(message.token, self._kill_reasons.get(message.token) or self._find_cause(message))

    @property
    def oom_cause(self) -> Cause | None:
        """The cause when the kernel killed a process of the control group for memory; None when it did not."""
        if not self.cgroups.has_oom_kill:
            return None
        return Cause("memory-limit", "the control group ran out of memory", signal=signal.SIGKILL)

    def _find_cause(self, exited: WorkerExited) -> Cause:
        cause = cause_from_exit(exited)
        return (cause.signal == signal.SIGKILL and self.oom_cause) or cause

    def _on_disconnect(self) -> None:
        if not self.sandbox_ready.done():
            self.sandbox_ready.set_exception(StartFailed("the supervisor ended before the worker was ready"))
            self.sandbox_ready.exception()
        # In a namespace of its own, code sees the supervisor as process 1, which it cannot kill.
        text = "the worker's supervisor was killed"
        cause = self.oom_cause or Cause("killed", text, is_external=self._uses_namespaces)
        for token in list(self.exit_callbacks):
            self._notify_exit(token, self._kill_reasons.get(token) or cause)

    def _notify_exit(self, token: str, cause: Cause) -> None:
        for future in self._ending.pop(token, ()):
            if not future.done():
                future.set_result(None)
        callback = self.exit_callbacks.get(token)
        if callback is not None:
            callback(cause)


def cause_from_exit(exited: WorkerExited) -> Cause:
    """Translate a wait status into a cause."""
    if os.WIFSIGNALED(exited.status):
        number = os.WTERMSIG(exited.status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        if number == signal.SIGXCPU:
            return Cause("cpu-limit", "the CPU time limit was reached", signal=number)
        if number == getattr(signal, "SIGSYS", 0):
            return Cause("sandbox", "the code made a forbidden system call", signal=number)
        return Cause("signal", name, signal=number)
    code = os.WEXITSTATUS(exited.status)
    return Cause("exit", f"exit code {code}", exit_code=code)
