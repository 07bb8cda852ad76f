"""The ``require_approval`` setting of a server: which tool calls need a person's approval."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.types import MaybeAwaitable, NeedsApproval, maybe_await

if TYPE_CHECKING:
    from mcp.types import Tool as MCPTool

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
