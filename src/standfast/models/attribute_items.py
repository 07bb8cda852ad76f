"""Output items as dicts whose entries are also attributes (``item.content[0].text``), and as plain dicts."""

from collections.abc import Mapping
from typing import Any

from standfast.base.items import Item

_SCALAR_TYPES = frozenset([str, int, float, bool, type(None)])


class AttributeDict(dict[str, Any]):
    """A dict whose entries are also attributes; dicts inside it are converted to the same class.

    An entry that has the name of a method of ``dict`` is accessible by subscript only.
    """

    __slots__ = ()

    def __init__(self, entries: Mapping[str, Any] = {}, /, **more: Any) -> None:
        super().__init__(entries, **more)
        for name, value in self.items():
            if type(value) not in _SCALAR_TYPES:
                self[name] = wrap_attributes(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this {self.get('type', 'object')!r} has no {name!r}") from None

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return a plain dict; the objects of the provider's library have this method too."""
        return {name: to_plain(value) for name, value in self.items()}


def wrap_attributes(value: Any) -> Any:
    """Return the value with every dict in it converted to :class:`AttributeDict`."""
    if type(value) in _SCALAR_TYPES or isinstance(value, AttributeDict):
        return value
    if isinstance(value, dict):
        return AttributeDict(value)
    if isinstance(value, list | tuple):
        return [wrap_attributes(part) for part in value]
    return value


def to_plain(value: Any) -> Any:
    """Return a deep copy of the value made of plain dicts and lists."""
    if type(value) in _SCALAR_TYPES:
        return value
    if isinstance(value, dict | Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    return _dump_model(value) if hasattr(value, "model_dump") else value


def as_item(output: Any) -> Item:
    """Return an output item as a plain dict with exactly the fields that the provider sent."""
    if isinstance(output, dict | Mapping):
        return {name: to_plain(part) for name, part in output.items()}
    if hasattr(output, "model_dump"):
        item = _dump_model(output)
        item.setdefault("type", output.type)  # a default value, which exclude_unset leaves out
        return item
    raise TypeError(f"an output item of a model must be a JSON object, got {type(output).__name__}")


def _dump_model(value: Any) -> Item:
    item: Item = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return item
