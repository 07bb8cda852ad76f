"""Contexts, the argument of tools, hooks and guardrails with the program's own object, and the hooks themselves."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from standfast.agents.approvals import ApprovalDecision, Approvals, digest_arguments
from standfast.agents.errors import InvalidDeclaration, ModelBehaviorError
from standfast.agents.tool_identity import FunctionToolLookupKey, ToolRef, get_call_arguments, get_field
from standfast.agents.types import TAgent, TContext
from standfast.base.items import Item
from standfast.base.usage import Usage

if TYPE_CHECKING:
    from standfast.agents.agent import AgentBase
    from standfast.agents.tool_arguments import ParsedArguments
    from standfast.agents.tools import Tool


@dataclass(eq=False)
class RunContextWrapper(Generic[TContext]):
    """The program's ``context`` object together with usage and approvals of the run. It is never sent to a model."""

    context: TContext
    """The object that the program has passed to the run."""
    usage: Usage = field(default_factory=Usage)
    """The requests and tokens of the run so far."""
    turn_input: list[Item] = field(default_factory=list)
    """The input of the run, after the session's history, or what a handoff filter made of it."""
    approvals: Approvals = field(default_factory=Approvals)
    """The decisions about tool calls."""
    tool_input: Any | None = None
    """In an agent that is used as a tool: the arguments of the call."""
    sandbox: Any = field(default=None, repr=False)
    """The sandbox in which the agents of the run work."""
    model_input: list[Item] = field(default_factory=list, init=False, repr=False)
    """What the model received last in this process; empty if that was before the run was resumed."""

    def approve_tool(self, approval_item: Any, always_approve: bool = False, *, arguments: str | None = None) -> None:
        """Approve a call; with ``always_approve`` also every later call of that tool by that agent.

        ``arguments`` (JSON) replace the model's for this call.
        """
        self._decide(approval_item, ApprovalDecision(True, arguments=arguments), always=always_approve)

    def reject_tool(
        self, approval_item: Any, always_reject: bool = False, rejection_message: str | None = None
    ) -> None:
        """Reject a call; with ``always_reject`` also every later one. The model receives ``rejection_message``."""
        self._decide(approval_item, ApprovalDecision(False, message=rejection_message), always=always_reject)

    def is_tool_approved(self, tool_name: str, call_id: str) -> bool | None:
        """Return whether the call was approved (``True``) or rejected (``False``); ``None`` if it is undecided."""
        return self.get_approval_status(tool_name, call_id)

    def get_approval_status(
        self,
        tool_name: str,
        call_id: str,
        *,
        tool_namespace: str | None = None,
        existing_pending: Any | None = None,
        tool_lookup_key: FunctionToolLookupKey | None = None,
        current_invocation: Any | None = None,
    ) -> bool | None:
        """Like :meth:`is_tool_approved`, for a tool that the name alone does not identify.

        With ``current_invocation`` the arguments must be those that were decided on.
        """
        approval_item = current_invocation or existing_pending
        ref = _make_tool_ref(tool_name, tool_namespace, tool_lookup_key, approval_item)
        arguments = getattr(current_invocation, "arguments", None)
        only_name = approval_item is None and tool_namespace is None and tool_lookup_key is None
        decision = self._find_decision(ref, call_id, approval_item, arguments, only_name=only_name)
        return None if decision is None else decision.approved

    def get_rejection_message(
        self,
        tool_name: str,
        call_id: str,
        *,
        tool_namespace: str | None = None,
        existing_pending: Any | None = None,
        tool_lookup_key: FunctionToolLookupKey | None = None,
    ) -> str | None:
        """Return the message for the model that was given with the rejection of this call, if any."""
        ref = _make_tool_ref(tool_name, tool_namespace, tool_lookup_key, existing_pending)
        only_name = existing_pending is None and tool_namespace is None and tool_lookup_key is None
        decision = self._find_decision(ref, call_id, existing_pending, None, only_name=only_name)
        return None if decision is None or decision.approved else decision.message

    def _find_decision(
        self, ref: ToolRef, call_id: str, item: Any, arguments: str | None, *, only_name: bool
    ) -> ApprovalDecision | None:
        """Return the decision; what is known by its name alone may be a request of a hosted MCP server."""
        hosted = self.approvals.find_hosted(ref.name, call_id) if only_name else None
        owner = getattr(item, "agent_path", None)
        return hosted or self.approvals.find(ref, call_id, owner=owner, arguments=arguments)

    def _decide(self, item: Any, decision: ApprovalDecision, *, always: bool) -> None:
        tool, call_id = ToolRef.from_approval(item), item.call_id
        arguments = get_call_arguments(item.raw_item) if tool.kind == "local" else getattr(item, "arguments", None)
        if not isinstance(call_id, str) or not call_id:
            raise ModelBehaviorError(f"a call of {tool} has no id, so it cannot be approved or rejected")
        if always:
            sticky = ApprovalDecision(decision.approved, decision.message)
            self.approvals.record(tool, None, sticky, owner=getattr(item, "agent_path", None))
        digest = None if arguments is None else digest_arguments(arguments)
        exact = ApprovalDecision(decision.approved, decision.message, decision.arguments, digest)
        self.approvals.record(tool, call_id, exact)


