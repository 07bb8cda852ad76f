"""Identity of tools: the keys by which calls, approvals and saved runs refer to a tool."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.agents.errors import ModelBehaviorError, ToolMissing
from standfast.agents.tools import FunctionTool, LocalTool

_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")

LOCAL_CALL_TYPES = frozenset(
    ["shell_call", "local_shell_call", "apply_patch_call", "computer_call", "custom_tool_call"]
)

FunctionToolLookupKey: TypeAlias = tuple[str, str] | tuple[str, str, str]


class ToolRef(msgspec.Struct, frozen=True):
    """The canonical key of a tool. Kind and namespace distinguish tools that have the same name.

    ``bare`` tools have only a name, ``namespaced`` tools belong to a :func:`tool_namespace`, ``deferred_top_level``
    tools are loaded by tool search, ``hosted_mcp`` tools run on the MCP server whose label is ``namespace``, and
    ``local`` tools are called by items of the type that is their ``namespace``.
    """

    kind: Literal["bare", "namespaced", "deferred_top_level", "hosted_mcp", "local"]
    name: str
    namespace: str | None = None

    @classmethod
    def from_tool(cls, tool: FunctionTool) -> "ToolRef":
        """Return the key of a declared tool."""
        if tool.local_tool is not None:
            return cls("local", tool.name, tool.local_tool.call_type)
        if tool.namespace is not None:
            return cls("namespaced", tool.name, tool.namespace)
        return cls("deferred_top_level" if tool.defer_loading else "bare", tool.name)

    @classmethod
    def from_call(cls, name: str, namespace: str | None = None) -> "ToolRef":
        """Return the key for the name in a model's call. A deferred tool is called in a namespace of its own name."""
        if not namespace:
            return cls("bare", name)
        return cls("deferred_top_level", name) if namespace == name else cls("namespaced", name, namespace)

    @classmethod
    def from_lookup_key(cls, key: Sequence[str]) -> "ToolRef":
        """Return the key for a :attr:`lookup_key`; raise :class:`ModelBehaviorError` for any other value."""
        match tuple(key):
            case ("bare" | "deferred_top_level" as kind, str(name)):
                return cls(kind, name)
            case ("namespaced" | "hosted_mcp" | "local" as kind, str(namespace), str(name)):
                return cls(kind, name, namespace)
        raise ModelBehaviorError(f"invalid tool key {key!r}")

    @classmethod
    def from_approval(cls, item: Any) -> "ToolRef":
        """Return the key of the tool that an approval item is about."""
        raw = item.raw_item
        if get_field(raw, "type") in ("mcp_approval_request", "hosted_tool_call"):
            label, name = get_field(raw, "server_label"), get_field(raw, "name")
            if label and name:
                return cls("hosted_mcp", name, label)
        key = getattr(item, "tool_lookup_key", None)
        if key is not None:
            return cls.from_lookup_key(key)
        name = getattr(item, "tool_name", None) or get_field(raw, "name")
        if not isinstance(name, str) or not name:
            raise ModelBehaviorError("an approval must name its tool")
        return cls.from_call(name, getattr(item, "tool_namespace", None) or get_field(raw, "namespace"))

    @property
    def lookup_key(self) -> FunctionToolLookupKey:
        """The key as a tuple of strings, to store or compare."""
        return (self.kind, self.name) if self.namespace is None else (self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        if self.namespace is not None and self.kind != "local":
            return f"{self.namespace}.{self.name}"
        return f"deferred_top_level:{self.name}" if self.kind == "deferred_top_level" else self.name


def index_tools_by_ref(tools: Iterable[Any]) -> dict[ToolRef, FunctionTool]:
    """Return the function tools by key, in order; if two have the same key, the first is kept."""
    index: dict[ToolRef, FunctionTool] = {}
    for tool in tools:
        function = as_function_tool(tool)
        if function is not None:
            index.setdefault(ToolRef.from_tool(function), function)
    return index


def as_function_tool(tool: Any) -> FunctionTool | None:
    """Return the function tool by which the calls of a tool are made; ``None`` if the provider makes them."""
    if isinstance(tool, FunctionTool):
        return tool
    return tool.as_function_tool() if isinstance(tool, LocalTool) and not tool.is_run_by_provider() else None


# The fields of a call that say what to do, by its type; those of other calls are in ``arguments``.
_CALL_FIELDS = {
    "shell_call": "action",
    "local_shell_call": "action",
    "apply_patch_call": "operation",
}


def get_call_arguments(item: Any) -> str | None:
    """Return what a call asks for as JSON text, whichever field has it."""
    kind = get_field(item, "type")
    if kind not in LOCAL_CALL_TYPES or not isinstance(item, Mapping):
        arguments = get_field(item, "arguments")
        return arguments if isinstance(arguments, str) else None
    if kind in _CALL_FIELDS:
        return json.dumps(item.get(_CALL_FIELDS[kind]) or {}, ensure_ascii=False)
    names = ("input",) if kind == "custom_tool_call" else ("action", "actions", "pending_safety_checks")
    return json.dumps({name: item[name] for name in names if item.get(name) is not None}, ensure_ascii=False)


def match_tool(tools: Mapping[ToolRef, FunctionTool], ref: ToolRef) -> FunctionTool | None:
    """Return the tool with that key, if any.

    A bare key also matches a deferred tool: models without namespaces call it by its name alone.
    """
    tool = tools.get(ref)
    if tool is None and ref.kind == "bare":
        return tools.get(ToolRef("deferred_top_level", ref.name))
    return tool


def find_tool(tools: Mapping[ToolRef, FunctionTool], ref: ToolRef, *, agent_name: str) -> FunctionTool:
    """Return the tool with that key, or raise :class:`ToolMissing`."""
    tool = match_tool(tools, ref)
    if tool is None:
        raise ToolMissing(str(ref), agent_name=agent_name, known_tools=[str(key) for key in tools])
    return tool


def get_field(raw: Any, name: str) -> Any:
    """Return a field of a raw item, which is a dict or an object of the provider's library."""
    return raw.get(name) if isinstance(raw, (dict, Mapping)) else getattr(raw, name, None)


def to_function_name(text: str) -> str:
    """Return the text in lower case, with an underscore for every character that a function name may not have."""
    return _INVALID_CHARACTER.sub("_", text).lower()
