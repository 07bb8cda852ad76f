"""The fork-server: one single-threaded process that forks workers on order.

Started by exec with a clean environment, never forked from the application, so that no worker inherits
the application's memory. It preloads modules, walls itself in, and waits.
"""

import contextlib
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

from standfast.workers.child import bootstrap, fd_messages, supervisor
from standfast.workers.child.sandbox import namespaces, seccomp
from standfast.workers.wire.control import ForkCommand, ForkReply, ServerReady, ServerStartFailed, StartServerCommand

_setup_decoder = msgspec.msgpack.Decoder(StartServerCommand)
_fork_decoder = msgspec.msgpack.Decoder(ForkCommand)


def main(fd: int) -> NoReturn:
    """Serve the host behind ``fd`` until it goes away."""
    try:
        run_server(socket.socket(fileno=fd))
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def run_server(sock: socket.socket) -> NoReturn:
    """Prepare what all workers share, and serve."""
    receiver = fd_messages.ControlReceiver(sock)
    payload = receiver.receive()
    if payload is None:
        os._exit(0)
    order = _setup_decoder.decode(payload)
    host = _open_host_pidfd(order.host_pid)
    try:
        site = namespaces.SandboxBuilder(order.jail)
        with use_temporary_home() if order.preload else contextlib.nullcontext():
            preloaded, failed = preload(order.preload, order.import_path)
        site.prepare_server()
    except Exception as problem:  # noqa: BLE001 - whatever it is, the host must hear of it
        fd_messages.send_control(sock, ServerStartFailed(error=f"{type(problem).__name__}: {problem}"))
        os._exit(1)
    bootstrap.warm_up()
    bootstrap.set_common_environment(namespaces.SESSION_DIRECTORY)
    if order.jail.level != "plain":
        seccomp.assemble_program(namespaces.get_socket_families(order.jail))
    gc.collect()
    gc.disable()
    gc.freeze()
    notes = tuple(site.notes)
    up = ServerReady(
        pid=os.getpid(),
        level=order.jail.level,
        uid=os.geteuid(),
        preloaded=preloaded,
        failed=failed,
        python=sys.version.split()[0],
        notes=notes,
    )
    fd_messages.send_control(sock, up)
    serve(site, receiver, host)


@contextlib.contextmanager
def use_temporary_home() -> Iterator[None]:
    """Modules that are imported keep caches; none of that belongs into the home of the host's user."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="standfast-preload-") as home:
        os.environ |= {"HOME": home, "XDG_CACHE_HOME": home, "XDG_CONFIG_HOME": home, "MPLCONFIGDIR": home}
        yield


def preload(modules: tuple[str, ...], path: tuple[str, ...]) -> tuple[dict[str, float], dict[str, str]]:
    """Import what workers will want. A module that starts a thread is reported: forking would break it."""
    sys.path[:0] = [entry for entry in path if entry not in sys.path]
    took: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name in modules:
        started = time.perf_counter()
        try:
            importlib.import_module(name)
        except Exception as problem:  # noqa: BLE001 - a broken module is the user's; the server goes on
            failed[name] = f"{type(problem).__name__}: {problem}"
            continue
        took[name] = round((time.perf_counter() - started) * 1000, 3)
        if count_threads() > 1:
            raise RuntimeError(f"preloading {name!r} started a thread; it cannot be preloaded")
    return took, failed


def count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def serve(sandbox: namespaces.SandboxBuilder, receiver: fd_messages.ControlReceiver, host_pidfd: int) -> NoReturn:
    poll = select.poll()
    poll.register(receiver.sock, select.POLLIN)
    if host_pidfd >= 0:
        poll.register(host_pidfd, select.POLLIN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        if not receiver.has_pending:
            ready = dict(poll.poll(500 if host_pidfd < 0 else 5000))
            reap_supervisors()
            if host_pidfd in ready or (host_pidfd < 0 and os.getppid() == 1 and not sandbox.uses_namespaces):
                os._exit(0)
            if receiver.sock.fileno() not in ready:
                continue
        payload = receiver.receive()
        if payload is None:
            os._exit(0)
        handle_fork(sandbox, receiver, _fork_decoder.decode(payload))


def handle_fork(
    sandbox: namespaces.SandboxBuilder, receiver: fd_messages.ControlReceiver, command: ForkCommand
) -> None:
    fds = receiver.take_fds()
    try:
        pid = sandbox.fork_supervisor()
    except OSError as problem:
        fd_messages.send_control(receiver.sock, ForkReply(id=command.id, error=str(problem)))
        pid = -1
    if pid == 0:
        receiver.sock.close()
        supervisor.main(sandbox, command, fds)
    if pid > 0:
        pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        fd_messages.send_control(receiver.sock, ForkReply(id=command.id, pid=pid), (pidfd,) if pidfd >= 0 else ())
        if pidfd >= 0:
            os.close(pidfd)
    for fd in fds:
        os.close(fd)


def reap_supervisors() -> None:
    """Collect dead keepers; their own word on how the worker ended has already reached the host."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _open_host_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the host dies, even if a fork of it keeps our socket open."""
    try:
        return os.pidfd_open(pid) if pid else -1
    except (OSError, AttributeError):
        return -1
