"""The strict form of a JSON schema: what providers demand before they guarantee that a model keeps to it.

Every object lists all its properties as required and allows no others; what may be absent is a property that may
be null. A schema that cannot be put so is refused with the path of the part that stands in the way.
"""

from collections.abc import Mapping
from typing import Any

from standfast.agents.errors import InvalidDeclaration

JSONSchema = dict[str, Any]

_LIST_KEYWORDS = ("anyOf", "allOf", "prefixItems")
_MAPPING_KEYWORDS = ("$defs", "definitions", "properties")


def to_strict_schema(schema: Mapping[str, Any], *, where: str = "schema") -> JSONSchema:
    """A strict copy of the schema; the original is left as it was."""
    if not schema:
        return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    found: JSONSchema = _StrictConverter(schema).convert(schema, where, ())
    return found


class _StrictConverter:
    """One schema under conversion: references are resolved against its root."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def convert(self, schema: Any, path: str, expanding: tuple[str, ...]) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        if "$ref" in schema and len(schema) > 1:
            return self._inline_reference(schema, path, expanding)
        found: JSONSchema = dict(schema)
        if "oneOf" in found:  # strict mode knows only anyOf, and the discriminator is a hint it does not read
            found["anyOf"] = [*found.get("anyOf", []), *found.pop("oneOf")]
            found.pop("discriminator", None)
        if len(found.get("allOf", ())) == 1:
            (only,) = found.pop("allOf")
            return self.convert({**only, **found}, path, expanding)
        if found.get("default", 0) is None:
            del found["default"]
        self._close_object(found, path)
        for key in _MAPPING_KEYWORDS:
            if isinstance(found.get(key), Mapping):
                found[key] = {
                    name: self.convert(part, _join_path(path, key, name), expanding)
                    for name, part in found[key].items()
                }
        for key in _LIST_KEYWORDS:
            if isinstance(found.get(key), list):
                found[key] = [self.convert(part, path, expanding) for part in found[key]]
        if isinstance(found.get("items"), Mapping):
            found["items"] = self.convert(found["items"], f"{path}[]", expanding)
        return found

    def _close_object(self, found: JSONSchema, path: str) -> None:
        kind = found.get("type")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind) and "properties" not in found:
            return
        if found.setdefault("additionalProperties", False) is not False:
            raise InvalidDeclaration(
                path,
                "a strict schema has no objects with arbitrary keys: list the fields in a model of their own, "
                "or turn strictness off (strict_mode=False, strict_json_schema=False)",
            )
        found["properties"] = found.get("properties", {})
        found["required"] = list(found["properties"])

    def _inline_reference(self, schema: Mapping[str, Any], path: str, expanding: tuple[str, ...]) -> Any:
        """A reference with company, as one schema: strict mode allows a reference nothing beside it."""
        name = schema["$ref"]
        if name in expanding:  # a type that contains itself cannot be written out; its company is only commentary
            return {"$ref": name}
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return self.convert({**self._resolve_reference(name, path), **beside}, path, (*expanding, name))

    def _resolve_reference(self, name: Any, path: str) -> Mapping[str, Any]:
        target: Any = self._root
        for step in str(name).removeprefix("#/").split("/") if name != "#" else ():
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping) or not str(name).startswith("#"):
            raise InvalidDeclaration(path, f"the reference {name!r} leads nowhere in this schema")
        return target


def _join_path(path: str, key: str, name: str) -> str:
    return f"{path}.{name}" if key == "properties" else f"{path}.{key}.{name}"
