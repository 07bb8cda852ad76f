"""A keeper and the workers in its care: one at first, more when a worker is forked."""

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
    ContinueCommand,
    KillCommand,
    SandboxFailed,
    SandboxReady,
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
    """Talks to one keeper, tells each worker's end to who joined for it, and ends with its last member."""

    def __init__(self, sock: "socket.socket", pidfd: int | None, pid: int, cgroups: ControlGroups) -> None:
        self.pid, self.cgroups = pid, cgroups
        self.directory_fd: int | None = None
        self.proxy_fd: int | None = None
        self.sandbox_ready: asyncio.Future[SandboxReady] = asyncio.get_running_loop().create_future()
        self.exit_callbacks: dict[str, ExitCallback] = {}
        self._pidfd = pidfd
        self._kill_reasons: dict[str, Cause] = {}
        self._frame_socket = FrameSocket(
            sock, on_frame=self._on_frame, on_disconnect=self._on_disconnect, accept_fds=True
        )

    @property
    def supervisor_pid(self) -> int:
        """The keeper's pid as this process sees it; 0 when it is gone or cannot be known."""
        if self._pidfd is None:
            return self.pid
        try:
            with open(f"/proc/self/fdinfo/{self._pidfd}") as file:
                found = [line.split()[1] for line in file if line.startswith("Pid:")]
        except OSError:
            return 0
        return max(0, int(found[0])) if found else 0

    def enter_cgroups(self) -> None:
        """Put the waiting keeper into its control groups and let it go on."""
        pid = self.supervisor_pid
        if pid == 0:  # To the kernel, that is whoever writes: this process.
            raise StartFailed("the keeper ended before it was in its control group")
        try:
            self.cgroups.add_process(pid)
        except OSError as problem:
            raise StartFailed(f"the keeper cannot be put into its control group: {problem}") from problem
        self._frame_socket.send(encode_control(ContinueCommand()))

    def register(self, token: str, on_exit: ExitCallback) -> None:
        self.exit_callbacks[token] = on_exit

    def wake(self, token: str) -> None:
        """Make a busy worker look at its mail."""
        self._frame_socket.send(encode_control(WakeCommand(token=token)))

    def kill(self, token: str, reason: Cause) -> None:
        """Kill one worker; its farewell will carry ``reason``. The last one takes the keeper along."""
        self._kill_reasons.setdefault(token, reason)
        if set(self.exit_callbacks) <= {token}:
            self._frame_socket.send(encode_control(KillCommand()))
            if self._pidfd is not None and self._uses_namespaces:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            self._frame_socket.send(encode_control(KillCommand(token=token)))

    def kill_all(self, reason: Cause) -> None:
        """Kill every worker of the family; the keeper takes along whatever else there is."""
        for token in list(self.exit_callbacks):
            self._kill_reasons.setdefault(token, reason)
        self._frame_socket.send(encode_control(KillCommand()))

    @property
    def _uses_namespaces(self) -> bool:
        done = (
            self.sandbox_ready.done() and not self.sandbox_ready.cancelled() and self.sandbox_ready.exception() is None
        )
        return done and self.sandbox_ready.result().level == "namespaces"

    def unregister(self, token: str) -> None:
        """This member needs nothing more; the last to leave ends the family."""
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
            word = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._frame_socket.close()
            self._on_disconnect()
            return
        if isinstance(word, SandboxReady):
            fds = self._frame_socket.take_fds()
            self.directory_fd = fds.pop(0) if fds else None
            self.proxy_fd = fds.pop(0) if fds else None
            if not self.sandbox_ready.done():
                self.sandbox_ready.set_result(word)
        elif isinstance(word, SandboxFailed):
            if not self.sandbox_ready.done():
                self.sandbox_ready.set_exception(StartFailed(word.error))
                self.sandbox_ready.exception()
        else:
            self._notify_exit(word.token, self._kill_reasons.get(word.token) or self._find_cause(word))

    @property
    def oom_cause(self) -> Cause | None:
        """Why the control group killed one of the family's processes; None if it did not."""
        if not self.cgroups.has_oom_kill:
            return None
        return Cause("memory-limit", "the memory of the control group ran out", signal=signal.SIGKILL)

    def _find_cause(self, exited: WorkerExited) -> Cause:
        cause = cause_from_exit(exited)
        return (cause.signal == signal.SIGKILL and self.oom_cause) or cause

    def _on_disconnect(self) -> None:
        if not self.sandbox_ready.done():
            self.sandbox_ready.set_exception(StartFailed("the keeper ended before the worker was ready"))
            self.sandbox_ready.exception()
        lost = self.oom_cause or Cause("killed", "the worker's keeper was killed")
        for token in list(self.exit_callbacks):
            self._notify_exit(token, self._kill_reasons.get(token) or lost)

    def _notify_exit(self, token: str, cause: Cause) -> None:
        farewell = self.exit_callbacks.get(token)
        if farewell is not None:
            farewell(cause)


def cause_from_exit(exited: WorkerExited) -> Cause:
    """A wait status as a cause."""
    if os.WIFSIGNALED(exited.status):
        number = os.WTERMSIG(exited.status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        if number == signal.SIGXCPU:
            return Cause("cpu-limit", "the processor time limit was reached", signal=number)
        if number == getattr(signal, "SIGSYS", 0):
            return Cause("sandbox", "a forbidden system call", signal=number)
        return Cause("signal", name, signal=number)
    code = os.WEXITSTATUS(exited.status)
    return Cause("exit", f"exit code {code}", exit_code=code)
