"""Conversion of JSON schemas to the strict form, which providers can enforce.

In the strict form every object requires all its properties and allows no others; optional values are properties that
may be null. A schema without a strict form raises :class:`InvalidDeclaration` with the path of the offending part.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from standfast.agents.errors import InvalidDeclaration

JSONSchema = dict[str, Any]

_LIST_KEYWORDS = ("anyOf", "allOf", "prefixItems")
_MAPPING_KEYWORDS = ("$defs", "definitions", "properties")
# What a reader is told, and where parts are found: it does not restrict the values.
_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
        *("$schema", "$id", "$anchor", "$dynamicAnchor", "$vocabulary", "$defs", "definitions", "components"),
        *("contentMediaType", "contentEncoding", "contentSchema"),
    ]
)
# Keywords that depend on those beside them.
_OBJECT_KEYWORDS = frozenset(
    [
        *("properties", "required", "additionalProperties", "patternProperties", "unevaluatedProperties"),
        *("items", "prefixItems", "unevaluatedItems", "allOf", "anyOf", "oneOf", "if", "then", "else"),
    ]
)
_MAX_DEPTH = 200
"""How deep a schema may be, and how many references may lead from one to the next."""
_MAX_INLINED_CHARS = 1_000_000
"""How much may be copied in place of references. A short schema could otherwise become one of gigabytes."""


def to_strict_schema(schema: Mapping[str, Any], *, where: str = "schema") -> JSONSchema:
    """Return a strict copy of the schema; the original is not modified.

    In the strict form every object requires all its properties and allows no others; optional values are properties
    that may be null. A schema without a strict form raises :class:`InvalidDeclaration` with the path of the offending
    part.
    """
    if not isinstance(schema, Mapping):
        raise InvalidDeclaration(where, f"a schema must be a JSON object, not {type(schema).__name__}")
    if not schema:
        return {"additionalProperties": False, "type": "object", "properties": {}, "required": []}
    if "anyOf" in schema or "oneOf" in schema or isinstance(schema.get("type"), list):
        raise InvalidDeclaration(where, "the root of a strict schema must be an object, not a union")
    check_depth(schema, where)
    strict: JSONSchema = _StrictConverter(schema).convert(schema, where, ())
    return strict


def check_depth(schema: Any, where: str) -> None:
    """Raise :class:`InvalidDeclaration` for a schema that is too deep for the recursive functions that read schemas."""
    level, depth = [schema], 0
    while level:
        level = [
            part
            for each in level
            for part in (each.values() if isinstance(each, Mapping) else each)
            if isinstance(part, Mapping | list)
        ]
        depth += 1
        if depth > _MAX_DEPTH:
            raise InvalidDeclaration(where, f"the schema is too deeply nested: more than {_MAX_DEPTH} levels")


class _StrictConverter:
    """Converts one schema; references are resolved against its root."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._inlined_chars = 0

    def convert(self, schema: Any, path: str, expanding: tuple[str, ...]) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        if schema is not self._root:
            _check_resource(schema, path)
        if "$ref" in schema and len(schema) > 1:
            return self._inline_reference(schema, path, expanding)
        strict: JSONSchema = dict(schema)
        if "oneOf" in strict:  # strict mode supports only anyOf
            strict["anyOf"] = [*strict.get("anyOf", []), *strict.pop("oneOf")]
        if len(strict.get("allOf", ())) == 1:
            (only,) = strict.pop("allOf")
            return self.convert(self._merge(strict, only, path), path, expanding)
        if strict.get("default", 0) is None:
            del strict["default"]
        self._close_object(strict, path)
        for key in _MAPPING_KEYWORDS:
            if isinstance(strict.get(key), Mapping):
                strict[key] = {
                    name: self.convert(part, _join_path(path, key, name), expanding)
                    for name, part in strict[key].items()
                }
        for key in _LIST_KEYWORDS:
            if isinstance(strict.get(key), list):
                strict[key] = [self.convert(part, path, expanding) for part in strict[key]]
        if isinstance(strict.get("items"), Mapping):
            strict["items"] = self.convert(strict["items"], f"{path}[]", expanding)
        return strict

    def _merge(self, schema: JSONSchema, only: Mapping[str, Any], path: str) -> JSONSchema:
        """Return a schema that means the same as ``schema`` with the only entry of its ``allOf``."""
        entry = self._resolve(only, path)
        if entry.get("properties") and not schema.get("properties") and schema.get("additionalProperties") is not False:
            schema.pop("properties", None)
        closed = schema.get("additionalProperties") is False and not schema.get("properties")
        differing = [
            name for name in (schema.keys() & entry.keys()) - _ANNOTATIONS if not _equals(schema[name], entry[name])
        ]
        if differing or (closed and entry.get("properties")):
            names = ", ".join(sorted(differing)) or "properties"
            raise InvalidDeclaration(path, f"a singleton `allOf` and its parent differ in {names}")
        return {**schema, **entry, **{name: schema[name] for name in schema.keys() & _ANNOTATIONS}}

    def _resolve(self, schema: Mapping[str, Any], path: str) -> JSONSchema:
        """Return the schema without a reference or an ``allOf`` with one entry at its top."""
        seen: list[str] = []
        result = dict(schema)
        while "$ref" in result or len(result.get("allOf", ())) == 1:
            _check_resource(result, path)
            if "$ref" not in result:
                (only,) = result.pop("allOf")
                return self._merge(result, only, path)
            name = result.pop("$ref")
            if name in seen or len(seen) > _MAX_DEPTH:
                raise InvalidDeclaration(path, f"the reference {name!r} is circular")
            seen.append(name)
            target = self._resolve_reference(name, path)
            self._check_siblings(result, target, path)
            result = {**target, **result}
        return result

    def _check_siblings(self, siblings: Mapping[str, Any], target: Mapping[str, Any], path: str) -> None:
        """Raise if what stands beside a reference cannot be merged into its target without another meaning."""
        for name in siblings.keys() - _ANNOTATIONS:
            if name in _OBJECT_KEYWORDS or name not in target or not _equals(siblings[name], target[name]):
                raise InvalidDeclaration(path, f"a `$ref` has the incompatible sibling {name!r}")

    def _close_object(self, schema: JSONSchema, path: str) -> None:
        kind = schema.get("type")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            if "properties" not in schema and ("additionalProperties" not in schema or kind is not None):
                return
            schema.setdefault("type", "object")
        if schema.setdefault("additionalProperties", False) is not False:
            raise InvalidDeclaration(
                path,
                "a strict schema cannot have objects with arbitrary keys: list the fields in a model of their own, "
                "or turn strictness off (strict_mode=False, strict_json_schema=False)",
            )
        if "properties" in schema:
            schema["required"] = list(schema["properties"])

    def _inline_reference(self, schema: Mapping[str, Any], path: str, expanding: tuple[str, ...]) -> Any:
        """Replace a reference that has siblings by its target: strict mode allows no other keys beside ``$ref``."""
        name = schema["$ref"]
        if name in expanding:  # a recursive type cannot be inlined; the siblings are only annotations
            return {"$ref": name}
        if len(expanding) > _MAX_DEPTH:
            raise InvalidDeclaration(path, f"the schema is too deeply nested: more than {_MAX_DEPTH} references")
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        target = self._resolve_reference(name, path)
        self._inlined_chars += len(json.dumps(target, default=str))
        if self._inlined_chars > _MAX_INLINED_CHARS:
            raise InvalidDeclaration(
                path, f"the references with siblings stand for more than {_MAX_INLINED_CHARS} characters"
            )
        if "$ref" not in target:
            self._check_siblings(siblings, target, path)
        return self.convert({**siblings, **target, **siblings}, path, (*expanding, name))

    def _resolve_reference(self, name: Any, path: str) -> Mapping[str, Any]:
        target: Any = self._root
        # A reference is the fragment of a URI, in which characters may be escaped.
        for step in unquote(str(name), errors="strict").removeprefix("#/").split("/") if name != "#" else ():
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
            if isinstance(target, Mapping):
                _check_resource(target, path)
        if not isinstance(target, Mapping) or not str(name).startswith("#"):
            raise InvalidDeclaration(path, f"the reference {name!r} has no target in this schema")
        return target


def _check_resource(schema: Mapping[str, Any], path: str) -> None:
    """Raise for a schema with an id of its own: its references have other targets than those of the root."""
    if isinstance(schema.get("$id"), str) and '"$ref"' in json.dumps(schema, default=str):
        raise InvalidDeclaration(path, "references in a nested `$id` resource are not supported")


def _equals(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; ``True`` is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equals(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equals, one, other))
    return bool(one == other)


def _join_path(path: str, key: str, name: str) -> str:
    return f"{path}.{name}" if key == "properties" else f"{path}.{key}.{name}"
