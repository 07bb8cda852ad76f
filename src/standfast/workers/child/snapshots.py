"""Snapshots of the worker: copies of the process, made by forking it between cells.

A copy is a process that waits for a command. For a rollback, the copy gets the sockets of all other copies and forks
a copy of itself, so that every snapshot remains; then it announces itself to the supervisor as the worker and takes
over the socket, and the process before it exits. Every copy is forked twice, so that the supervisor is its parent and
``wait()`` in user code does not see it.
"""

import contextlib
import errno
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from standfast.workers.child import channel, random_generators, resources
from standfast.workers.child.sandbox import syscalls
from standfast.workers.child.streams import flush_streams
from standfast.workers.wire.messages import ErrorMessage, ReadyMessage, SnapshotMessage, reset_id_prefix

if TYPE_CHECKING:
    from standfast.workers.child.loop import WorkerLoop


_FORK_TIMEOUT = 0.1
_REAP_TIMEOUT = 30.0
_PID = struct.Struct("=i")
SNAPSHOT_TOKEN = "snapshot"  # noqa: S105 - marks the announcement of a copy that waits
CAPTURE_TOKEN = "capture:"  # noqa: S105 - and of one that captures the workspace, with its id
_SIGCHLD, _SIG_DFL = int(signal.SIGCHLD), int(signal.SIG_DFL)


SNAPSHOTS_SUPPORTED = sys.platform.startswith("linux")
"""On other systems the supervisor cannot become the parent of a copy, and would not notice its exit."""


class Copy(NamedTuple):
    """A process that waits to take over, and the socket to it."""

    sock: socket.socket
    pid: int


class CannotCopy(OSError):
    """The process could not be copied, or a copy could not take over. The worker continues unchanged."""


