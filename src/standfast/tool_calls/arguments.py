"""Arguments of tool calls are checked before anyone decides about them: by the tool's types or by its JSON schema."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from standfast.agents.errors import InvalidArguments
from standfast.agents.tool_arguments import ParsedArguments, load_arguments
from standfast.agents.tools import FunctionTool
from standfast.base.log import get_logger

_log = get_logger("standfast.tools")

_MAX_VALUE_LENGTH = 80
# How many keywords of a schema are evaluated for one call, and for how many a reference counts, which is slow. A few
# references that double each other are billions.
_MAX_EVALUATIONS = 200_000
_REFERENCE_WEIGHT = 10
_evaluations: ContextVar[Iterator[int]] = ContextVar("standfast_schema_evaluations")


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
        problem = find_schema_error(values, schema)
        if problem is not None:
            raise InvalidArguments(tool.name, problem)
    if edited and (name := find_undeclared_field(values, schema)) is not None:
        raise InvalidArguments(tool.name, f"{name}: the tool has no such argument")
    return ParsedArguments(text, values) if parser is None else parser.parse(text)


def find_schema_error(values: Any, schema: Mapping[str, Any]) -> str | None:
    """Return where and why the values violate the JSON schema, or ``None``.

    References to other documents are not loaded. A schema that is broken itself, or takes too long to evaluate, is
    logged and refuses nothing.
    """
    from jsonschema.exceptions import ValidationError, best_match

    _evaluations.set(iter(range(_MAX_EVALUATIONS)))
    try:
        error = best_match(_make_validator(schema).iter_errors(values))
    except ValidationError:
        raise
    except Exception as broken:  # noqa: BLE001 - the schema may come from a server
        # Only the first line: the others may contain the arguments.
        reason = str(broken).partition("\n")[0][: 4 * _MAX_VALUE_LENGTH]
        _log.warning("a tool's JSON schema cannot be used, so arguments are not checked: %s", reason)
        return None
    if error is None:
        return None
    message = error.message if len(error.message) < 4 * _MAX_VALUE_LENGTH else f"violates {error.validator!r}"
    return f"{error.json_path}: {message}"


def find_undeclared_field(values: Any, schema: Mapping[str, Any]) -> str | None:
    """Return the path of a field that no part of the schema declares, or ``None``.

    An object whose schema declares no properties may have any, and so may one that has a schema or a pattern for more.
    """
    return _find_undeclared(values, [schema], schema)


def _find_undeclared(values: Any, parts: list[Any], root: Mapping[str, Any]) -> str | None:
    if isinstance(values, list):
        inner_parts = [part["items"] for part in _resolve_parts(parts, root) if "items" in part]
        found = (_find_undeclared(value, inner_parts, root) for value in values)
        return next((path for path in found if path is not None), None)
    resolved = _resolve_parts(parts, root)
    declared = {name for part in resolved for name in part.get("properties") or ()}
    is_open = any(
        isinstance(part.get("additionalProperties"), Mapping) or "patternProperties" in part for part in resolved
    )
    if not isinstance(values, Mapping) or not declared or is_open:
        return None
    for name, value in values.items():
        if name not in declared:
            return str(name)
        inner_parts = [part["properties"][name] for part in resolved if name in (part.get("properties") or ())]
        inner = _find_undeclared(value, inner_parts, root)
        if inner is not None:
            return f"{name}.{inner}"
    return None


def _resolve_parts(parts: list[Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return these parts of a schema and the parts that they refer to or combine, each once."""
    resolved: list[Mapping[str, Any]] = []
    seen: set[int] = set()
    pending = list(parts)
    while pending:
        part = pending.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        resolved.append(part)
        pending += [part.get(keyword) for keyword in ("if", "then", "else")]
        pending += [inner for keyword in ("allOf", "anyOf", "oneOf") for inner in part.get(keyword) or ()]
        pending.append(_follow_reference(part.get("$ref"), root))
    return resolved


def _follow_reference(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the part of the schema that a reference names, or ``None`` if it is not in this schema."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    part: Any = root
    for name in reference.split("/")[1:]:
        part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    return part


def _drop_key_patterns(part: dict[str, Any]) -> dict[str, Any]:
    """Remove patterns of property names, which Python's ``re`` would match: a hostile pattern takes it for ever."""
    if "patternProperties" not in part:
        return part
    return {name: value for name, value in part.items() if name not in ("patternProperties", "additionalProperties")}


def _map_parts(part: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(part, Mapping):
        return change({name: _map_parts(value, change) for name, value in part.items()})
    return [_map_parts(value, change) for value in part] if isinstance(part, list) else part


def _make_validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    kind = _extend_validator(validator_for(schema))
    return kind(_map_parts(schema, _drop_key_patterns), registry=REGISTRY)  # this registry loads nothing


@functools.cache
def _extend_validator(kind: Any) -> Any:
    from jsonschema import validators

    keywords = {**kind.VALIDATORS, "pattern": _check_pattern}
    weights = dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), _REFERENCE_WEIGHT)
    return validators.extend(
        kind, {name: _count_evaluations(check, weights.get(name, 1)) for name, check in keywords.items()}
    )


def _count_evaluations(check: Callable[..., Any], weight: int) -> Callable[..., Any]:
    """Return a keyword's check that ends the validation when too many were evaluated."""

    @functools.wraps(check)
    def counted(*arguments: Any) -> Any:
        if len(list(itertools.islice(_evaluations.get(), weight))) < weight:
            raise RuntimeError("it takes too long to evaluate")
        return check(*arguments)

    return counted


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
