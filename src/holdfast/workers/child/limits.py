"""Resource limits of the process itself."""

import contextlib
import resource

from holdfast.workers.wire.orders import Jail


def apply(jail: Jail, *, own_user_namespace: bool, counted: bool) -> tuple[str, ...]:
    """Set the limits of this process and its descendants. Returns what could not be enforced."""
    notes: list[str] = []
    _limit(resource.RLIMIT_CORE, 0)
    # Not the address space: libraries reserve far more than they use. Private writable memory is what counts.
    _limit(resource.RLIMIT_DATA, jail.memory)
    _limit(resource.RLIMIT_NOFILE, jail.open_files)
    _limit(resource.RLIMIT_FSIZE, jail.file_size)
    if jail.cpu_seconds is not None:
        # One second between the soft limit, which says why, and the hard one, which cannot be caught.
        _limit(resource.RLIMIT_CPU, jail.cpu_seconds, hard=jail.cpu_seconds + 1)
    if jail.processes is not None:
        if own_user_namespace:
            _limit(resource.RLIMIT_NPROC, jail.processes + 2)
        elif not counted:
            notes.append("the number of processes is not limited: that needs a user namespace or a control group")
    return tuple(notes)


def _limit(kind: int, soft: int | None, *, hard: int | None = None) -> None:
    if soft is None:
        return
    _, ceiling = resource.getrlimit(kind)
    wanted = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        wanted = min(wanted, ceiling)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (min(soft, wanted), wanted))
