"""A worker's birth: from a fork of the keeper to a locked-in process waiting for code."""

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

from standfast.workers.child.channel import HostChannel
from standfast.workers.child.loop import WAKE_SIGNAL, WorkerLoop
from standfast.workers.child.sandbox import namespaces, syscalls
from standfast.workers.child.streams import StandardStreams
from standfast.workers.wire.control import SINGLE_THREAD_ENVIRONMENT, ForkCommand, SandboxSpec
from standfast.workers.wire.messages import ErrorMessage, reset_id_prefix

__all__ = ["WAKE_SIGNAL", "SandboxContext", "main", "set_common_environment", "warm_up"]

_PROTOCOL_FD, _HANDOVER_FD = 3, 4
_RESET_SIGNALS = tuple(int(number) for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP))
_SIG_DFL = int(signal.SIG_DFL)


class SandboxContext(NamedTuple):
    """Where a worker lives, as its keeper built it."""

    spec: SandboxSpec
    readable: tuple[str, ...]
    directory: str
    proxy_port: int
    handover_socket: socket.socket


def main(context: SandboxContext, command: ForkCommand, protocol: int, out: int, err: int) -> NoReturn:
    """Runs in a freshly forked process; never returns into the keeper's frames."""
    status = 72
    try:
        reset_id_prefix()
        reset_signals()
        lineage = arrange_descriptors(protocol, out, err, context.handover_socket)
        post = HostChannel(socket.socket(fileno=_PROTOCOL_FD), limit=command.settings.get("frame_limit", 16 << 20))
        runtime = WorkerLoop(
            post, lineage, command, namespace=create_main_module(), streams=StandardStreams(post.flush)
        )
        runtime.streams.install()
        reseed_random()
        gc.enable()
        try:
            set_worker_environment(context, command)
            runtime.notes = namespaces.confine_process(
                context.spec, context.directory, context.readable, processes_counted=command.counted
            )
        except Exception as problem:  # noqa: BLE001 - unlocked, nothing may run; the host must hear why
            post.send(ErrorMessage(exception_type=type(problem).__name__, exception_message=str(problem)))
            os._exit(71)
        status = runtime.serve()
    except BaseException:  # noqa: BLE001 - nothing may unwind into the keeper
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
    """Standard streams on 0-2, ours on 3 and 4 and closed on exec, nothing else open."""
    high = [os.dup(fd) for fd in (protocol, out, err, handover_socket.fileno())]
    moved = [fd if fd > 8 else _duplicate_high(fd) for fd in high]
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
    """What all workers of a server have, set once there: nothing of the host's, and a home of one's own."""
    os.environ.clear()
    os.environ.update(
        {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "MPLBACKEND": "agg",
            # Many workers share the machine, and a snapshot copies one thread only.
            **SINGLE_THREAD_ENVIRONMENT,
            **_home_variables(directory),
        }
    )


def _home_variables(directory: str) -> dict[str, str]:
    return {"HOME": f"{directory}/home", "TMPDIR": f"{directory}/tmp", "MPLCONFIGDIR": f"{directory}/tmp"}


def set_worker_environment(context: SandboxContext, command: ForkCommand) -> None:
    """What is this worker's own: where it is at home, how it reaches the network, what its session gives."""
    base = context.directory
    given = {} if base == namespaces.SESSION_DIRECTORY else _home_variables(base)
    if context.proxy_port:
        address = f"http://127.0.0.1:{context.proxy_port}"
        given |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    for name, value in (given | command.environment).items():
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


def reseed_random() -> None:
    """A forked process must not repeat the random numbers of its siblings."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    # Asking numpy itself for it would import it.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def warm_up() -> None:
    """Go once through what every cell needs, so that workers inherit it warm."""
    from standfast.workers.child.cells import CellRunner, format_traceback

    cells = CellRunner({"__builtins__": builtins, "__name__": "__main__"})
    cells.run("x = [1]; x", filename="<rehearsal>", capture_source=True)
    try:
        cells.run("1/0", filename="<rehearsal>", capture_source=True)
    except ZeroDivisionError as error:
        format_traceback(error, limit=1000)
