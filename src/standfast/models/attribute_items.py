"""What a model said, as JSON that can also be read like an object: ``item.content[0].text``."""

from collections.abc import Mapping
from typing import Any

from standfast.base.items import Item

_SCALAR_TYPES = frozenset([str, int, float, bool, type(None)])


class AttributeDict(dict[str, Any]):
    """A JSON object whose entries are attributes too; the objects inside it are of the same kind.

    It is a dict like any other to everybody who does not care. Entries named like a method of ``dict`` are
    reached by subscript only.
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
        """The plain dict, for programs that know this method from the provider's objects."""
        return {name: to_plain(value) for name, value in self.items()}


def wrap_attributes(value: Any) -> Any:
    """The value with every JSON object in it made readable by attribute."""
    if type(value) in _SCALAR_TYPES or isinstance(value, AttributeDict):
        return value
    if isinstance(value, dict):
        return AttributeDict(value)
    if isinstance(value, list | tuple):
        return [wrap_attributes(part) for part in value]
    return value


def to_plain(value: Any) -> Any:
    """A copy of the value made of plain dicts and lists, sharing nothing that could be changed."""
    if type(value) in _SCALAR_TYPES:
        return value
    if isinstance(value, dict | Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    return _dump_model(value) if hasattr(value, "model_dump") else value


def as_item(output: Any) -> Item:
    """A model's output item as the plain dict that standfast works with: exactly what the provider sent."""
    if isinstance(output, dict | Mapping):
        return {name: to_plain(part) for name, part in output.items()}
    if hasattr(output, "model_dump"):
        item = _dump_model(output)
        item.setdefault("type", output.type)  # set by default, and then the library does not count it as sent
        return item
    raise TypeError(f"a model's output item must be a JSON object, not {type(output).__name__}")


def _dump_model(value: Any) -> Item:
    found: Item = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return found