class ProcessSnapshots:
    """Creates copies of the worker process and hands the session over to them."""

    def __init__(self, worker_loop: "WorkerLoop", handover_socket: socket.socket) -> None:
        self.worker_loop, self.handover_socket = worker_loop, handover_socket
        self.points: dict[str, Copy] = {}
        self.is_foreign_fork = False
        self._is_forking = False

    def handle_request(self, message: SnapshotMessage) -> None:
        """Handle a request of the host. After a rollback, the copy sends the reply."""
        send = self.worker_loop.channel.send
        if message.action == "take":
            resumed, request_id = self.take(message.point)
            if not resumed:
                send(SnapshotMessage(of=message.id, point=message.point, hazards=self.find_hazards()))
            elif request_id:
                send(SnapshotMessage(of=request_id, action="rollback", point=message.point))
        elif message.action == "fork":
            self._fork_session(message)
        elif message.point not in self.points:
            text = f"this worker has no snapshot {message.point!r}; it may have been dropped"
            send(ErrorMessage(execution_id=message.id, exception_type="NotFound", exception_message=text))
        elif message.action == "rollback":
            self.hand_over(message.point, request_id=message.id)
        else:
            self.drop(message.point)
            send(SnapshotMessage(of=message.id, action="drop", point=message.point))

    def take(self, point: str) -> tuple[bool, str]:
        """Create a copy. Returns (False, "") here, and (True, request_id) in the copy when it takes over."""
        ours, theirs = socket.socketpair()
        try:
            copy = self._fork_detached()
        except CannotCopy:
            ours.close()
            theirs.close()
            raise
        if not copy:
            theirs.close()
            self.points[point] = _receive_copy(ours)
            return False, ""
        ours.close()
        self._forget_points()
        return True, self._wait_until_resumed(point, theirs)

    def hand_over(self, point: str, *, request_id: str = "", before_exit: Callable[[], None] = lambda: None) -> None:
        """Let a copy take over and exit. Raises CannotCopy, and this process continues, when it cannot."""
        sock = self.points[point].sock
        flush_streams()
        unread = self.worker_loop.channel.unprocessed_data
        command = {"word": request_id, "unread": unread, "predecessor": os.getpid()}
        reply = b""
        with contextlib.suppress(OSError):
            _send_points(sock, {name: copy for name, copy in self.points.items() if name != point})
            channel.send_control(sock, command)
            reply = sock.recv(1)
        if reply != b"!":
            problem = "the limit of processes is reached; drop some snapshots" if reply else "its process has ended"
            raise CannotCopy(f"cannot roll back to the snapshot: {problem}")
        before_exit()
        self.worker_loop.channel.block_writes()
        with contextlib.suppress(OSError):
            sock.send(b".")
        os._exit(0)

    def drop(self, point: str) -> None:
        """End a copy. Returns when the supervisor has reaped it, since until then it counts as a process."""
        copy = self.points.pop(point)
        with copy.sock, contextlib.suppress(OSError):
            channel.send_control(copy.sock, {})
        _wait_until_reaped(copy.pid)

    def fork_capture(self, capture_id: str) -> bool:
        """Fork a copy that captures the workspace and exits. Returns True in the copy."""
        if not (self._fork_detached() if resources.count_threads() > 1 else self._fork_sibling()):
            return False
        self._forget_points()
        with contextlib.suppress(OSError):
            self.handover_socket.send(f"{CAPTURE_TOKEN}{capture_id} {os.getpid()}".encode())
        return True

    def find_hazards(self) -> tuple[str, ...]:
        """Return descriptions of what a fork does not copy."""
        hazards = []
        if threading.active_count() > 1 or resources.count_threads() > 1:
            hazards.append("threads: only the main thread is copied")
        with contextlib.suppress(OSError):
            targets = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
            own_sockets = 2 + len(self.points)
            if sum(target.startswith("socket:") for target in targets) > own_sockets:
                hazards.append("sockets: both copies share the same connections")
        with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
            if file.read().strip():
                hazards.append("child processes: they stay with the first copy")
        return tuple(hazards)

    def after_fork_in_child(self) -> None:
        """Runs in every forked child. Closes the protocol sockets in forks that user code makes."""
        self.worker_loop.cell_runner.forget_loop()
        if not self._is_forking:
            self.is_foreign_fork = True
            for fd in (self.worker_loop.channel.sock.fileno(), self.handover_socket.fileno()):
                with contextlib.suppress(OSError):
                    os.close(fd)
            self._forget_points()

    def _forget_points(self) -> None:
        """Close the sockets of the copies, in a process that does not own them."""
        _close_points(self.points)
        self.points.clear()

    # -- copying the process

    def _fork_detached(self) -> bool:
        """Fork a copy whose parent is the supervisor. Returns True in the copy."""
        if not SNAPSHOTS_SUPPORTED:
            raise CannotCopy("snapshots, forks and transactions of a worker need Linux; checkpoints do not")
        flush_streams()
        self._is_forking = True
        # User code may reap child processes in a SIGCHLD handler or ignore the signal, which must not affect this one.
        previous = syscalls.set_signal(_SIGCHLD, _SIG_DFL)
        deadline = time.monotonic() + _FORK_TIMEOUT
        try:
            while True:
                try:
                    return self._double_fork()
                except OSError as problem:
                    # A copy that was just dropped counts against the limit until the supervisor has reaped it.
                    if problem.errno != errno.EAGAIN or time.monotonic() > deadline:
                        raise CannotCopy(f"cannot copy the worker: {problem.strerror}") from problem
                    time.sleep(0.001)
        finally:
            self._is_forking = False
            if previous is not None:
                syscalls.set_signal(_SIGCHLD, previous)

    def _fork_sibling(self) -> bool:
        """Fork a copy as a child of the supervisor directly, which takes half the time. Returns True in the copy."""
        if not SNAPSHOTS_SUPPORTED:
            raise CannotCopy("captures of a worker need Linux; checkpoints do not")
        flush_streams()
        supervisor, random_state, self._is_forking = os.getppid(), random_generators.get_python_state(), True
        try:
            is_copy = syscalls.fork_sibling() == 0
        except OSError as problem:
            if problem.errno == errno.EAGAIN:
                raise CannotCopy(f"cannot copy the worker: {problem.strerror}") from problem
            # The sandbox of another system may forbid it.
            return self._fork_detached()
        finally:
            self._is_forking = False
        if is_copy:
            self.worker_loop.channel.reset_after_fork()
            os.setsid()
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(0)
            reset_id_prefix()
            random_generators.set_python_state(random_state)
        return is_copy

    def _double_fork(self) -> bool:
        has_threads = threading.active_count() > 1
        random_state = random_generators.get_python_state()
        intermediate = os.fork()
        if intermediate == 0:
            if has_threads:
                self.worker_loop.streams.replace_after_fork()
            self.worker_loop.channel.reset_after_fork()
            intermediate = os.getpid()
            try:
                if os.fork():
                    os._exit(0)
            except OSError as problem:
                os._exit(problem.errno or 1)
            os.setsid()
            # The death signal must refer to the supervisor, so wait until the intermediate process has exited.
            while os.getppid() == intermediate:
                time.sleep(0.0001)
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            reset_id_prefix()
            random_generators.set_python_state(random_state)
            return True
        _, status = os.waitpid(intermediate, 0)
        if status:
            number = os.waitstatus_to_exitcode(status)
            raise OSError(number, os.strerror(number))
        return False

    def _wait_until_resumed(self, point: str, sock: socket.socket) -> str:
        """Wait for the command to take over, and then leave a copy that waits in turn. Returns the request id."""
        self._announce_copy(sock)
        receiver = channel.ControlReceiver(sock)
        while True:
            command, points = _receive_command(receiver)
            if not command:
                os._exit(0)
            if points is None:
                sock.send(b"?")
                continue
            if point.startswith("transaction:"):
                # A transaction is rolled back at most once, so no copy has to remain.
                self.points = points
                break
            ours, theirs = socket.socketpair()
            try:
                copy = self._fork_detached()
            except CannotCopy:
                _close_points(points)
                ours.close()
                theirs.close()
                sock.send(b"?")
                continue
            if not copy:
                theirs.close()
                self.points = {**points, point: _receive_copy(ours)}
                break
            _close_points(points)
            ours.close()
            sock.close()
            sock, receiver = theirs, channel.ControlReceiver(theirs)
            self._announce_copy(sock)
        self.worker_loop.channel.restore_unprocessed(command["unread"])
        self.announce_successor()
        sock.send(b"!")
        # The process before this one may still write to the protocol socket until it sends a byte here.
        sock.recv(1)
        sock.close()
        _wait_until_reaped(command["predecessor"])
        request_id: str = command["word"]
        return request_id

    def _announce_copy(self, sock: socket.socket) -> None:
        """Tell the supervisor and the process that made this copy that it exists."""
        with contextlib.suppress(OSError):
            self.handover_socket.send(f"{SNAPSHOT_TOKEN} {os.getpid()}".encode())
            sock.send(_PID.pack(os.getpid()))

    def announce_successor(self) -> None:
        """Tell the supervisor that this process is now the worker of its token."""
        self.handover_socket.send(f"{self.worker_loop.token} {os.getpid()}".encode())

    def _fork_session(self, message: SnapshotMessage) -> None:
        worker_loop, channel = self.worker_loop, self.worker_loop.channel
        fds, channel.fds = channel.fds, []
        if len(fds) != 3:
            text = f"a fork needs three descriptors, got {len(fds)}"
            channel.send(ErrorMessage(execution_id=message.id, exception_type="ProtocolError", exception_message=text))
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
            channel.send(SnapshotMessage(of=message.id, action="fork", hazards=hazards))
            return
        self._forget_points()
        os.dup2(fds[0], channel.sock.fileno(), inheritable=False)
        os.dup2(fds[1], 1)
        os.dup2(fds[2], 2)
        for fd in fds:
            os.close(fd)
        channel.restore_unprocessed(b"")
        worker_loop.token = message.point
        self.announce_successor()
        channel.send(ReadyMessage(session_id=message.point))


