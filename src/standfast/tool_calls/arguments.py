"""Arguments of tool calls are checked before anyone decides about them: by the tool's types or by its JSON schema."""

from collections.abc import Mapping
from typing import Any

from standfast.agents.errors import InvalidArguments
from standfast.agents.tool_arguments import ParsedArguments, load_arguments
from standfast.agents.tools import FunctionTool
from standfast.tool_calls.schema_validation import find_schema_error


def parse_arguments(tool: FunctionTool, text: str, *, edited: bool = False) -> ParsedArguments:
    """Return the arguments as the tool will get them; raise :class:`InvalidArguments` if they do not fit the tool.

    Arguments that a person ``edited`` must not have fields that the schema does not declare, even if it allows them:
    such a field is probably misspelt.
    """
    values = load_arguments(tool.name, text)
    parser, schema = tool.arguments_parser, tool.params_json_schema
    if parser is not None and not parser.fits(schema):
        parser = None
    parsed = ParsedArguments(text, values, values) if parser is None else parser.parse(text, values)
    if edited or parser is None:
        # The schema of a strict tool requires every field; what the tool's types fill in need not be written.
        problem = find_schema_error(_fill_in(values, parsed.values), schema)
        if problem is not None:
            raise InvalidArguments(tool.name, problem)
    if edited and (name := find_undeclared_field(values, schema)) is not None:
        raise InvalidArguments(tool.name, f"{name}: the tool has no such argument")
    return parsed


def _fill_in(written: Any, values: Any) -> Any:
    """Return the written JSON value with the fields of objects that only ``values`` has."""
    if isinstance(written, dict) and isinstance(values, dict):
        return {**values, **{name: _fill_in(value, values.get(name)) for name, value in written.items()}}
    if isinstance(written, list) and isinstance(values, list) and len(written) == len(values):
        return [_fill_in(value, filled) for value, filled in zip(written, values, strict=True)]
    return written


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
