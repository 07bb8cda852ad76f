"""A keeper and the workers in its care: one at first, more when a worker is forked."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.workers.cgroups import Groups
from holdfast.workers.errors import Cause, StartFailed
from holdfast.workers.line import Line
from holdfast.workers.wire.frames import Oversize
from holdfast.workers.wire.orders import Exited, Failed, FromKeeper, Kill, Locked, Proceed, Ring, pack

if TYPE_CHECKING:
    import socket

_decoder: msgspec.msgpack.Decoder[FromKeeper] = msgspec.msgpack.Decoder(FromKeeper)
Farewell = Callable[[Cause], None]


class Family:
    """Talks to one keeper, tells each worker's end to who joined for it, and ends with its last member."""

    def __init__(self, sock: "socket.socket", pidfd: int | None, pid: int, groups: Groups) -> None:
        self.pid, self.groups = pid, groups
        self.directory: int | None = None
        self.proxy: int | None = None
        self.locked: asyncio.Future[Locked] = asyncio.get_running_loop().create_future()
        self.members: dict[str, Farewell] = {}
        self._pidfd = pidfd
        self._reasons: dict[str, Cause] = {}
        self._line = Line(sock, heard=self._heard, gone=self._gone, descriptors=True)

    @property
    def host_pid(self) -> int:
        """The keeper's pid as this process sees it; 0 when it is gone or cannot be known."""
        if self._pidfd is None:
            return self.pid
        try:
            with open(f"/proc/self/fdinfo/{self._pidfd}") as file:
                found = [line.split()[1] for line in file if line.startswith("Pid:")]
        except OSError:
            return 0
        return max(0, int(found[0])) if found else 0

    def admit(self) -> None:
        """Put the waiting keeper into its control groups and let it go on."""
        pid = self.host_pid
        if pid == 0:  # To the kernel, that is whoever writes: this process.
            raise StartFailed("the keeper ended before it was in its control group")
        try:
            self.groups.admit(pid)
        except OSError as problem:
            raise StartFailed(f"the keeper cannot be put into its control group: {problem}") from problem
        self._line.send(pack(Proceed()))

    def join(self, token: str, farewell: Farewell) -> None:
        self.members[token] = farewell

    def ring(self, token: str) -> None:
        """Make a busy worker look at its mail."""
        self._line.send(pack(Ring(token=token)))

    def kill(self, token: str, reason: Cause) -> None:
        """Kill one worker; its farewell will carry ``reason``. The last one takes the keeper along."""
        self._reasons.setdefault(token, reason)
        if set(self.members) <= {token}:
            self._line.send(pack(Kill()))
            if self._pidfd is not None and self._namespaced:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            self._line.send(pack(Kill(token=token)))

    def kill_all(self, reason: Cause) -> None:
        """Kill every worker of the family; the keeper takes along whatever else there is."""
        for token in list(self.members):
            self._reasons.setdefault(token, reason)
        self._line.send(pack(Kill()))

    @property
    def _namespaced(self) -> bool:
        done = self.locked.done() and not self.locked.cancelled() and self.locked.exception() is None
        return done and self.locked.result().level == "namespaces"

    def leave(self, token: str) -> None:
        """This member needs nothing more; the last to leave ends the family."""
        self.members.pop(token, None)
        if not self.members:
            self.close()

    def close(self) -> None:
        self._line.close()
        if not self.locked.done():
            self.locked.cancel()
        for fd in (self.directory, self.proxy, self._pidfd):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.directory = self.proxy = self._pidfd = None

    def _heard(self, payload: bytes | Oversize) -> None:
        if isinstance(payload, Oversize):
            return
        try:
            word = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._line.close()
            self._gone()
            return
        if isinstance(word, Locked):
            fds = self._line.take_fds()
            self.directory = fds.pop(0) if fds else None
            self.proxy = fds.pop(0) if fds else None
            if not self.locked.done():
                self.locked.set_result(word)
        elif isinstance(word, Failed):
            if not self.locked.done():
                self.locked.set_exception(StartFailed(word.error))
                self.locked.exception()
        else:
            self._farewell(word.token, self._reasons.get(word.token) or self._cause(word))

    @property
    def out_of_memory(self) -> Cause | None:
        """Why the control group killed one of the family's processes; None if it did not."""
        if not self.groups.killed_for_memory:
            return None
        return Cause("memory-limit", "the memory of the control group ran out", signal=signal.SIGKILL)

    def _cause(self, exited: Exited) -> Cause:
        cause = cause_of(exited)
        return (cause.signal == signal.SIGKILL and self.out_of_memory) or cause

    def _gone(self) -> None:
        if not self.locked.done():
            self.locked.set_exception(StartFailed("the keeper ended before the worker was ready"))
            self.locked.exception()
        lost = self.out_of_memory or Cause("killed", "the worker's keeper was killed")
        for token in list(self.members):
            self._farewell(token, self._reasons.get(token) or lost)

    def _farewell(self, token: str, cause: Cause) -> None:
        farewell = self.members.get(token)
        if farewell is not None:
            farewell(cause)


def cause_of(exited: Exited) -> Cause:
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
