"""Showing values to the person who watches: the last one of a cell, figures, whatever code displays."""

import sys
from typing import TYPE_CHECKING, Any

from holdfast.workers.child import measures, values
from holdfast.workers.child.signals import interruptible
from holdfast.workers.wire import messages as m

if TYPE_CHECKING:
    from holdfast.workers.child.runtime import WorkerLoop


class DisplayPublisher:
    def __init__(self, worker_loop: "WorkerLoop") -> None:
        self._worker_loop = worker_loop
        self._repr_limit: int = worker_loop.settings.get("repr_limit", 100_000)
        self._value_limit: int = worker_loop.settings.get("value_limit", 1 << 20)

    def render_value(self, value: Any) -> tuple[Any, str, dict[str, Any]]:
        """The last value of a cell as data, text and richer forms, after the figures that the cell left open."""
        # Most cells of most sessions draw nothing.
        if "matplotlib.pyplot" in sys.modules:
            self.display_open_figures(exclude=value)
        if value is None:
            return None, "", {}
        return (
            values.to_plain(value, limit=self._value_limit),
            values.format_repr(value, limit=self._repr_limit),
            values.make_mime_bundle(value, limit=self._value_limit),
        )

    @interruptible
    def display_open_figures(self, *, exclude: Any = None) -> None:
        """Show the figures that the cell left open; not twice the one that is its value."""
        for figure in values.pop_open_figures():
            if figure is not exclude and not self._worker_loop.snapshots.is_foreign_fork:
                self.display(figure)

    def display(self, value: Any, *, display_id: str | None = None) -> None:
        """Show an object to the person watching: every rich form it has, within the limits."""
        data = values.make_mime_bundle(value, limit=self._value_limit)
        data.setdefault("text/plain", values.format_repr(value, limit=self._repr_limit))
        measures.flush_streams()
        self._worker_loop.channel.send(
            m.DisplayMessage(data=data, display_id=display_id, execution_id=self._worker_loop.current_execution or "")
        )