@dataclass(eq=False)
class AgentHookContext(RunContextWrapper[TContext]):
    """The context of agent start and end hooks."""


class ToolContext(RunContextWrapper[TContext]):
    """The context of a tool: the context of the run, and the call that the tool answers.

    The call is ``tool_name``, ``tool_namespace``, ``tool_call_id`` and ``tool_arguments``, which is JSON; ``tool_call``
    is the item of the model, and ``agent`` the agent that has the tool.

    ``idempotency_key`` identifies this call: it stays the same if the call is repeated, even after a crash, and no
    other call has it. Pass it to services that must not perform an operation twice.

    ``conversation_key`` is the key under which a tool may keep state between calls: the session's
    ``conversation_key``, which depends on its store and its id, else the provider's conversation id, else the run id.
    Nested agents have that of the outermost run. Empty outside a run.

    ``recorded_call`` is set in durable runs: through it a tool adds to the commit of the call's outcome. ``workspace``
    is set in all runs: by it the saved state of a run that is not durable refers to the variables and files of Python.
    """

    def __init__(
        self,
        context: TContext,
        usage: Usage | None = None,
        tool_name: str | None = None,
        tool_call_id: str | None = None,
        tool_arguments: str | None = None,
        tool_call: Any | None = None,
        *,
        tool_namespace: str | None = None,
        agent: "AgentBase[Any] | None" = None,
        run_config: Any | None = None,
        turn_input: list[Item] | None = None,
        approvals: Approvals | None = None,
        tool_input: Any | None = None,
        idempotency_key: str | None = None,
        conversation_key: str = "",
    ) -> None:
        super().__init__(
            context,
            Usage() if usage is None else usage,
            [] if turn_input is None else turn_input,
            Approvals() if approvals is None else approvals,
            tool_input,
        )
        self.tool_name = _require_string("tool_name", tool_name)
        self.tool_call_id = _require_string("tool_call_id", tool_call_id)
        self.tool_arguments = _require_string("tool_arguments", tool_arguments)
        self.tool_call = tool_call
        self.tool_namespace = tool_namespace or get_field(tool_call, "namespace")
        self.agent, self.run_config = agent, run_config
        self.idempotency_key = idempotency_key or self.tool_call_id
        self.conversation_key = conversation_key
        self.parsed_arguments: ParsedArguments | None = None
        self.recorded_call: Any = None
        self.workspace: Any = None

    @property
    def qualified_tool_name(self) -> str:
        """The name of the tool, prefixed with the namespace if there is one."""
        return str(ToolRef.from_call(self.tool_name, self.tool_namespace)).removeprefix("deferred_top_level:")

    @classmethod
    def from_agent_context(
        cls,
        context: RunContextWrapper[TContext],
        tool_call_id: str,
        tool_call: Any | None = None,
        agent: "AgentBase[Any] | None" = None,
        *,
        tool_name: str | None = None,
        tool_arguments: str | None = None,
        tool_namespace: str | None = None,
        run_config: Any | None = None,
        idempotency_key: str | None = None,
        conversation_key: str | None = None,
    ) -> "ToolContext[TContext]":
        """Return the context of one call within a run. It shares usage and approvals with the run."""
        return cls(
            context.context,
            context.usage,
            tool_name or get_field(tool_call, "name"),
            tool_call_id,
            get_field(tool_call, "arguments") if tool_arguments is None else tool_arguments,
            tool_call,
            tool_namespace=tool_namespace,
            agent=agent or getattr(context, "agent", None),
            run_config=run_config or getattr(context, "run_config", None),
            turn_input=context.turn_input,
            approvals=context.approvals,
            tool_input=context.tool_input,
            idempotency_key=idempotency_key,
            conversation_key=getattr(context, "conversation_key", "") if conversation_key is None else conversation_key,
        )