def _receive_copy(sock: socket.socket) -> Copy:
    """Wait until a new copy has announced itself. One that has died already has the pid 0."""
    data = b""
    with contextlib.suppress(OSError):
        data = sock.recv(_PID.size)
    return Copy(sock, _PID.unpack(data)[0] if len(data) == _PID.size else 0)


def _send_points(sock: socket.socket, points: dict[str, Copy]) -> None:
    """Give the sockets of copies to the process that takes over, a few at a time."""
    names = list(points)
    for start in range(0, len(names), channel.MAX_DESCRIPTORS):
        batch = {name: points[name] for name in names[start : start + channel.MAX_DESCRIPTORS]}
        fds = tuple(copy.sock.fileno() for copy in batch.values())
        channel.send_control(sock, {"points": [(name, copy.pid) for name, copy in batch.items()]}, fds)


def _receive_command(receiver: channel.ControlReceiver) -> tuple[dict[str, Any], dict[str, Copy] | None]:
    """Wait for the command to take over. Returns it with the other copies, or None if there are too many to open.

    An empty command means that this copy was dropped.
    """
    import msgspec

    announced: list[tuple[str, int]] = []
    while True:
        payload = receiver.receive()
        command = msgspec.msgpack.decode(payload) if payload else {}
        if "points" not in command:
            break
        announced += command["points"]
    fds = receiver.take_fds()
    if len(fds) != len(announced):
        for fd in fds:
            os.close(fd)
        return command, None
    return command, {name: Copy(socket.socket(fileno=fd), pid) for (name, pid), fd in zip(announced, fds, strict=True)}


def _close_points(points: dict[str, Copy]) -> None:
    for copy in points.values():
        copy.sock.close()


def _wait_until_reaped(pid: int) -> None:
    """Wait until a process that is about to exit no longer counts as a process."""
    deadline = time.monotonic() + _REAP_TIMEOUT
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.0005)


def _is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
