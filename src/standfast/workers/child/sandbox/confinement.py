"""Resource limits of the process itself."""

import contextlib
import resource

from standfast.workers.wire.control import SandboxSpec


def apply_limits(spec: SandboxSpec, *, own_user_namespace: bool, processes_counted: bool) -> tuple[str, ...]:
    """Set the limits of this process and its descendants. Returns what could not be enforced."""
    notes: list[str] = []
    _set_limit(resource.RLIMIT_CORE, 0)
    # Not the address space: libraries reserve far more than they use. Private writable memory is what counts.
    _set_limit(resource.RLIMIT_DATA, spec.memory)
    _set_limit(resource.RLIMIT_NOFILE, spec.open_files)
    _set_limit(resource.RLIMIT_FSIZE, spec.file_size)
    if spec.cpu_seconds is not None:
        # One second between the soft limit, which says why, and the hard one, which cannot be caught.
        _set_limit(resource.RLIMIT_CPU, spec.cpu_seconds, hard=spec.cpu_seconds + 1)
    if spec.processes is not None:
        if own_user_namespace:
            _set_limit(resource.RLIMIT_NPROC, spec.processes + 2)
        elif not processes_counted:
            notes.append("the number of processes is not limited: that needs a user namespace or a control group")
    return tuple(notes)


def _set_limit(kind: int, soft: int | None, *, hard: int | None = None) -> None:
    if soft is None:
        return
    _, ceiling = resource.getrlimit(kind)
    wanted = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        wanted = min(wanted, ceiling)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (min(soft, wanted), wanted))
