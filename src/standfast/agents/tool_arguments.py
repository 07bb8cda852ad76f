"""The arguments of a tool call: the JSON text that was written, and the values that the tool gets for it.

They are validated in :mod:`standfast.tool_calls.arguments`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.agents.errors import InvalidArguments


@dataclass(frozen=True, eq=False)
class ParsedArguments:
    """Arguments that fit a tool.

    ``text`` is what the model or a person wrote and ``written`` its JSON values; ``values`` is what the tool gets for
    them, as JSON values: with defaults filled in, and after its own validators. ``value`` is the object that the tool's
    parser made, if any.
    """

    text: str
    written: dict[str, Any]
    values: dict[str, Any]
    value: Any = None
    _shown: str | None = field(default=None, init=False)

    @property
    def shown(self) -> str:
        """The values as JSON text: the text itself, unless the values differ from what it says."""
        if self._shown is None:
            is_same = are_same_values(self.written, self.values)
            text = self.text or "{}" if is_same else json.dumps(self.values, ensure_ascii=False)
            object.__setattr__(self, "_shown", text)
            return text
        return self._shown


@dataclass(frozen=True, eq=False)
class ArgumentsParser:
    """Parses the arguments of one tool, from their text and its JSON values.

    ``names`` are the properties of the schema that it was made for.
    """

    parse: Callable[[str, dict[str, Any]], ParsedArguments]
    names: frozenset[str]

    def fits(self, schema: Mapping[str, Any]) -> bool:
        """Return whether the schema still has these properties: a copy of a tool may have another schema."""
        return self.names == frozenset(schema.get("properties", ()))


def load_arguments(name: str, text: str) -> dict[str, Any]:
    """Return the arguments for the tool ``name`` as JSON values, or raise :class:`InvalidArguments`."""
    try:
        values = _decoder.decode(text or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArguments(name, f"Invalid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidArguments(name, f"a JSON object is expected, not {type(values).__name__}")
    return values


def are_same_values(left: Any, right: Any) -> bool:
    """Return whether two JSON values are the same. 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(are_same_values(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(are_same_values, left, right))
    return bool(left == right)


def has_infinite_number(value: Any) -> bool:
    """Return whether a number in the value is infinite or NaN."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(has_infinite_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(has_infinite_number, value))


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


_decoder = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite)
