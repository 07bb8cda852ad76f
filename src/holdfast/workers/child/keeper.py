"""The keeper: parent of a worker and of its forks, pid 1 of their namespace.

It builds the walls, forks the worker, tells the host how each one ended, rings a busy one on order, and
takes the whole family with it when it goes. It runs no user code and reads nothing user code wrote but the
pid of a successor.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

import msgspec

from holdfast.workers.child import measures, parcels, syscalls, walls, worker
from holdfast.workers.wire.orders import Exited, Failed, ForkOrder, Kill, Locked, Ring

_orders: msgspec.msgpack.Decoder[Ring | Kill] = msgspec.msgpack.Decoder(Ring | Kill)

_CHILD, _TERMINATE, _IGNORE = int(signal.SIGCHLD), int(signal.SIGTERM), int(signal.SIG_IGN)
_IGNORED = (int(signal.SIGINT), int(signal.SIGHUP))


def main(site: walls.Site, order: ForkOrder, fds: list[int]) -> NoReturn:
    """Runs in a freshly forked process; never returns into the server's frames."""
    try:
        protocol, out, err, line = fds
        host = socket.socket(fileno=line)
        Keeper(site, order, host).run(protocol, out, err)
    except BaseException:  # noqa: BLE001 - nothing may unwind into the server
        traceback.print_exc()
        os._exit(70)


class Keeper:
    def __init__(self, site: walls.Site, order: ForkOrder, host: socket.socket) -> None:
        self.site, self.order, self.host = site, order, host
        self.receiver = parcels.Receiver(host)
        self.live: dict[int, str] = {}
        self.lineage, self._worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def run(self, protocol: int, out: int, err: int) -> NoReturn:
        if sys.platform.startswith("linux"):
            # Without a process namespace nobody takes the descendants along but us: we must live to do it.
            last_word = signal.SIGKILL if self.site.namespaces else signal.SIGTERM
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, last_word)
            if not self.site.namespaces:
                syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        try:
            if self.order.gated and self.receiver.receive() is None:
                os._exit(0)
            listener = self.site.enclose()
            directory = self._directory()
            opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the host must hear of it
            with contextlib.suppress(OSError):
                parcels.send(self.host, Failed(error=f"{type(problem).__name__}: {problem}"))
            os._exit(71)
        self._mind_signals()
        pid = os.fork()
        if pid == 0:
            self._become_worker(protocol, out, err, directory, listener)
        self.live[pid] = self.order.token
        for fd in (protocol, out, err):
            os.close(fd)
        self._worker_end.close()
        try:
            self._report(directory, opened, listener)
        except (BrokenPipeError, ConnectionResetError):
            # The host has given the worker up.
            self._end_all()
        self._watch()

    def _directory(self) -> str:
        if self.site.namespaces:
            return walls.SESSION_DIRECTORY
        return self.order.directory

    def _report(self, directory: str, opened: int, listener: socket.socket | None) -> None:
        fds = [opened]
        port = 0
        if listener is not None:
            fds.append(listener.fileno())
            port = listener.getsockname()[1]
        locked = Locked(level=self.site.jail.level, directory=directory, proxy_port=port)
        parcels.send(self.host, locked, tuple(fds))
        os.close(opened)
        if listener is not None:
            listener.close()

    def _become_worker(
        self, protocol: int, out: int, err: int, directory: str, listener: socket.socket | None
    ) -> NoReturn:
        port = listener.getsockname()[1] if listener is not None else 0
        place = worker.Place(
            jail=self.site.jail,
            readable=self.site.readable,
            directory=directory,
            proxy_port=port,
            lineage=self._worker_end,
        )
        worker.main(place, self.order, protocol, out, err)

    def _mind_signals(self) -> None:
        syscalls.set_signal(_CHILD, lambda *_: None)
        syscalls.set_signal(_TERMINATE, lambda *_: self._end_all())
        for number in _IGNORED:
            syscalls.set_signal(number, _IGNORE)
        # Before the worker exists: a ring that comes early must not kill it.
        syscalls.set_signal(worker.DOORBELL, lambda *_: None)

    def _watch(self) -> NoReturn:
        read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        receiver = self.receiver
        poll = select.poll()
        for fd in (self.host.fileno(), self.lineage.fileno(), read):
            poll.register(fd, select.POLLIN)
        self._bury()
        while True:
            ready = dict(poll.poll())
            if read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(read, 4096)
            if self.lineage.fileno() in ready or read in ready:
                self._bury()
            if self.host.fileno() in ready:
                self._obey(receiver)
                while receiver.pending:
                    self._obey(receiver)

    def _obey(self, receiver: parcels.Receiver) -> None:
        try:
            payload = receiver.receive()
        except OSError:
            payload = None
        if payload is None:
            self._end_all()
        order = _orders.decode(payload)
        number = signal.SIGKILL if isinstance(order, Kill) else worker.DOORBELL
        for pid, token in list(self.live.items()):
            if order.token in (None, token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if isinstance(order, Kill) and order.token is None:
            self._bury()
            self._end_all()

    def _learn(self) -> None:
        """A worker that handed over to a fork of itself has named its successor."""
        while True:
            try:
                word = self.lineage.recv(256, socket.MSG_DONTWAIT).decode()
            except (BlockingIOError, OSError):
                return
            token, _, number = word.partition(" ")
            if not number.isdecimal() or not _is_child(int(number)):
                # User code can write here too, and must not make us signal somebody else.
                continue
            for pid, name in list(self.live.items()):
                if name == token:
                    del self.live[pid]
            self.live[int(number)] = token

    def _bury(self) -> None:
        self._learn()
        while True:
            try:
                pid, status, spent = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            # A predecessor exits only after its successor announced itself: look again before believing.
            self._learn()
            token = self.live.pop(pid, None)
            if token is not None:
                cpu = spent.ru_utime + spent.ru_stime
                with contextlib.suppress(OSError):
                    parcels.send(
                        self.host,
                        Exited(token=token, status=status, cpu=cpu, peak_rss=measures.peak_of(spent)),
                    )
        if not self.live:
            self._end_all()

    def _end_all(self) -> NoReturn:
        """Take every descendant along. As pid 1 the kernel does it; otherwise it is done by hand."""
        if not self.site.namespaces:
            for pid in self.live:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            for _ in range(64):
                if not _kill_children():
                    break
        os._exit(0)


def _is_child(pid: int) -> bool:
    if not sys.platform.startswith("linux"):  # Nobody has a successor there.
        return False
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, OverflowError, OSError):
        return False
    return True


def _kill_children() -> bool:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return False
    for pid in children:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)
    return bool(children)
