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

from standfast.workers.child import bootstrap, control, resources
from standfast.workers.child.sandbox import namespaces, syscalls
from standfast.workers.wire.control import (
    ForkCommand,
    KillCommand,
    SandboxFailed,
    SandboxReady,
    WakeCommand,
    WorkerExited,
)

_command_decoder: msgspec.msgpack.Decoder[WakeCommand | KillCommand] = msgspec.msgpack.Decoder(
    WakeCommand | KillCommand
)

_SIGCHLD, _SIGTERM, _SIG_IGN = int(signal.SIGCHLD), int(signal.SIGTERM), int(signal.SIG_IGN)
_IGNORED_SIGNALS = (int(signal.SIGINT), int(signal.SIGHUP))


def main(sandbox: namespaces.SandboxBuilder, command: ForkCommand, fds: list[int]) -> NoReturn:
    """Run the supervisor in a newly forked process. Never returns into the frames of the fork server."""
    try:
        protocol, out, err, host_fd = fds
        Supervisor(sandbox, command, socket.socket(fileno=host_fd)).run(protocol, out, err)
    except BaseException:  # noqa: BLE001 - nothing may unwind into the fork server
        traceback.print_exc()
        os._exit(70)


class Supervisor:
    """Supervises the workers of one session and of its forks."""

    def __init__(self, sandbox: namespaces.SandboxBuilder, command: ForkCommand, host_socket: socket.socket) -> None:
        self.sandbox, self.command, self.host_socket = sandbox, command, host_socket
        self.receiver = control.ControlReceiver(host_socket)
        self.worker_tokens: dict[int, str] = {}
        self.handover_socket, self._worker_handover_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def run(self, protocol: int, out: int, err: int) -> NoReturn:
        if sys.platform.startswith("linux"):
            # Without a process namespace, the supervisor has to kill its descendants itself, so it handles SIGTERM.
            death_signal = signal.SIGKILL if self.sandbox.uses_namespaces else signal.SIGTERM
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, death_signal)
            if not self.sandbox.uses_namespaces:
                syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        try:
            if self.command.gated and self.receiver.receive() is None:
                os._exit(0)
            listener = self.sandbox.enter_worker_namespaces()
            directory = self._get_session_directory()
            directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except Exception as problem:  # noqa: BLE001 - every error is reported to the host
            with contextlib.suppress(OSError):
                control.send_control(self.host_socket, SandboxFailed(error=f"{type(problem).__name__}: {problem}"))
            os._exit(71)
        self._install_signal_handlers()
        pid = os.fork()
        if pid == 0:
            self._run_worker(protocol, out, err, directory, listener)
        self.worker_tokens[pid] = self.command.token
        for fd in (protocol, out, err):
            os.close(fd)
        self._worker_handover_socket.close()
        try:
            self._report_ready(directory, directory_fd, listener)
        except (BrokenPipeError, ConnectionResetError):
            # The host has cancelled the start.
            self._kill_all_and_exit()
        self._run_event_loop()

    def _get_session_directory(self) -> str:
        if self.sandbox.uses_namespaces:
            return namespaces.SESSION_DIRECTORY
        return self.command.directory

    def _report_ready(self, directory: str, directory_fd: int, listener: socket.socket | None) -> None:
        fds = [directory_fd]
        port = 0
        if listener is not None:
            fds.append(listener.fileno())
            port = listener.getsockname()[1]
        ready = SandboxReady(level=self.sandbox.spec.level, directory=directory, proxy_port=port)
        control.send_control(self.host_socket, ready, tuple(fds))
        os.close(directory_fd)
        if listener is not None:
            listener.close()

    def _run_worker(
        self, protocol: int, out: int, err: int, directory: str, listener: socket.socket | None
    ) -> NoReturn:
        port = listener.getsockname()[1] if listener is not None else 0
        context = bootstrap.SandboxContext(
            spec=self.sandbox.spec,
            readable=self.sandbox.readable,
            directory=directory,
            proxy_port=port,
            handover_socket=self._worker_handover_socket,
        )
        bootstrap.main(context, self.command, protocol, out, err)

    def _install_signal_handlers(self) -> None:
        syscalls.set_signal(_SIGCHLD, lambda *_: None)
        syscalls.set_signal(_SIGTERM, lambda *_: self._kill_all_and_exit())
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
            if read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(read, 4096)
            if self.handover_socket.fileno() in ready or read in ready:
                self._reap_workers()
            if self.host_socket.fileno() in ready:
                self._handle_command(receiver)
                while receiver.has_pending:
                    self._handle_command(receiver)

    def _handle_command(self, receiver: control.ControlReceiver) -> None:
        try:
            payload = receiver.receive()
        except OSError:
            payload = None
        if payload is None:
            self._kill_all_and_exit()
        command = _command_decoder.decode(payload)
        number = signal.SIGKILL if isinstance(command, KillCommand) else bootstrap.WAKE_SIGNAL
        for pid, token in list(self.worker_tokens.items()):
            if command.token in (None, token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if isinstance(command, KillCommand) and command.token is None:
            self._reap_workers()
            self._kill_all_and_exit()

    def _read_handovers(self) -> None:
        """Read which processes have replaced the workers of their tokens, after a rollback or a fork."""
        while True:
            try:
                announcement = self.handover_socket.recv(256, socket.MSG_DONTWAIT).decode()
            except (BlockingIOError, OSError):
                return
            token, _, number = announcement.partition(" ")
            if not number.isdecimal() or not _is_child(int(number)):
                # User code can write here too, and must not make the supervisor signal other processes.
                continue
            for pid, name in list(self.worker_tokens.items()):
                if name == token:
                    del self.worker_tokens[pid]
            self.worker_tokens[int(number)] = token

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
            token = self.worker_tokens.pop(pid, None)
            if token is not None:
                cpu = rusage.ru_utime + rusage.ru_stime
                with contextlib.suppress(OSError):
                    control.send_control(
                        self.host_socket,
                        WorkerExited(
                            token=token, status=status, cpu=cpu, peak_rss=resources.peak_rss_from_rusage(rusage)
                        ),
                    )
        if not self.worker_tokens:
            self._kill_all_and_exit()

    def _kill_all_and_exit(self) -> NoReturn:
        """Kill every descendant and exit. When the supervisor is pid 1, the kernel kills them."""
        if not self.sandbox.uses_namespaces:
            for pid in self.worker_tokens:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            for _ in range(64):
                if not _kill_children():
                    break
        os._exit(0)


def _is_child(pid: int) -> bool:
    if not sys.platform.startswith("linux"):  # Workers have no successors there.
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
