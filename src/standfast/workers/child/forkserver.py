"""The fork server: a single-threaded process that forks workers on command.

It is started by exec with a clean environment, not forked from the application, so that no worker inherits memory of
the application. It preloads modules, enters the sandbox that its workers share, and waits for commands.
"""

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from standfast.workers.child import bootstrap, channel, resources, supervisor
from standfast.workers.child.sandbox import confinement, namespaces, seccomp
from standfast.workers.wire.control import (
    ForkCommand,
    ForkReply,
    IdleCommand,
    ServerReady,
    ServerStartFailed,
    StartServerCommand,
)

_setup_decoder = msgspec.msgpack.Decoder(StartServerCommand)
_DESCRIPTORS_OF_A_FORK = 4
_command_decoder: msgspec.msgpack.Decoder[ForkCommand | IdleCommand] = msgspec.msgpack.Decoder(
    ForkCommand | IdleCommand
)


def main(fd: int) -> NoReturn:
    """Serve the host on the socket ``fd`` until the host closes it."""
    try:
        run_server(socket.socket(fileno=fd))
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def run_server(sock: socket.socket) -> NoReturn:
    """Prepare what all workers share, report it to the host, and serve."""
    receiver = channel.ControlReceiver(sock)
    payload = receiver.receive()
    if payload is None:
        os._exit(0)
    command = _setup_decoder.decode(payload)
    host_pidfd = _open_host_pidfd(command.host_pid)
    is_preloaded = False
    try:
        sandbox = namespaces.SandboxBuilder(command.sandbox)
        with use_temporary_home() if command.preload else contextlib.nullcontext():
            preloaded, failed = preload(command.preload, command.import_path)
        is_preloaded = True
        confinement.check_availability(command.sandbox)
        sandbox.prepare_server()
        sandbox.check_worker_namespaces()
    except Exception as problem:  # noqa: BLE001 - every error is reported to the host
        text = f"{type(problem).__name__}: {problem}"
        channel.send_control(sock, ServerStartFailed(error=text, sandboxed=not is_preloaded))
        os._exit(1)
    bootstrap.warm_up()
    bootstrap.set_common_environment(namespaces.SESSION_DIRECTORY)
    if command.sandbox.level != "plain":
        families = confinement.get_socket_families(command.sandbox)
        seccomp.assemble_program(families, namespaces=sandbox.uses_namespaces)
    gc.collect()
    gc.disable()
    gc.freeze()
    ready = ServerReady(
        pid=os.getpid(),
        level=command.sandbox.level,
        uid=os.geteuid(),
        preloaded=preloaded,
        failed=failed,
        python=sys.version.split()[0],
        notes=tuple(sandbox.notes),
    )
    channel.send_control(sock, ready)
    serve(sandbox, receiver, host_pidfd, ready)


@contextlib.contextmanager
def use_temporary_home() -> Iterator[None]:
    """Set a temporary home directory, so that preloaded modules do not write caches into that of the user."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="standfast-preload-") as home:
        os.environ |= {"HOME": home, "XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home, "MPLCONFIGDIR": home}
        yield


def preload(modules: tuple[str, ...], path: tuple[str, ...]) -> tuple[dict[str, float], dict[str, str]]:
    """Import modules for all workers. Raises RuntimeError for one that starts a thread, which a fork would not copy."""
    sys.path[:0] = [entry for entry in path if entry not in sys.path]
    durations: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name in modules:
        started = time.perf_counter()
        try:
            importlib.import_module(name)
        except Exception as problem:  # noqa: BLE001 - reported; the server works without the module
            failed[name] = f"{type(problem).__name__}: {problem}"
            continue
        durations[name] = round((time.perf_counter() - started) * 1000, 3)
        if resources.count_threads() > 1:
            raise RuntimeError(f"module {name!r} cannot be preloaded: importing it starts a thread")
    return durations, failed


def serve(
    sandbox: namespaces.SandboxBuilder, receiver: channel.ControlReceiver, host_pidfd: int, ready_message: ServerReady
) -> NoReturn:
    poll = select.poll()
    poll.register(receiver.sock, select.POLLIN)
    if host_pidfd >= 0:
        poll.register(host_pidfd, select.POLLIN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pause = 0.5 if host_pidfd < 0 else 5.0
    deadline = float("inf")
    while True:
        if not receiver.has_pending:
            ready = dict(poll.poll(1000 * max(0.0, min(pause, deadline - time.monotonic()))))
            reap_supervisors()
            if host_pidfd in ready or (host_pidfd < 0 and os.getppid() == 1 and not sandbox.uses_namespaces):
                os._exit(0)
            if receiver.sock.fileno() not in ready:
                if time.monotonic() >= deadline:
                    os._exit(0)
                continue
        payload = receiver.receive()
        if payload is None:
            os._exit(0)
        command = _command_decoder.decode(payload)
        if isinstance(command, IdleCommand):
            if command.seconds is None:
                deadline = float("inf")
                channel.send_control(receiver.sock, ready_message)
            else:
                # No reply: it would lie unread in the socket, and the next user would take it for an answer.
                deadline = time.monotonic() + command.seconds
        else:
            handle_fork(sandbox, receiver, command, host_pidfd)


def handle_fork(
    sandbox: namespaces.SandboxBuilder, receiver: channel.ControlReceiver, command: ForkCommand, host_pidfd: int
) -> None:
    """Fork a supervisor and reply. An error is reported to the host, and the workers that run are not affected."""
    fds = receiver.take_fds()
    try:
        if len(fds) != _DESCRIPTORS_OF_A_FORK:
            raise OSError(errno.EMFILE, "the fork server has no free descriptors")
        pid = sandbox.fork_supervisor()
        if pid == 0:
            receiver.sock.close()
            supervisor.main(sandbox, fds, host_pidfd)
        pidfd = _open_pidfd(pid)
        channel.send_control(receiver.sock, ForkReply(id=command.id, pid=pid), (pidfd,) if pidfd >= 0 else ())
        if pidfd >= 0:
            os.close(pidfd)
    except OSError as problem:
        channel.send_control(receiver.sock, ForkReply(id=command.id, error=str(problem)))
    for fd in fds:
        os.close(fd)


def _open_pidfd(pid: int) -> int:
    """Return a pidfd of a supervisor, or -1 where the system has none. Kills the supervisor if that fails."""
    if not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise


def reap_supervisors() -> None:
    """Reap supervisors that have exited. They have reported the exit of their workers to the host themselves."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _open_host_pidfd(pid: int) -> int:
    """Open a pidfd that becomes readable when the host dies, even if a fork of the host keeps our socket open."""
    try:
        return os.pidfd_open(pid) if pid else -1
    except (OSError, AttributeError):
        return -1
