"""The supervisor: the parent process of a worker and of its forks, and pid 1 of their process namespace.

It sets up the sandbox, forks the worker, reports the exit of each worker to the host, signals or kills workers on
command, and kills all descendants when it exits. It runs no user code. The only thing it reads from user code is
the pid of a successor, which it checks.
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

from standfast.workers.child import bootstrap, channel, cleanup, resources
from standfast.workers.child.sandbox import namespaces, syscalls
from standfast.workers.child.snapshots import CAPTURE_TOKEN, SNAPSHOT_TOKEN
from standfast.workers.wire.control import (
    EndCaptureCommand,
    EndProcessesCommand,
    KillCommand,
    ProcessesEnded,
    SandboxFailed,
    SandboxReady,
    SignalProcessesCommand,
    StartWorkerCommand,
    WakeCommand,
    WorkerExited,
)

Command = WakeCommand | SignalProcessesCommand | KillCommand | EndProcessesCommand | EndCaptureCommand
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)

_start_decoder = msgspec.msgpack.Decoder(StartWorkerCommand)

_SIGCHLD, _SIGTERM, _SIG_IGN = int(signal.SIGCHLD), int(signal.SIGTERM), int(signal.SIG_IGN)
_MAX_SNAPSHOTS = 4096
_MAX_CAPTURES = 256
_IGNORED_SIGNALS = (int(signal.SIGINT), int(signal.SIGHUP))
# Not SOCK_DGRAM where there is a choice: user code could send datagrams to any socket with it.
_HANDOVER_KIND = socket.SOCK_SEQPACKET if sys.platform.startswith("linux") else socket.SOCK_DGRAM
# More than the socket can hold, so that all that was sent before a worker exited is read.
_MAX_HANDOVERS = 1024
_HOST_EXIT_TIMEOUT_MS = 2000


def main(sandbox: namespaces.SandboxBuilder, fds: list[int], host_pidfd: int) -> NoReturn:
    """Run the supervisor in a newly forked process. Never returns into the frames of the fork server."""
    try:
        protocol, out, err, host_fd = fds
        Supervisor(sandbox, socket.socket(fileno=host_fd), host_pidfd).run(protocol, out, err)
    except BaseException:  # noqa: BLE001 - nothing may unwind into the fork server
        traceback.print_exc()
        os._exit(70)


class Supervisor:
    """Supervises the workers of one session and of its forks."""

    def __init__(self, sandbox: namespaces.SandboxBuilder, host_socket: socket.socket, host_pidfd: int) -> None:
        self.sandbox, self.host_socket, self.host_pidfd = sandbox, host_socket, host_pidfd
        self.host_directory = ""
        self.receiver = channel.ControlReceiver(host_socket)
        self.worker_tokens: dict[int, str] = {}
        self.snapshot_pids: list[int] = []
        self.capture_pids: dict[str, int] = {}
        self.ended_captures: list[str] = []
        self.handover_socket, self._worker_handover_socket = socket.socketpair(socket.AF_UNIX, _HANDOVER_KIND)

    def run(self, protocol: int, out: int, err: int) -> NoReturn:
        if sys.platform.startswith("linux"):
            # Without a process namespace, the supervisor has to kill its descendants itself, so it handles SIGTERM.
            death_signal = signal.SIGKILL if self.sandbox.uses_namespaces else signal.SIGTERM
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, death_signal)
            if not self.sandbox.uses_namespaces:
                syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        try:
            listener = self.sandbox.enter_worker_namespaces()
            command = self._receive_start_command()
            self.host_directory = "" if self.sandbox.uses_namespaces else command.directory
            directory = self.host_directory or namespaces.SESSION_DIRECTORY
            directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except Exception as problem:  # noqa: BLE001 - every error is reported to the host
            with contextlib.suppress(OSError):
                channel.send_control(self.host_socket, SandboxFailed(error=f"{type(problem).__name__}: {problem}"))
            os._exit(71)
        self._install_signal_handlers()
        pid = os.fork()
        if pid == 0:
            self._run_worker(command, (protocol, out, err), directory, listener)
        self.worker_tokens[pid] = command.token
        for fd in (protocol, out, err):
            os.close(fd)
        self._worker_handover_socket.close()
        try:
            self._report_ready(directory, directory_fd, listener)
            self._run_event_loop()
        except (BrokenPipeError, ConnectionResetError):
            # The host has cancelled the start.
            self._kill_all_and_exit()
        except BaseException:  # noqa: BLE001 - without the supervisor, nothing would end the processes of user code
            traceback.print_exc()
            self._kill_all_and_exit(70)

    def _receive_start_command(self) -> StartWorkerCommand:
        """Wait for the command, and enter the control groups whose lists of members come with it."""
        payload = self.receiver.receive()
        if payload is None:
            os._exit(0)
        for members_fd in self.receiver.take_fds():
            try:
                os.write(members_fd, b"0")
            finally:
                os.close(members_fd)
        return _start_decoder.decode(payload)

    def _report_ready(self, directory: str, directory_fd: int, listener: socket.socket | None) -> None:
        fds = [directory_fd]
        port = 0
        if listener is not None:
            fds.append(listener.fileno())
            port = listener.getsockname()[1]
        ready = SandboxReady(level=self.sandbox.spec.level, directory=directory, proxy_port=port)
        channel.send_control(self.host_socket, ready, tuple(fds))
        os.close(directory_fd)
        if listener is not None:
            listener.close()

    def _run_worker(
        self,
        command: StartWorkerCommand,
        fds: tuple[int, int, int],
        directory: str,
        listener: socket.socket | None,
    ) -> NoReturn:
        port = listener.getsockname()[1] if listener is not None else 0
        context = bootstrap.SandboxContext(
            spec=self.sandbox.spec,
            readable=self.sandbox.readable,
            directory=directory,
            proxy_port=port,
            handover_socket=self._worker_handover_socket,
        )
        bootstrap.main(context, command, *fds)

    def _install_signal_handlers(self) -> None:
        syscalls.set_signal(_SIGCHLD, lambda *_: None)
        if not self.sandbox.uses_namespaces:
            # As pid 1 it cannot be ended by a signal from inside, unless it handles that signal.
            syscalls.set_signal(_SIGTERM, lambda *_: self._exit_without_host())
        for number in _IGNORED_SIGNALS:
            syscalls.set_signal(number, _SIG_IGN)
        # Set before the worker is forked, so that an early wake signal does not kill the worker.
        syscalls.set_signal(bootstrap.WAKE_SIGNAL, lambda *_: None)

    def _run_event_loop(self) -> NoReturn:
        read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        receiver = self.receiver
        poll = select.poll()
        for fd in (self.host_socket.fileno(), self.handover_socket.fileno(), read):
            poll.register(fd, select.POLLIN)
        self._reap_workers()
        while True:
            ready = dict(poll.poll())
            if ready.get(self.handover_socket.fileno(), 0) & select.POLLHUP:
                # User code has closed the other end everywhere.
                poll.unregister(self.handover_socket.fileno())
            if read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(read, 4096)
            if self.handover_socket.fileno() in ready or read in ready:
                self._reap_workers()
            if self.host_socket.fileno() in ready:
                self._handle_command(receiver)
                while receiver.has_pending:
                    self._handle_command(receiver)

    def _handle_command(self, receiver: channel.ControlReceiver) -> None:
        try:
            payload = receiver.receive()
        except OSError:
            payload = None
        if payload is None:
            self._exit_without_host()
        command = _command_decoder.decode(payload)
        if isinstance(command, EndProcessesCommand):
            self._end_processes(command)
            return
        if isinstance(command, SignalProcessesCommand):
            self._signal_processes(command)
            return
        if isinstance(command, EndCaptureCommand):
            self._end_capture(command)
            return
        number = signal.SIGKILL if isinstance(command, KillCommand) else bootstrap.WAKE_SIGNAL
        for pid, token in list(self.worker_tokens.items()):
            if command.token in (None, token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if isinstance(command, KillCommand) and command.token is None:
            self._reap_workers()
            self._kill_all_and_exit()

    def _end_processes(self, command: EndProcessesCommand) -> None:
        """End what user code has started, and report it."""
        self._reap_workers()
        # User code can announce its own processes as snapshots, but no more of them than there are snapshots.
        captures = (pid for capture_id, pid in self.capture_pids.items() if capture_id in command.captures)
        keep = {*self.worker_tokens, *self.snapshot_pids[: command.snapshots], *captures}
        # The processes of a fork of the session must not end, and orphans belong to either of the two.
        is_only_worker = len(self.worker_tokens) == 1
        roots = (
            [os.getpid()]
            if is_only_worker
            else [p for p, token in self.worker_tokens.items() if token == command.token]
        )
        for root in roots:
            can_stop_all = self.sandbox.uses_namespaces and is_only_worker
            cleanup.end_processes(root, keep=keep, reap=self._reap_workers, can_stop_all=can_stop_all)
        with contextlib.suppress(OSError):
            channel.send_control(self.host_socket, ProcessesEnded(token=command.token))

    def _end_capture(self, command: EndCaptureCommand) -> None:
        self._reap_workers()
        self.ended_captures = [*self.ended_captures, command.capture_id][-_MAX_CAPTURES:]
        if command.capture_id in self.capture_pids:
            cleanup.signal_processes([self.capture_pids[command.capture_id]], signal.SIGKILL)

    def _signal_processes(self, command: SignalProcessesCommand) -> None:
        for pid, token in self.worker_tokens.items():
            if token == command.token:
                cleanup.signal_processes(cleanup.list_descendants(pid), command.number)

    def _read_handovers(self) -> None:
        """Read which processes have replaced the workers of their tokens, after a rollback or a fork.

        User code can write here too: anything, and faster than it is read.
        """
        for _ in range(_MAX_HANDOVERS):
            try:
                announcement = self.handover_socket.recv(256, socket.MSG_DONTWAIT)
            except OSError:
                return
            if not announcement:
                return
            token, _, number = announcement.decode("utf-8", "replace").partition(" ")
            if not number.isdecimal() or not _is_child(int(number)):
                # User code must not make the supervisor signal other processes.
                continue
            if token == SNAPSHOT_TOKEN:
                self.snapshot_pids = [*self.snapshot_pids, int(number)][-_MAX_SNAPSHOTS:]
                continue
            if token.startswith(CAPTURE_TOKEN):
                self._add_capture(token.removeprefix(CAPTURE_TOKEN), int(number))
                continue
            if int(number) in self.snapshot_pids:
                self.snapshot_pids.remove(int(number))
            for pid, name in list(self.worker_tokens.items()):
                if name == token:
                    del self.worker_tokens[pid]
            self.worker_tokens[int(number)] = token

    def _add_capture(self, capture_id: str, pid: int) -> None:
        if capture_id in self.ended_captures:
            # The host has cancelled it before it was announced.
            cleanup.signal_processes([pid], signal.SIGKILL)
        elif len(self.capture_pids) < _MAX_CAPTURES:
            self.capture_pids.setdefault(capture_id, pid)

    def _reap_workers(self) -> None:
        self._read_handovers()
        while True:
            try:
                pid, status, rusage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            # A worker exits only after its successor has announced itself, so read the announcements again.
            self._read_handovers()
            if pid in self.snapshot_pids:
                self.snapshot_pids.remove(pid)
            self.capture_pids = {name: number for name, number in self.capture_pids.items() if number != pid}
            token = self.worker_tokens.pop(pid, None)
            if token is not None:
                cpu = rusage.ru_utime + rusage.ru_stime
                with contextlib.suppress(OSError):
                    channel.send_control(
                        self.host_socket,
                        WorkerExited(
                            token=token, status=status, cpu=cpu, peak_rss=resources.peak_rss_from_rusage(rusage)
                        ),
                    )
        if not self.worker_tokens:
            self._kill_all_and_exit()

    def _kill_all_and_exit(self, status: int = 0) -> NoReturn:
        """Kill every descendant and exit. When the supervisor is pid 1, the kernel kills them."""
        if not self.sandbox.uses_namespaces:
            for pid in self.worker_tokens:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            cleanup.kill_descendants()
        os._exit(status)

    def _exit_without_host(self) -> NoReturn:
        """Kill every descendant, remove the session's directory if the host is dead and cannot do it, and exit."""
        syscalls.set_signal(_SIGTERM, _SIG_IGN)  # it would begin again in the middle
        if self.host_directory and self.host_pidfd >= 0:
            cleanup.kill_descendants()
            poll = select.poll()
            poll.register(self.host_pidfd, select.POLLIN)
            if poll.poll(_HOST_EXIT_TIMEOUT_MS):
                cleanup.remove_tree(self.host_directory)
        self._kill_all_and_exit()


def _is_child(pid: int) -> bool:
    if not sys.platform.startswith("linux"):  # Workers have no successors there.
        return False
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, OverflowError, OSError):
        return False
    return True
