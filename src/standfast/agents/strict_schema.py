"""Conversion of JSON schemas to the strict form, which providers can enforce.

In the strict form every object requires all its properties and allows no others; optional values are properties that
may be null. A schema without a strict form raises :class:`InvalidDeclaration` with the path of the offending part.
"""

import json
from collections.abc import Mapping
from typing import Any

from standfast.agents.errors import InvalidDeclaration

JSONSchema = dict[str, Any]

_LIST_KEYWORDS = ("anyOf", "allOf", "prefixItems")
_MAPPING_KEYWORDS = ("$defs", "definitions", "properties")
_MAX_INLINED_CHARS = 1_000_000
"""How much may be copied in place of references. A short schema could otherwise become one of gigabytes."""


def to_strict_schema(schema: Mapping[str, Any], *, where: str = "schema") -> JSONSchema:
    """Return a strict copy of the schema; the original is not modified.

    In the strict form every object requires all its properties and allows no others; optional values are properties
    that may be null. A schema without a strict form raises :class:`InvalidDeclaration` with the path of the offending
    part.
    """
    if not schema:
        return {"additionalProperties": False, "type": "object", "properties": {}, "required": []}
    if "anyOf" in schema or "oneOf" in schema:
        raise InvalidDeclaration(where, "the root of a strict schema must be an object, not a union")
    strict: JSONSchema = _StrictConverter(schema).convert(schema, where, ())
    return strict


class _StrictConverter:
    """Converts one schema; references are resolved against its root."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._inlined_chars = 0

    def convert(self, schema: Any, path: str, expanding: tuple[str, ...]) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        if "$ref" in schema and len(schema) > 1:
            return self._inline_reference(schema, path, expanding)
        strict: JSONSchema = dict(schema)
        if "oneOf" in strict:  # strict mode supports only anyOf, and ignores the discriminator
            strict["anyOf"] = [*strict.get("anyOf", []), *strict.pop("oneOf")]
            strict.pop("discriminator", None)
        if len(strict.get("allOf", ())) == 1:
            (only,) = strict.pop("allOf")
            return self.convert({**only, **strict}, path, expanding)
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

    def _close_object(self, schema: JSONSchema, path: str) -> None:
        kind = schema.get("type")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind) and "properties" not in schema:
            return
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
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        target = self._resolve_reference(name, path)
        self._inlined_chars += len(json.dumps(target, default=str))
        if self._inlined_chars > _MAX_INLINED_CHARS:
            raise InvalidDeclaration(
                path, f"the references with siblings stand for more than {_MAX_INLINED_CHARS} characters"
            )
        return self.convert({**siblings, **target, **siblings}, path, (*expanding, name))

    def _resolve_reference(self, name: Any, path: str) -> Mapping[str, Any]:
        target: Any = self._root
        for step in str(name).removeprefix("#/").split("/") if name != "#" else ():
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping) or not str(name).startswith("#"):
            raise InvalidDeclaration(path, f"the reference {name!r} has no target in this schema")
        return target


def _join_path(path: str, key: str, name: str) -> str:
    return f"{path}.{name}" if key == "properties" else f"{path}.{key}.{name}"
