"""SQLite files and fork().

A connection that is open while the process forks is ruined: the child has it without its locks, and whatever the
child opens on the same file afterwards believes in them. So nothing is open at that moment. Both processes open
what they need again, and the child starts its own threads.
"""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def pause(self) -> None:
        """Finish what is under way, close every connection and keep still."""
        ...

    def resume(self, *, in_child: bool) -> None:
        """Go on. A child has none of its parent's threads."""
        ...


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_paused: list[Forkable] = []


def register_fork_safe(backend: Forkable) -> None:
    """Pause and resume the backend whenever this process forks, as long as it lives."""
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
