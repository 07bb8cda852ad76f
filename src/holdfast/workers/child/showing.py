"""Showing values to the person who watches: the last one of a cell, figures, whatever code displays."""

import sys
from typing import TYPE_CHECKING, Any

from holdfast.workers.child import measures, values
from holdfast.workers.child.signals import interruptible
from holdfast.workers.wire import messages as m

if TYPE_CHECKING:
    from holdfast.workers.child.runtime import Runtime


class Showing:
    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._longest: int = runtime.settings.get("repr_limit", 100_000)
        self._most: int = runtime.settings.get("value_limit", 1 << 20)

    def value(self, value: Any) -> tuple[Any, str, dict[str, Any]]:
        """The last value of a cell as data, text and richer forms, after the figures that the cell left open."""
        # Most cells of most sessions draw nothing.
        if "matplotlib.pyplot" in sys.modules:
            self.figures(but=value)
        if value is None:
            return None, "", {}
        return (
            values.plain(value, limit=self._most),
            values.text(value, limit=self._longest),
            values.bundle(value, limit=self._most),
        )

    @interruptible
    def figures(self, *, but: Any = None) -> None:
        """Show the figures that the cell left open; not twice the one that is its value."""
        for figure in values.open_figures():
            if figure is not but and not self._runtime.snapshots.foreign:
                self.display(figure)

    def display(self, value: Any, *, display_id: str | None = None) -> None:
        """Show an object to the person watching: every rich form it has, within the limits."""
        data = values.bundle(value, limit=self._most)
        data.setdefault("text/plain", values.text(value, limit=self._longest))
        measures.flush()
        self._runtime.post.send(
            m.DisplayMessage(data=data, display_id=display_id, execution_id=self._runtime.current or "")
        )
