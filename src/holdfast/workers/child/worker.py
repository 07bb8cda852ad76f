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

from holdfast.workers.child import syscalls, walls
from holdfast.workers.child.post import Post
from holdfast.workers.child.runtime import DOORBELL, Runtime
from holdfast.workers.child.streams import Streams
from holdfast.workers.wire.messages import ErrorMessage, fresh_origin
from holdfast.workers.wire.orders import ONE_THREAD, ForkOrder, Jail

__all__ = ["DOORBELL", "Place", "common_environment", "main", "rehearse"]

_PROTOCOL, _LINEAGE = 3, 4
_DEFAULTED = tuple(int(number) for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP))
_DEFAULT = int(signal.SIG_DFL)


class Place(NamedTuple):
    """Where a worker lives, as its keeper built it."""

    jail: Jail
    readable: tuple[str, ...]
    directory: str
    proxy_port: int
    lineage: socket.socket


def main(place: Place, order: ForkOrder, protocol: int, out: int, err: int) -> NoReturn:
    """Runs in a freshly forked process; never returns into the keeper's frames."""
    status = 72
    try:
        fresh_origin()
        own_signals()
        lineage = arrange_descriptors(protocol, out, err, place.lineage)
        post = Post(socket.socket(fileno=_PROTOCOL), limit=order.settings.get("frame_limit", 16 << 20))
        runtime = Runtime(post, lineage, order, namespace=fresh_main(), streams=Streams(post.release))
        runtime.streams.install()
        fresh_randomness()
        gc.enable()
        try:
            environment(place, order)
            runtime.notes = walls.lock(place.jail, place.directory, place.readable, counted=order.counted)
        except Exception as problem:  # noqa: BLE001 - unlocked, nothing may run; the host must hear why
            post.send(ErrorMessage(exception_type=type(problem).__name__, exception_message=str(problem)))
            os._exit(71)
        status = runtime.serve()
    except BaseException:  # noqa: BLE001 - nothing may unwind into the keeper
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def own_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _DEFAULTED:
        syscalls.set_signal(number, _DEFAULT)
    os.setsid()
    if sys.platform.startswith("linux"):
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


def arrange_descriptors(protocol: int, out: int, err: int, lineage: socket.socket) -> socket.socket:
    """Standard streams on 0-2, ours on 3 and 4 and closed on exec, nothing else open."""
    high = [os.dup(fd) for fd in (protocol, out, err, lineage.fileno())]
    moved = [fd if fd > 8 else _above(fd) for fd in high]
    null = _above(os.open(os.devnull, os.O_RDONLY))
    os.dup2(null, 0)
    os.dup2(moved[1], 1)
    os.dup2(moved[2], 2)
    lineage.detach()
    os.dup2(moved[0], _PROTOCOL, inheritable=False)
    os.dup2(moved[3], _LINEAGE, inheritable=False)
    os.closerange(5, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 20)))
    return socket.socket(fileno=_LINEAGE)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


def common_environment(directory: str) -> None:
    """What all workers of a server have, set once there: nothing of the host's, and a home of one's own."""
    os.environ.clear()
    os.environ.update(
        {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "MPLBACKEND": "agg",
            # Many workers share the machine, and a snapshot copies one thread only.
            **ONE_THREAD,
            **_homes(directory),
        }
    )


def _homes(directory: str) -> dict[str, str]:
    return {"HOME": f"{directory}/home", "TMPDIR": f"{directory}/tmp", "MPLCONFIGDIR": f"{directory}/tmp"}


def environment(place: Place, order: ForkOrder) -> None:
    """What is this worker's own: where it is at home, how it reaches the network, what its session gives."""
    base = place.directory
    given = {} if base == walls.SESSION_DIRECTORY else _homes(base)
    if place.proxy_port:
        address = f"http://127.0.0.1:{place.proxy_port}"
        given |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    for name, value in (given | order.environment).items():
        os.environ[name] = value
    work = order.settings.get("workdir") or f"{base}/work"
    os.chdir(work)
    os.umask(0o077)
    sys.argv = [""]
    sys.path.insert(0, work)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile).update(tempdir=None, _name_sequence=None)


def fresh_main() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module.__dict__


def fresh_randomness() -> None:
    """A forked process must not repeat the random numbers of its siblings."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    # Asking numpy itself for it would import it.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def rehearse() -> None:
    """Go once through what every cell needs, so that workers inherit it warm."""
    from holdfast.workers.child.cells import Cells
    from holdfast.workers.child.tracebacks import describe

    cells = Cells({"__builtins__": builtins, "__name__": "__main__"})
    cells.run("x = [1]; x", filename="<rehearsal>", capture_source=True)
    try:
        cells.run("1/0", filename="<rehearsal>", capture_source=True)
    except ZeroDivisionError as error:
        describe(error, limit=1000)
