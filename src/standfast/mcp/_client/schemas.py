"""The schema of a server's tool in the strict form, where that keeps its meaning."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from standfast.agents.errors import InvalidDeclaration
from standfast.agents.strict_schema import to_strict_schema
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from mcp.types import Tool as MCPTool

_log = get_logger("standfast.mcp")
_ANNOTATIONS = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")


def build_schema(tool: "MCPTool", *, strict: bool) -> tuple[dict[str, Any], bool]:
    """Return the schema of the arguments and whether it is strict. It is kept as it is if that would change it."""
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    if not strict:
        return schema, False
    if not tool.input_schema:
        return to_strict_schema({}), True
    problem = "the root may be something else than an object" if isinstance(schema["type"], list) else None
    problem = problem or _find_problem(schema, schema)
    if problem is None:
        try:
            return to_strict_schema(schema, where=f"tool {tool.name}"), True
        except InvalidDeclaration as error:
            problem = str(error)
    _log.info("the schema of the MCP tool %r cannot be made strict and is used as it is: %s", tool.name, problem)
    return schema, False


def _find_problem(schema: Any, root: Mapping[str, Any]) -> str | None:
    """Return why the strict form would not accept what the schema accepts; ``None`` if it would."""
    if isinstance(schema, list):
        return next((problem for part in schema if (problem := _find_problem(part, root))), None)
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    if is_object and not schema.get("properties") and schema.get("additionalProperties") is not False:
        return "an object may have any fields"
    merged = [_resolve(schema["$ref"], root)] if "$ref" in schema else schema.get("allOf")
    if isinstance(merged, list) and len(merged) == 1 and isinstance(merged[0], Mapping):
        for name, value in schema.items():
            if name not in _ANNOTATIONS and name in merged[0] and merged[0][name] != value:
                return f"{name!r} is declared twice with different values"
    for name, part in schema.items():
        nested = list(part.values()) if name in ("properties", "$defs", "definitions") else part
        if name not in ("default", "enum", "const", "examples") and (problem := _find_problem(nested, root)):
            return problem
    return None


def _resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for step in str(reference).removeprefix("#/").split("/"):
        target = target.get(step) if isinstance(target, Mapping) else None
    return target