def _require_string(name: str, value: str | None) -> str:
    if not isinstance(value, str):
        raise InvalidDeclaration("ToolContext", f"{name} must be a string, got {value!r}")
    return value


def _make_tool_ref(name: str, namespace: str | None, key: FunctionToolLookupKey | None, item: Any | None) -> ToolRef:
    if key is not None:
        return ToolRef.from_lookup_key(key)
    return ToolRef.from_approval(item) if item is not None else ToolRef.from_call(name, namespace)


class RunHooksBase(Generic[TContext, TAgent]):
    """Hooks of a run, called for all its agents. An exception in a hook ends the run."""

    async def on_llm_start(
        self, context: "RunContextWrapper[TContext]", agent: Any, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """Called before a request to the model."""

    async def on_llm_end(self, context: "RunContextWrapper[TContext]", agent: Any, response: Any) -> None:
        """Called after the response of the model."""

    async def on_agent_start(self, context: "AgentHookContext[TContext]", agent: Any) -> None:
        """Called before an agent becomes active, including the first, and when its run is resumed."""

    async def on_agent_end(self, context: "AgentHookContext[TContext]", agent: Any, output: Any) -> None:
        """Called after an agent has produced the final output."""

    async def on_handoff(self, context: "RunContextWrapper[TContext]", from_agent: Any, to_agent: Any) -> None:
        """Called when one agent hands off to another."""

    async def on_tool_start(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool") -> None:
        """Called before a local tool; ``context`` is its :class:`ToolContext`."""

    async def on_tool_end(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool", result: Any) -> None:
        """Called after a local tool has returned."""


class RunHooks(RunHooksBase[TContext, Any]):
    """Hooks of a run. Subclass it with or without the type of the context."""


class AgentHooksBase(Generic[TContext, TAgent]):
    """Hooks of one agent, set as its ``hooks``. An exception in a hook ends the run."""

    async def on_start(self, context: "AgentHookContext[TContext]", agent: Any) -> None:
        """Called before the agent becomes active, and when its run is resumed."""

    async def on_end(self, context: "AgentHookContext[TContext]", agent: Any, output: Any) -> None:
        """Called after the agent has produced the final output."""

    async def on_handoff(self, context: "RunContextWrapper[TContext]", agent: Any, source: Any) -> None:
        """Called when ``source`` hands off to ``agent``, on the hooks of both; once if they share them."""

    async def on_tool_start(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool") -> None:
        """Called before one of the agent's local tools."""

    async def on_tool_end(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool", result: Any) -> None:
        """Called after one of the agent's local tools has returned."""

    async def on_llm_start(
        self, context: "RunContextWrapper[TContext]", agent: Any, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """Called before a request to the agent's model."""

    async def on_llm_end(self, context: "RunContextWrapper[TContext]", agent: Any, response: Any) -> None:
        """Called after the response of the agent's model."""


class AgentHooks(AgentHooksBase[TContext, Any]):
    """Hooks of an agent. Subclass it with or without the type of the context."""
