"""Exact copies of the worker, made by forking it between cells.

A copy is a frozen process that waits for one word. To go back, the copy first leaves a copy of itself (so
that the point stays), tells the keeper that it is the worker now, and takes up the socket; the other exits.
Every copy is forked twice, so that the keeper is its parent and the user's ``wait()`` never sees it.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.workers.child import measures, parcels, syscalls
from holdfast.workers.wire.messages import ErrorMessage, ReadyMessage, SnapshotMessage, fresh_origin

if TYPE_CHECKING:
    from holdfast.workers.child.runtime import Runtime


_BURIED_WITHIN = 0.1
_CHILD, _DEFAULT = int(signal.SIGCHLD), int(signal.SIG_DFL)


POSSIBLE = sys.platform.startswith("linux")
"""Elsewhere the parent of an orphan cannot be chosen: nobody would look after a copy, or tell how it ended."""


class CannotCopy(OSError):
    """No copy could be made or gone back to. The worker goes on as it is."""


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
        try:
            copy = self._fork_away()
        except CannotCopy:
            ours.close()
            theirs.close()
            raise
        if not copy:
            theirs.close()
            self.points[point] = ours
            return False, ""
        ours.close()
        return True, self._freeze(point, theirs)

    def hand_over(self, point: str, *, word: str = "", farewell: Callable[[], None] = lambda: None) -> None:
        """Wake the copy, say a last word and cease to exist. Does not return unless the copy cannot take over."""
        sock = self.points[point]
        measures.flush()
        answer = b""
        with contextlib.suppress(OSError):
            parcels.send(sock, {"word": word, "unread": self.runtime.post.unread})
            answer = sock.recv(1)
        if answer != b"!":
            problem = "the limit of processes is reached; drop some snapshots" if answer else "its process is gone"
            raise CannotCopy(f"cannot go back to the snapshot: {problem}")
        farewell()
        self.runtime.post.seal()
        with contextlib.suppress(OSError):
            sock.send(b".")
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
        if not POSSIBLE:
            raise CannotCopy("snapshots, forks and transactions of a worker need Linux; a checkpoint does not")
        measures.flush()
        self._forking = True
        # The user's code may collect its children, or have the kernel do it: not this one.
        kept = syscalls.set_signal(_CHILD, _DEFAULT)
        until = time.monotonic() + _BURIED_WITHIN
        try:
            while True:
                try:
                    return self._forked_twice()
                except OSError as problem:
                    # One that was dropped a moment ago counts until the keeper has buried it.
                    if problem.errno != errno.EAGAIN or time.monotonic() > until:
                        raise CannotCopy(f"cannot copy the worker: {problem.strerror}") from problem
                    time.sleep(0.001)
        finally:
            self._forking = False
            if kept is not None:
                syscalls.set_signal(_CHILD, kept)

    def _forked_twice(self) -> bool:
        threads = threading.active_count() > 1
        middle = os.fork()
        if middle == 0:
            if threads:
                self.runtime.streams.renew()
            self.runtime.post.renew()
            between = os.getpid()
            try:
                if os.fork():
                    os._exit(0)
            except OSError as problem:
                os._exit(problem.errno or 1)
            os.setsid()
            # Not before the keeper is the parent, or the death that kills would be the middle one's.
            while os.getppid() == between:
                time.sleep(0.0001)
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            fresh_origin()
            return True
        _, status = os.waitpid(middle, 0)
        if status:
            number = os.waitstatus_to_exitcode(status)
            raise OSError(number, os.strerror(number))
        return False

    def _freeze(self, point: str, line: socket.socket) -> str:
        """Wait to be woken, leaving a copy that waits in turn. Returns the word with which it was woken."""
        import msgspec

        while True:
            payload = parcels.Receiver(line).receive()
            order = msgspec.msgpack.decode(payload) if payload else {}
            if not order:
                os._exit(0)
            if point.startswith("transaction:"):
                # One goes back there once.
                self.points.pop(point, None)
                break
            ours, theirs = socket.socketpair()
            try:
                copy = self._fork_away()
            except CannotCopy:
                ours.close()
                theirs.close()
                line.send(b"?")
                continue
            if not copy:
                theirs.close()
                self.points[point] = ours
                break
            ours.close()
            line.close()
            line = theirs
        self.runtime.post.take_up(order["unread"])
        self.announce()
        line.send(b"!")
        # Until the other has said its last word, the socket is still its own.
        line.recv(1)
        line.close()
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
        try:
            copy = self._fork_away()
        except CannotCopy:
            for fd in fds:
                os.close(fd)
            raise
        if not copy:
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
