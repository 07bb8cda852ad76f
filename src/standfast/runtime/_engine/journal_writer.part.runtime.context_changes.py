"""What a run changes in the program's context, so that it is there when the run goes on elsewhere."""

import logging
from typing import Any

from holdfast.runs.contexts import SavedContext, save_context
from holdfast.runtime.records import encode

MAX_CONTEXT_BYTES = 16 * 1024
"""Bytes. A larger context is given to a run as it was; writing it down at every change would cost too much."""

_log = logging.getLogger(__name__)


class ContextTracker:
    """Compares the context with what was written down of it last."""

    def __init__(self, run_id: str, context: Any, *, saved: SavedContext | None) -> None:
        self._run_id, self._context = run_id, context
        self._last_encoded = encode(saved)
        self._tracking = saved is not None and len(self._last_encoded) <= MAX_CONTEXT_BYTES

    def get_change(self) -> SavedContext | None:
        """The context as it is now, if it is not written down like that. One that cannot be saved is left alone."""
        if not self._tracking:
            return None
        try:
            saved = save_context(self._context, serializer=None, strict=True)
            found = encode(saved)
            problem = f"it has more than {MAX_CONTEXT_BYTES} bytes" if len(found) > MAX_CONTEXT_BYTES else None
        except Exception as error:  # noqa: BLE001 - encoding is the program's own code
            problem = str(error)
        if problem is not None:
            self._tracking = False
            _log.warning("run %s: changes of its context are not kept any more: %s", self._run_id, problem)
            return None
        if found == self._last_encoded:
            return None
        self._last_encoded = found
        return saved
