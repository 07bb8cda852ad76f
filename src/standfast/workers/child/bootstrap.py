"""Turn a fork of the supervisor into a worker: descriptors, environment, sandbox, and then the message loop."""

import builtins
import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import types
from typing import Any, NamedTuple, NoReturn

from standfast.workers.child import random_generators
from standfast.workers.child.channel import HostChannel
from standfast.workers.child.loop import WAKE_SIGNAL, WorkerLoop
from standfast.workers.child.sandbox import confinement, namespaces, syscalls
from standfast.workers.child.streams import StandardStreams
from standfast.workers.wire.control import SINGLE_THREAD_ENVIRONMENT, SandboxSpec, StartWorkerCommand
from standfast.workers.wire.messages import ErrorMessage, reset_id_prefix

__all__ = ["WAKE_SIGNAL", "SandboxContext", "main", "set_common_environment", "warm_up"]

_PROTOCOL_FD, _HANDOVER_FD = 3, 4
_RESET_SIGNALS = tuple(int(number) for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP))
_SIG_DFL = int(signal.SIG_DFL)


class SandboxContext(NamedTuple):
    """The sandbox that the supervisor has prepared for a worker."""

    spec: SandboxSpec
    readable: tuple[str, ...]
    directory: str
    proxy_port: int
    handover_socket: socket.socket


def main(context: SandboxContext, command: StartWorkerCommand, protocol: int, out: int, err: int) -> NoReturn:
    """Run the worker in a newly forked process. Never returns into the frames of the supervisor."""
    status = 72
    try:
        reset_id_prefix()
        reset_signals()
        handover_socket = arrange_descriptors(protocol, out, err, context.handover_socket)
        channel = HostChannel(socket.socket(fileno=_PROTOCOL_FD), limit=command.settings.get("frame_limit", 16 << 20))
        worker_loop = WorkerLoop(
            channel, handover_socket, command, namespace=create_main_module(), streams=StandardStreams(channel.flush)
        )
        worker_loop.streams.install()
        random_generators.seed_anew()
        gc.enable()
        try:
            set_worker_environment(context, command)
            worker_loop.notes = confinement.confine_process(
                context.spec, context.directory, context.readable, processes_counted=command.counted
            )
        except Exception as problem:  # noqa: BLE001 - no code may run outside of the sandbox; the host gets the reason
            channel.send(ErrorMessage(exception_type=type(problem).__name__, exception_message=str(problem)))
            os._exit(71)
        status = worker_loop.serve()
    except BaseException:  # noqa: BLE001 - nothing may unwind into the supervisor
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _RESET_SIGNALS:
        syscalls.set_signal(number, _SIG_DFL)
    os.setsid()
    if sys.platform.startswith("linux"):
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def arrange_descriptors(protocol: int, out: int, err: int, handover_socket: socket.socket) -> socket.socket:
    """Put the standard streams on 0-2 and the worker's own sockets on 3 and 4 (closed on exec), and close the rest."""
    # Moved to high numbers first, so that none is overwritten before it is in its place.
    copies = [os.dup(fd) for fd in (protocol, out, err, handover_socket.fileno())]
    moved = [fd if fd > 8 else _duplicate_high(fd) for fd in copies]
    null = _duplicate_high(os.open(os.devnull, os.O_RDONLY))
    os.dup2(null, 0)
    os.dup2(moved[1], 1)
    os.dup2(moved[2], 2)
    handover_socket.detach()
    os.dup2(moved[0], _PROTOCOL_FD, inheritable=False)
    os.dup2(moved[3], _HANDOVER_FD, inheritable=False)
    os.closerange(5, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 20)))
    return socket.socket(fileno=_HANDOVER_FD)


def _duplicate_high(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


def set_common_environment(directory: str) -> None:
    """Set the environment that all workers of a fork server share. Nothing is taken from the host."""
    os.environ.clear()
    os.environ.update(
        {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "MPLBACKEND": "agg",
            # Many workers share the machine, and a snapshot copies only one thread.
            **SINGLE_THREAD_ENVIRONMENT,
            **_home_variables(directory),
        }
    )


def _home_variables(directory: str) -> dict[str, str]:
    return {"HOME": f"{directory}/home", "TMPDIR": f"{directory}/tmp", "MPLCONFIGDIR": f"{directory}/tmp"}


def set_worker_environment(context: SandboxContext, command: StartWorkerCommand) -> None:
    """Set the environment of this worker: its directories, its proxy, and the variables of its session."""
    base = context.directory
    variables = {} if base == namespaces.SESSION_DIRECTORY else _home_variables(base)
    if context.proxy_port:
        address = f"http://127.0.0.1:{context.proxy_port}"
        variables |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    for name, value in (variables | command.environment).items():
        os.environ[name] = value
    work = command.settings.get("workdir") or f"{base}/work"
    os.chdir(work)
    os.umask(0o077)
    sys.argv = [""]
    sys.path.insert(0, work)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile).update(tempdir=None, _name_sequence=None)


def create_main_module() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module.__dict__


def warm_up() -> None:
    """Run one cell and one failing cell in the fork server, so that workers inherit the loaded code."""
    from standfast.workers.child.cells import CellRunner, format_traceback

    cells = CellRunner({"__builtins__": builtins, "__name__": "__main__"})
    cells.run("x = [1]; x", filename="<warm-up>", capture_source=True)
    try:
        cells.run("1/0", filename="<warm-up>", capture_source=True)
    except ZeroDivisionError as error:
        format_traceback(error, limit=1000)
