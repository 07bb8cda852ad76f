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

from standfast.workers.child import fd_messages, resources
from standfast.workers.child.sandbox import syscalls
from standfast.workers.wire.messages import ErrorMessage, ReadyMessage, SnapshotMessage, reset_id_prefix

if TYPE_CHECKING:
    from standfast.workers.child.loop import WorkerLoop


_REAP_TIMEOUT = 0.1
_SIGCHLD, _SIG_DFL = int(signal.SIGCHLD), int(signal.SIG_DFL)


SNAPSHOTS_SUPPORTED = sys.platform.startswith("linux")
"""Elsewhere the parent of an orphan cannot be chosen: nobody would look after a copy, or tell how it ended."""


class CannotCopy(OSError):
    """No copy could be made or gone back to. The worker goes on as it is."""


class SnapshotManager:
    def __init__(self, worker_loop: "WorkerLoop", handover_socket: socket.socket) -> None:
        self.worker_loop, self.handover_socket = worker_loop, handover_socket
        self.points: dict[str, socket.socket] = {}
        self.is_foreign_fork = False
        self._is_forking = False

    def handle_request(self, message: SnapshotMessage) -> None:
        """Do what the host asks. After a rollback it is the copy that answers."""
        send = self.worker_loop.channel.send
        if message.action == "take":
            resumed, word = self.take(message.point)
            if not resumed:
                send(SnapshotMessage(of=message.id, point=message.point, hazards=self.find_hazards()))
            elif word:
                send(SnapshotMessage(of=word, action="rollback", point=message.point))
        elif message.action == "fork":
            self._fork_session(message)
        elif message.point not in self.points:
            problem = f"there is no snapshot {message.point!r} in this worker"
            send(ErrorMessage(execution_id=message.id, exception_type="NotFound", exception_message=problem))
        elif message.action == "rollback":
            self.hand_over(message.point, request_id=message.id)
        else:
            self.drop(message.point)
            send(SnapshotMessage(of=message.id, action="drop", point=message.point))

    def take(self, point: str) -> tuple[bool, str]:
        """Leave a frozen copy. Returns (False, "") here, and (True, word) in the copy when it is woken."""
        ours, theirs = socket.socketpair()
        try:
            copy = self._fork_detached()
        except CannotCopy:
            ours.close()
            theirs.close()
            raise
        if not copy:
            theirs.close()
            self.points[point] = ours
            return False, ""
        ours.close()
        return True, self._wait_until_resumed(point, theirs)

    def hand_over(self, point: str, *, request_id: str = "", before_exit: Callable[[], None] = lambda: None) -> None:
        """Wake the copy, say a last word and cease to exist. Does not return unless the copy cannot take over."""
        sock = self.points[point]
        resources.flush_streams()
        answer = b""
        with contextlib.suppress(OSError):
            fd_messages.send_control(sock, {"word": request_id, "unread": self.worker_loop.channel.unprocessed_data})
            answer = sock.recv(1)
        if answer != b"!":
            problem = "the limit of processes is reached; drop some snapshots" if answer else "its process is gone"
            raise CannotCopy(f"cannot go back to the snapshot: {problem}")
        before_exit()
        self.worker_loop.channel.block_writes()
        with contextlib.suppress(OSError):
            sock.send(b".")
        os._exit(0)

    def drop(self, point: str) -> None:
        with self.points.pop(point) as sock, contextlib.suppress(OSError):
            fd_messages.send_control(sock, {})

    def find_hazards(self) -> tuple[str, ...]:
        """What a fork does not copy."""
        found = []
        if threading.active_count() > 1 or _count_threads() > 1:
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

    def after_fork_in_child(self) -> None:
        """Runs in every forked child. A fork made by user code gets no access to the protocol."""
        self.worker_loop.cell_runner.forget_loop()
        if not self._is_forking:
            self.is_foreign_fork = True
            for fd in (self.worker_loop.channel.sock.fileno(), self.handover_socket.fileno()):
                with contextlib.suppress(OSError):
                    os.close(fd)

    # -- inside

    def _fork_detached(self) -> bool:
        """Fork a copy whose parent is the keeper. True in the copy."""
        if not SNAPSHOTS_SUPPORTED:
            raise CannotCopy("snapshots, forks and transactions of a worker need Linux; a checkpoint does not")
        resources.flush_streams()
        self._is_forking = True
        # The user's code may collect its children, or have the kernel do it: not this one.
        kept = syscalls.set_signal(_SIGCHLD, _SIG_DFL)
        until = time.monotonic() + _REAP_TIMEOUT
        try:
            while True:
                try:
                    return self._double_fork()
                except OSError as problem:
                    # One that was dropped a moment ago counts until the keeper has buried it.
                    if problem.errno != errno.EAGAIN or time.monotonic() > until:
                        raise CannotCopy(f"cannot copy the worker: {problem.strerror}") from problem
                    time.sleep(0.001)
        finally:
            self._is_forking = False
            if kept is not None:
                syscalls.set_signal(_SIGCHLD, kept)

    def _double_fork(self) -> bool:
        threads = threading.active_count() > 1
        middle = os.fork()
        if middle == 0:
            if threads:
                self.worker_loop.streams.replace_after_fork()
            self.worker_loop.channel.reset_after_fork()
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
            reset_id_prefix()
            return True
        _, status = os.waitpid(middle, 0)
        if status:
            number = os.waitstatus_to_exitcode(status)
            raise OSError(number, os.strerror(number))
        return False

    def _wait_until_resumed(self, point: str, sock: socket.socket) -> str:
        """Wait to be woken, leaving a copy that waits in turn. Returns the word with which it was woken."""
        import msgspec

        while True:
            payload = fd_messages.ControlReceiver(sock).receive()
            order = msgspec.msgpack.decode(payload) if payload else {}
            if not order:
                os._exit(0)
            if point.startswith("transaction:"):
                # One goes back there once.
                self.points.pop(point, None)
                break
            ours, theirs = socket.socketpair()
            try:
                copy = self._fork_detached()
            except CannotCopy:
                ours.close()
                theirs.close()
                sock.send(b"?")
                continue
            if not copy:
                theirs.close()
                self.points[point] = ours
                break
            ours.close()
            sock.close()
            sock = theirs
        self.worker_loop.channel.restore_unprocessed(order["unread"])
        self.announce_successor()
        sock.send(b"!")
        # Until the other has said its last word, the socket is still its own.
        sock.recv(1)
        sock.close()
        word: str = order["word"]
        return word

    def announce_successor(self) -> None:
        """Tell the keeper that this process is the worker of its token now."""
        self.handover_socket.send(f"{self.worker_loop.token} {os.getpid()}".encode())

    def _fork_session(self, message: SnapshotMessage) -> None:
        runtime = self.worker_loop
        fds, runtime.channel.fds = runtime.channel.fds, []
        if len(fds) != 3:
            problem = "a fork needs three descriptors"
            runtime.channel.send(
                ErrorMessage(execution_id=message.id, exception_type="ProtocolError", exception_message=problem)
            )
            return
        hazards = self.find_hazards()
        try:
            copy = self._fork_detached()
        except CannotCopy:
            for fd in fds:
                os.close(fd)
            raise
        if not copy:
            for fd in fds:
                os.close(fd)
            runtime.channel.send(SnapshotMessage(of=message.id, action="fork", hazards=hazards))
            return
        for sock in self.points.values():
            sock.close()
        self.points.clear()
        os.dup2(fds[0], runtime.channel.sock.fileno(), inheritable=False)
        os.dup2(fds[1], 1)
        os.dup2(fds[2], 2)
        for fd in fds:
            os.close(fd)
        runtime.channel.restore_unprocessed(b"")
        runtime.token = message.point
        self.announce_successor()
        runtime.channel.send(ReadyMessage(session_id=message.point))


def _count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1
