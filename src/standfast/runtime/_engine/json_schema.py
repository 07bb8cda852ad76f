"""Validate a value against the subset of JSON Schema that tools use."""

from collections.abc import Mapping
from typing import Any

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def find_schema_error(
    value: Any, schema: Mapping[str, Any], *, path: str = "$", root: Mapping[str, Any] | None = None
) -> str | None:
    """Return where and why the value violates the schema, or ``None``. Unknown keywords are ignored."""
    root = schema if root is None else root
    if "$ref" in schema:
        return find_schema_error(value, _resolve_ref(schema["$ref"], root), path=path, root=root)
    for choices in (schema.get("anyOf"), schema.get("oneOf")):
        if choices and all(find_schema_error(value, one, path=path, root=root) for one in choices):
            return f"{path}: {value!r} matches none of the alternatives"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        return f"{path}: {value!r} is not {schema['const']!r}"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_type(value, kind) for kind in kinds):
        return f"{path}: expected {' or '.join(kinds)}, got {value!r}"
    if isinstance(value, dict):
        return _find_object_error(value, schema, path, root)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        problems = (
            find_schema_error(one, schema["items"], path=f"{path}[{place}]", root=root)
            for place, one in enumerate(value)
        )
        return next((problem for problem in problems if problem), None)
    return None


def _find_object_error(
    value: dict[str, Any], schema: Mapping[str, Any], path: str, root: Mapping[str, Any]
) -> str | None:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}.{name}: is required"
    for name, part in value.items():
        if name in properties:
            problem = find_schema_error(part, properties[name], path=f"{path}.{name}", root=root)
            if problem is not None:
                return problem
        elif schema.get("additionalProperties") is False:
            return f"{path}.{name}: unknown argument"
    return None


def _is_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(kind, (object,)))


def _resolve_ref(ref: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    target: Any = root
    for part in ref.removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, Mapping) else None
    return target if isinstance(target, Mapping) else {}
