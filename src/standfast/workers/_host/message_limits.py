"""The limits of the texts and values in a message. The worker cuts them; code that forges messages does not."""

from typing import Any

from standfast.workers._host.frame_weight import CONTAINER_WEIGHT
from standfast.workers.wire import messages as m

# What a worker adds where it has cut a text, and how much it keeps of the text of an exception or a prompt.
_CUT_NOTE = 100
_SHORT_TEXT = 10_000
_SIZED_TYPES = {str, bytes, list, dict}


class MessageLimits:
    """Decides whether a message has a text above ``repr_limit`` or a value above ``value_limit``."""

    def __init__(self, *, repr_limit: int, value_limit: int) -> None:
        self._text_limit = max(repr_limit, _SHORT_TEXT) + _CUT_NOTE
        self._value_limit = value_limit
        self.harmless_size = min(self._text_limit, value_limit)
        """A message of no more bytes than this is within the limits."""

    def are_exceeded_by(self, message: m.Message) -> bool:
        if isinstance(message, m.ResultMessage):
            texts: tuple[str, ...] = (message.repr, *message.warnings)
            return self._has_long_text(texts) or self._has_large_value([message.value, *message.data.values()])
        if isinstance(message, m.ErrorMessage):
            texts = (message.exception_type, message.exception_message, message.traceback, *message.warnings)
            return self._has_long_text(texts)
        if isinstance(message, m.DisplayMessage):
            values = [item for mime, item in message.data.items() if mime != "text/plain"]
            texts = (str(message.data.get("text/plain", "")), message.display_id or "")
            return self._has_long_text(texts, self._value_limit) or self._has_large_value([*values, message.metadata])
        return isinstance(message, m.InputMessage) and self._has_long_text((message.prompt,))

    def _has_long_text(self, texts: tuple[str, ...], limit: int = 0) -> bool:
        return sum(map(len, texts)) > len(texts) * max(limit, self._text_limit)

    def _has_large_value(self, values: list[Any]) -> bool:
        return any(measure_value(value, limit=self._value_limit) > self._value_limit for value in values)


def measure_value(value: Any, *, limit: int) -> int:
    """Return the number of items, characters and bytes of plain data, or a number above ``limit``."""
    total, pending = 0, [[value]]
    while pending and total <= limit:
        items = pending.pop()
        total += len(items)
        for item in [item for item in items if type(item) in _SIZED_TYPES]:
            if isinstance(item, str | bytes):
                total += len(item)
                continue
            total += CONTAINER_WEIGHT
            pending.append([*item, *item.values()] if isinstance(item, dict) else item)
    return total
