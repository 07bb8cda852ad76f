"""Arguments of tool calls are checked before anyone decides about them: by the tool's types or by its JSON schema."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from standfast.agents.errors import InvalidArguments
from standfast.agents.tool_arguments import ParsedArguments, load_arguments
from standfast.agents.tools import FunctionTool
from standfast.base.log import get_logger

_log = get_logger("standfast.tools")

# A part with one of these may have properties that are declared elsewhere.
_OPEN_KEYWORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "anyOf", "oneOf", "if")
_MAX_VALUE_LENGTH = 80


def parse_arguments(tool: FunctionTool, text: str, *, edited: bool = False) -> ParsedArguments:
    """Return the arguments as the tool will get them; raise :class:`InvalidArguments` if they do not fit the tool.

    Arguments that a person ``edited`` must not have fields that the schema does not declare, even if it allows them:
    such a field is probably misspelt.
    """
    values = load_arguments(tool.name, text)
    parser, schema = tool.arguments_parser, tool.params_json_schema
    if parser is not None and not parser.fits(schema):
        parser = None
    if edited or parser is None:
        problem = find_schema_error(values, close_schema(schema) if edited else schema)
        if problem is not None:
            raise InvalidArguments(tool.name, problem)
    return ParsedArguments(text, values) if parser is None else parser.parse(text)


def find_schema_error(values: Any, schema: Mapping[str, Any]) -> str | None:
    """Return where and why the values violate the JSON schema, or ``None``.

    References to other documents are not loaded. A schema that is broken itself is logged and refuses nothing.
    """
    from jsonschema.exceptions import ValidationError, best_match

    try:
        error = best_match(_make_validator(schema).iter_errors(values))
    except ValidationError:
        raise
    except Exception as broken:  # noqa: BLE001 - the schema may come from a server
        _log.warning("a tool's JSON schema cannot be used, so arguments are not checked: %s", broken)
        return None
    if error is None:
        return None
    message = error.message if len(error.message) < 4 * _MAX_VALUE_LENGTH else f"violates {error.validator!r}"
    return f"{error.json_path}: {message}"


def close_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema whose objects allow only the properties that they declare."""
    if any("allOf" in part for part in _iter_parts(schema)):  # their properties are declared in several places
        return dict(schema)
    closed: dict[str, Any] = _map_parts(schema, _close_part)
    return closed


def _close_part(part: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(part.get("properties"), Mapping) or any(keyword in part for keyword in _OPEN_KEYWORDS):
        return part
    return {**part, "additionalProperties": False}


def _drop_key_patterns(part: dict[str, Any]) -> dict[str, Any]:
    """Remove patterns of property names, which Python's ``re`` would match: a hostile pattern takes it for ever."""
    if "patternProperties" not in part:
        return part
    return {name: value for name, value in part.items() if name not in ("patternProperties", "additionalProperties")}


def _map_parts(part: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(part, Mapping):
        return change({name: _map_parts(value, change) for name, value in part.items()})
    return [_map_parts(value, change) for value in part] if isinstance(part, list) else part


def _iter_parts(part: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, Mapping):
        yield part
    for value in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        yield from _iter_parts(value)


def _make_validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    kind = _extend_validator(validator_for(schema))
    return kind(_map_parts(schema, _drop_key_patterns), registry=REGISTRY)  # this registry loads nothing


@functools.cache
def _extend_validator(kind: Any) -> Any:
    from jsonschema import validators

    return validators.extend(kind, {"pattern": _check_pattern})


def _check_pattern(validator: Any, pattern: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Check a pattern in linear time. One with look-around, which cannot be, is left to the tool."""
    from jsonschema.exceptions import ValidationError

    matches = _compile_pattern(pattern) if isinstance(value, str) else None
    if matches is not None and not matches(value):
        yield ValidationError(f"{value[:_MAX_VALUE_LENGTH]!r} does not match {pattern!r}")


@functools.lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> Callable[[str], bool] | None:
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
    return lambda value: bool(validator.isinstance_python(value))
