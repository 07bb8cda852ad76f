"""Exact copies of the worker, made by forking it between cells.

A copy is a frozen process that waits for one word. To go back, the copy first leaves a copy of itself (so
that the point stays), tells the keeper that it is the worker now, and takes up the socket; the other exits.
Every copy is forked twice, so that the keeper is its parent and the user's ``wait()`` never sees it.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from holdfast.workers.child import parcels, syscalls
from holdfast.workers.wire.messages import ErrorMessage, ReadyMessage, SnapshotMessage, fresh_origin

if TYPE_CHECKING:
    from holdfast.workers.child.runtime import Runtime


class Snapshots:
    def __init__(self, runtime: "Runtime", lineage: socket.socket) -> None:
        self.runtime, self.lineage = runtime, lineage
        self.points: dict[str, socket.socket] = {}
        self.foreign = False
        self._forking = False

    def answer(self, message: SnapshotMessage) -> None:
        """Do what the host asks. After a rollback it is the copy that answers."""
        send = self.runtime.post.send
        if message.action == "take":
            resumed, word = self.take(message.point)
            if not resumed:
                send(SnapshotMessage(of=message.id, point=message.point, hazards=self.hazards()))
            elif word:
                send(SnapshotMessage(of=word, action="rollback", point=message.point))
        elif message.action == "fork":
            self._branch(message)
        elif message.point not in self.points:
            problem = f"there is no snapshot {message.point!r} in this worker"
            send(ErrorMessage(execution_id=message.id, exception_type="NotFound", exception_message=problem))
        elif message.action == "rollback":
            self.hand_over(message.point, word=message.id)
        else:
            self.drop(message.point)
            send(SnapshotMessage(of=message.id, action="drop", point=message.point))

    def take(self, point: str) -> tuple[bool, str]:
        """Leave a frozen copy. Returns (False, "") here, and (True, word) in the copy when it is woken."""
        ours, theirs = socket.socketpair()
        if not self._fork_away():
            theirs.close()
            self.points[point] = ours
            return False, ""
        word = self._freeze(point, ours, theirs)
        return True, word

    def hand_over(self, point: str, *, word: str = "") -> None:
        """Wake the copy and cease to exist. Does not return."""
        sock = self.points[point]
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        parcels.send(sock, {"word": word, "unread": self.runtime.post.unread})
        sock.recv(1)
        os._exit(0)

    def drop(self, point: str) -> None:
        with self.points.pop(point) as sock, contextlib.suppress(OSError):
            parcels.send(sock, {})

    def hazards(self) -> tuple[str, ...]:
        """What a fork does not copy."""
        found = []
        if threading.active_count() > 1 or _tasks() > 1:
            found.append("threads: only the main thread is copied")
        with contextlib.suppress(OSError):
            kinds = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
            ours = 2 + len(self.points)
            if sum(kind.startswith("socket:") for kind in kinds) > ours:
                found.append("sockets: both copies share the same connections")
        with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
            if file.read().strip():
                found.append("child processes: they stay with the first copy")
        return tuple(found)

    def forked(self) -> None:
        """Runs in every forked child. A fork made by user code gets no access to the protocol."""
        self.runtime.cells.forget_loop()
        if not self._forking:
            self.foreign = True
            for fd in (self.runtime.post.sock.fileno(), self.lineage.fileno()):
                with contextlib.suppress(OSError):
                    os.close(fd)

    # -- inside

    def _fork_away(self) -> bool:
        """Fork a copy whose parent is the keeper. True in the copy."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._forking = True
        try:
            middle = os.fork()
            if middle == 0:
                between = os.getpid()
                if os.fork():
                    os._exit(0)
                os.setsid()
                # Not before the keeper is the parent, or the death that kills would be the middle one's.
                while os.getppid() == between:
                    time.sleep(0.0001)
                if sys.platform.startswith("linux"):
                    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
                fresh_origin()
                return True
            os.waitpid(middle, 0)
            return False
        finally:
            self._forking = False

    def _freeze(self, point: str, ours: socket.socket, theirs: socket.socket) -> str:
        ours.close()
        receiver = parcels.Receiver(theirs)
        payload = receiver.receive()
        import msgspec

        order = msgspec.msgpack.decode(payload) if payload else {}
        if not order:
            os._exit(0)
        ours, ours_again = socket.socketpair()
        if self._fork_away():
            theirs.close()
            return self._freeze(point, ours, ours_again)
        ours_again.close()
        self.points[point] = ours
        if point.startswith("transaction:"):
            self.drop(point)
        self.runtime.post.take_up(order["unread"])
        self.announce()
        theirs.send(b"!")
        theirs.close()
        word: str = order["word"]
        return word

    def announce(self) -> None:
        """Tell the keeper that this process is the worker of its token now."""
        self.lineage.send(f"{self.runtime.token} {os.getpid()}".encode())

    def _branch(self, message: SnapshotMessage) -> None:
        runtime = self.runtime
        fds, runtime.post.fds = runtime.post.fds, []
        if len(fds) != 3:
            problem = "a fork needs three descriptors"
            runtime.post.send(
                ErrorMessage(execution_id=message.id, exception_type="ProtocolError", exception_message=problem)
            )
            return
        hazards = self.hazards()
        if not self._fork_away():
            for fd in fds:
                os.close(fd)
            runtime.post.send(SnapshotMessage(of=message.id, action="fork", hazards=hazards))
            return
        for sock in self.points.values():
            sock.close()
        self.points.clear()
        os.dup2(fds[0], runtime.post.sock.fileno(), inheritable=False)
        os.dup2(fds[1], 1)
        os.dup2(fds[2], 2)
        for fd in fds:
            os.close(fd)
        runtime.post.take_up(b"")
        runtime.token = message.point
        self.announce()
        runtime.post.send(ReadyMessage(session_id=message.point))


def _tasks() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1
