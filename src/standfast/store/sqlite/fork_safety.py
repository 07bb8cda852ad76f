"""Keep SQLite files intact across fork().

A connection must not be open while the process forks: the child inherits it without its file locks, and connections
that the child opens later rely on them. So all connections are closed before a fork. Both processes reconnect when
needed, and the child starts its own threads.
"""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def pause(self) -> None:
        """Finish the running work, close every connection and block further work."""
        ...

    def resume(self, *, in_child: bool) -> None:
        """Allow work again. A child has none of its parent's threads."""
        ...


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_paused: list[Forkable] = []


def register_fork_safe(backend: Forkable) -> None:
    """Pause and resume the backend whenever this process forks. Holds only a weak reference."""
    _registered.add(backend)


def pause_all() -> None:
    for backend in list(_registered):
        backend.pause()
        _paused.append(backend)


def resume_all(*, in_child: bool) -> None:
    while _paused:
        _paused.pop().resume(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=pause_all,
        after_in_parent=lambda: resume_all(in_child=False),
        after_in_child=lambda: resume_all(in_child=True),
    )
