"""The permissions of a server: which tools an agent may use, and which calls need a person's approval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.types import MaybeAwaitable, NeedsApproval, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from mcp.types import Tool as MCPTool

_log = get_logger("standfast.mcp")


class ToolFilterStatic(TypedDict):
    """A filter by name. If both lists are given, a tool must be allowed and not blocked."""

    allowed_tool_names: NotRequired[list[str]]
    blocked_tool_names: NotRequired[list[str]]


@dataclass
class ToolFilterContext:
    """The agent and the run for which a filter decides."""

    run_context: RunContextWrapper[Any]
    agent: AgentBase[Any]
    server_name: str


ToolFilterCallable: TypeAlias = Callable[[ToolFilterContext, "MCPTool"], MaybeAwaitable[bool]]
ToolFilter: TypeAlias = ToolFilterCallable | ToolFilterStatic | None


def create_static_tool_filter(
    allowed_tool_names: list[str] | None = None, blocked_tool_names: list[str] | None = None
) -> ToolFilterStatic | None:
    """Return a filter by name, or None if neither list is given."""
    tool_filter: ToolFilterStatic = {}
    if allowed_tool_names is not None:
        tool_filter["allowed_tool_names"] = allowed_tool_names
    if blocked_tool_names is not None:
        tool_filter["blocked_tool_names"] = blocked_tool_names
    return tool_filter or None


def validate_tool_filter(tool_filter: ToolFilter, *, server_name: str) -> None:
    """Raise :class:`InvalidDeclaration` for an invalid filter, when the server is declared and not later in a run."""
    if tool_filter is None or callable(tool_filter):
        return
    keys = {"allowed_tool_names", "blocked_tool_names"}
    if not isinstance(tool_filter, dict) or set(tool_filter) - keys:
        raise InvalidDeclaration(
            f"MCP server {server_name!r}",
            f"tool_filter must be a function or a dict with {' and '.join(sorted(keys))}, got {tool_filter!r}",
        )


async def filter_tools(
    tools: "Sequence[MCPTool]",
    tool_filter: ToolFilter,
    *,
    server_name: str,
    run_context: RunContextWrapper[Any] | None,
    agent: AgentBase[Any] | None,
) -> "list[MCPTool]":
    """Return the allowed tools. A tool for which the filter function raises is left out, and the error is logged."""
    if tool_filter is None:
        return list(tools)
    if not callable(tool_filter):
        allowed, blocked = tool_filter.get("allowed_tool_names"), tool_filter.get("blocked_tool_names") or ()
        return [tool for tool in tools if (allowed is None or tool.name in allowed) and tool.name not in blocked]
    if run_context is None or agent is None:
        raise UserError(
            f"the tool_filter of the MCP server {server_name!r} is a function: "
            "pass a run_context and an agent to list_tools()"
        )
    context = ToolFilterContext(run_context, agent, server_name)
    return [tool for tool in tools if await _is_allowed(tool_filter, context, tool)]


async def _is_allowed(tool_filter: ToolFilterCallable, context: ToolFilterContext, tool: "MCPTool") -> bool:
    try:
        return bool(await maybe_await(tool_filter(context, tool)))
    except Exception:  # noqa: BLE001 - the function is the program's
        _log.exception(
            "the tool_filter of the MCP server %r failed for the tool %r, which is left out",
            context.server_name,
            tool.name,
        )
        return False


RequireApprovalPolicy: TypeAlias = Literal["always", "never"]


class RequireApprovalToolList(TypedDict):
    """The names of some tools."""

    tool_names: list[str]


class RequireApprovalObject(TypedDict):
    """Tools by policy.

    With ``always``, only the tools listed there need approval. With ``never`` alone, all tools not listed need it.
    """

    always: NotRequired[RequireApprovalToolList]
    never: NotRequired[RequireApprovalToolList]


LocalMCPApprovalCallable: TypeAlias = Callable[
    [RunContextWrapper[Any], AgentBase[Any], "MCPTool"], MaybeAwaitable[bool]
]
RequireApprovalSetting: TypeAlias = (
    RequireApprovalPolicy
    | bool
    | dict[str, RequireApprovalPolicy]
    | RequireApprovalObject
    | LocalMCPApprovalCallable
    | None
)


class ApprovalRule:
    """A validated ``require_approval`` setting."""

    def __init__(self, setting: RequireApprovalSetting) -> None:
        self._callback: LocalMCPApprovalCallable | None = None
        self._by_name: dict[str, bool] = {}
        self._default = False
        if callable(setting):
            self._callback = setting
        elif isinstance(setting, Mapping):
            self._load_mapping(setting)
        else:
            self._default = False if setting is None else _parse_policy(setting, "require_approval")

    def for_tool(self, tool: "MCPTool", agent: AgentBase[Any] | None) -> NeedsApproval:
        """Return whether calls of ``tool`` need approval.

        A setting that is a function decides for each call; without an agent to pass to it, every call needs approval.
        """
        if self._callback is None:
            return self._by_name.get(tool.name, self._default)
        if agent is None:
            return True
        callback = self._callback

        async def needs_approval(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
            return bool(await maybe_await(callback(context, agent, tool)))

        return needs_approval

    def _load_mapping(self, setting: Mapping[str, Any]) -> None:
        if not any(isinstance(value, Mapping) for value in setting.values()):
            self._by_name = {
                name: _parse_policy(value, f"require_approval[{name!r}]") for name, value in setting.items()
            }
            return
        for policy in ("never", "always"):  # a tool that is in both lists needs approval
            names = setting.get(policy, {}).get("tool_names", [])
            self._by_name.update(dict.fromkeys(names, policy == "always"))
        if unknown := set(setting) - {"always", "never"}:
            raise InvalidDeclaration(
                "require_approval", f"expected the keys 'always' and 'never', got {sorted(unknown)}"
            )
        self._default = "always" not in setting


def _parse_policy(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("always", "never"):
        raise InvalidDeclaration(where, f"must be 'always', 'never', a bool, a dict or a function, got {value!r}")
    return bool(value == "always")
