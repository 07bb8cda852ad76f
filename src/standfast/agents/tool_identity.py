"""Names of tools that survive a program: how a call, an approval and a saved run say which tool they mean."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.agents.errors import ModelBehaviorError, ToolMissing
from standfast.agents.tools import FunctionTool

FunctionToolLookupKey: TypeAlias = tuple[str, str] | tuple[str, str, str]


class ToolRef(msgspec.Struct, frozen=True):
    """The canonical key of a tool. Two tools with one name are told apart by kind and namespace.

    ``bare`` tools have just a name, ``namespaced`` ones belong to a :func:`tool_namespace`, ``deferred_top_level``
    ones are loaded by tool search, and ``hosted_mcp`` ones live at the MCP server that ``namespace`` labels.
    """

    kind: Literal["bare", "namespaced", "deferred_top_level", "hosted_mcp"]
    name: str
    namespace: str | None = None

    @classmethod
    def from_tool(cls, tool: FunctionTool) -> "ToolRef":
        """The key of a tool that was declared."""
        if tool.namespace is not None:
            return cls("namespaced", tool.name, tool.namespace)
        return cls("deferred_top_level" if tool.defer_loading else "bare", tool.name)

    @classmethod
    def from_call(cls, name: str, namespace: str | None = None) -> "ToolRef":
        """The key that a model's call means. A deferred tool is called in a namespace of its own name."""
        if not namespace:
            return cls("bare", name)
        return cls("deferred_top_level", name) if namespace == name else cls("namespaced", name, namespace)

    @classmethod
    def from_lookup_key(cls, key: Sequence[str]) -> "ToolRef":
        """The inverse of :attr:`lookup_key`; anything else is refused."""
        match tuple(key):
            case ("bare" | "deferred_top_level" as kind, str(name)):
                return cls(kind, name)
            case ("namespaced" | "hosted_mcp" as kind, str(namespace), str(name)):
                return cls(kind, name, namespace)
        raise ModelBehaviorError(f"this is no key of a tool: {key!r}")

    @classmethod
    def from_approval(cls, item: Any) -> "ToolRef":
        """The key of the tool that an approval item asks for."""
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
        """The key as plain strings, for those who store or compare it."""
        return (self.kind, self.name) if self.namespace is None else (self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        if self.namespace is not None:
            return f"{self.namespace}.{self.name}"
        return f"deferred_top_level:{self.name}" if self.kind == "deferred_top_level" else self.name


def index_tools_by_ref(tools: Iterable[Any]) -> dict[ToolRef, FunctionTool]:
    """The function tools by their keys, in order; of two with one key the first stays."""
    found: dict[ToolRef, FunctionTool] = {}
    for tool in tools:
        if isinstance(tool, FunctionTool):
            found.setdefault(ToolRef.from_tool(tool), tool)
    return found


def match_tool(tools: Mapping[ToolRef, FunctionTool], ref: ToolRef) -> FunctionTool | None:
    """The tool of that key. A bare key may also mean a deferred tool: models without namespaces call it by its name."""
    tool = tools.get(ref)
    if tool is None and ref.kind == "bare":
        return tools.get(ToolRef("deferred_top_level", ref.name))
    return tool


def find_tool(tools: Mapping[ToolRef, FunctionTool], ref: ToolRef, *, agent_name: str) -> FunctionTool:
    """The tool that is meant, or :class:`ToolMissing`."""
    tool = match_tool(tools, ref)
    if tool is None:
        raise ToolMissing(str(ref), agent_name=agent_name, known_tools=[str(known) for known in tools])
    return tool


def get_field(raw: Any, name: str) -> Any:
    """A part of a raw item, be it a dict or an object of the provider's library."""
    return raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)
