"""The outputs of tool calls: results of tools and handoffs, and messages about calls that failed."""

import asyncio
import json
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from standfast.agents.errors import AgentsException, UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.tool_identity import ToolRef
from standfast.agents.tools import FunctionTool, ToolErrorFormatterArgs, filter_enabled
from standfast.agents.types import is_async, maybe_await
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.item_conversion import MAX_TEXT_BYTES, count_bytes
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.events import RealtimeToolStart
from standfast.realtime.model_events import RealtimeModelToolCallEvent
from standfast.tool_calls.call import REJECTION_MESSAGE, ApprovalCheck, ToolCall
from standfast.tool_calls.execution import ToolCallOutcome, ToolInvoker, invoke_tool
from standfast.tool_calls.output import to_plain_value
from standfast.tracing.create import maybe_handoff_span

TOOL_FAILED_MESSAGE = "An error occurred while running the tool."
APPROVAL_EXPIRED_MESSAGE = "This call was not approved in time, so it was not made."
BARGE_IN_MESSAGE = "The user began to speak, so this call was cancelled."


@dataclass(frozen=True)
class ToolCallResult:
    """The output of a call: ``text`` for the model and ``output`` for the program.

    With ``start_response`` the model responds to it.
    """

    text: str
    output: Any
    start_response: bool = True


@dataclass(eq=False)
class TrackedCall:
    """One call, from its arrival until the model has its output."""

    event: RealtimeModelToolCallEvent
    resolved_agent: ResolvedAgent
    arrived_at: float
    call: ToolCall | None = None
    result: ToolCallResult | None = None
    sent: bool = False
    """The model has the output."""
    running: bool = False
    """The tool itself is running."""
    interrupted: bool = False
    """Cancelled by a barge-in."""
    suppress_response: bool = False
    """The model gets the output without responding to it."""
    pending_approval: "asyncio.Future[None] | None" = None
    """Set while the call waits for approval; done when it is decided."""
    detached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next event need not wait for the call: it waits for approval, or the session waits for an event."""
    retry_now: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a failed delivery should be retried at once."""
    task: "asyncio.Task[None] | None" = None

    @property
    def id(self) -> str:
        return self.event.call_id

    @property
    def tool(self) -> FunctionTool | None:
        """The tool, once it is known to exist."""
        return None if self.call is None else self.call.tool

    @property
    def is_blocking_thread(self) -> bool:
        """Whether its tool is a plain function that is running in a thread, which cannot be stopped."""
        function = getattr(self.tool, "__wrapped__", None)
        return self.running and function is not None and not is_async(function)


def build_call(ctx: SessionContext, tracked_call: TrackedCall, tool: FunctionTool, *, owner: str) -> ToolCall:
    """Build the call for :mod:`standfast.tool_calls`."""
    event, agent = tracked_call.event, tracked_call.resolved_agent.agent
    item = {"type": "function_call", "call_id": event.call_id, "name": event.name, "arguments": event.arguments}
    return ToolCall(
        tool=tool,
        ref=ToolRef.from_tool(tool),
        item=item,
        raw=event,
        agent=agent,
        owner=owner,
        arguments=event.arguments,
        idempotency_key=event.call_id,
        run_config=ctx.run_config,
    )


async def is_still_enabled(ctx: SessionContext, tracked_call: TrackedCall, tool_or_handoff: Any) -> bool:
    return bool(await filter_enabled([tool_or_handoff], ctx.run_context, tracked_call.resolved_agent.agent))


async def execute_call(
    ctx: SessionContext,
    tracked_call: TrackedCall,
    call: ToolCall,
    *,
    perform: ToolInvoker | None = None,
    resumed: bool = False,
) -> ToolCallResult:
    """Execute the call with its guardrails and hooks.

    ``perform`` replaces the call of the tool's function. A ``resumed`` call has started before.
    """
    outcome = ToolCallOutcome()

    async def invoke(context: Any, arguments: str) -> Any:
        tracked_call.running = True
        if not resumed:
            agent = tracked_call.resolved_agent.agent
            ctx.emit(RealtimeToolStart(agent, call.tool, arguments, ctx.info, call_id=tracked_call.id))
        return await (perform or call.tool.invoke)(context, arguments)

    await invoke_tool(call, ctx.run_context, outcome, hooks=ctx.hooks, invoker=invoke, resumed=resumed)
    tracked_call.running = False
    text = output_as_text(outcome)
    if (length := count_bytes(text)) > MAX_TEXT_BYTES:
        raise UserError(
            f"the output of {call.tool.name} has {length:,} bytes; a realtime model takes at most {MAX_TEXT_BYTES:,}. "
            "Let the tool return less"
        )
    return ToolCallResult(text, outcome.output)


async def make_rejection_result(ctx: SessionContext, call: ToolCall, check: ApprovalCheck) -> ToolCallResult:
    """Make the output of a call that was rejected."""
    text = check.message
    formatter = ctx.run_config.get("tool_error_formatter")
    if text is None and formatter is not None:
        args = ToolErrorFormatterArgs(
            "approval_rejected", "function", call.tool.name, call.id, REJECTION_MESSAGE, ctx.run_context
        )
        try:
            text = await maybe_await(formatter(args))
        except Exception as error:  # noqa: BLE001 - the default message is used
            ctx.emit_error(error)
    text = text if isinstance(text, str) else REJECTION_MESSAGE
    return ToolCallResult(text, text)


async def perform_handoff(
    ctx: SessionContext, agent_switcher: AgentSwitcher, tracked_call: TrackedCall, handoff: Handoff[Any, Any]
) -> ToolCallResult:
    """Switch to the agent of a handoff, unless another agent has taken over since the call."""
    if agent_switcher.current is not tracked_call.resolved_agent:
        return _make_superseded_result(agent_switcher)
    with maybe_handoff_span(tracked_call.resolved_agent.agent.name) as span:
        agent = await handoff.on_invoke_handoff(ctx.run_context, tracked_call.event.arguments)
        if not isinstance(agent, RealtimeAgent):
            raise UserError(f"the handoff {handoff.tool_name} must return a RealtimeAgent, got {agent!r}")
        if span is not None:
            span.span_data.to_agent = agent.name
        if not await agent_switcher.switch_to(agent, reason="handoff", expected_current=tracked_call.resolved_agent):
            return _make_superseded_result(agent_switcher)
    text = handoff.get_transfer_message(agent)
    return ToolCallResult(text, text)


def _make_superseded_result(agent_switcher: AgentSwitcher) -> ToolCallResult:
    text = f"This handoff was ignored: {agent_switcher.current.agent.name} has taken over already."
    return ToolCallResult(text, text, start_response=False)


def make_not_found_result(tracked_call: TrackedCall) -> ToolCallResult:
    names = [*tracked_call.resolved_agent.tools, *tracked_call.resolved_agent.handoffs]
    text = f"Tool {tracked_call.event.name} not found. There are: {', '.join(names) or 'none'}."
    return ToolCallResult(text, text)


def make_error_result(error: Exception) -> ToolCallResult:
    """Make the output of a call that raised. Errors of a tool are left out: they may be confidential."""
    text = (
        f"{TOOL_FAILED_MESSAGE} {error}"
        if isinstance(error, AgentsException) and error.__cause__ is None
        else TOOL_FAILED_MESSAGE
    )
    return ToolCallResult(text, text)


def make_cancelled_result(*, by_user: bool) -> ToolCallResult:
    """Make the output of a call that was cancelled, by a barge-in or by itself."""
    text = BARGE_IN_MESSAGE if by_user else f"{TOOL_FAILED_MESSAGE} It was cancelled."
    return ToolCallResult(text, text, start_response=not by_user)


def output_as_text(invocation: ToolCallOutcome) -> str:
    """Convert the output of a tool to the text that a realtime model takes."""
    output = invocation.item["output"] if invocation.item is not None else ""
    if isinstance(output, list):
        texts = [part["text"] for part in output if part.get("type") == "input_text"]
        return "\n".join(texts) if len(texts) == len(output) else json.dumps(output, ensure_ascii=False)
    value = invocation.output
    if isinstance(value, dict | list | tuple) or hasattr(value, "model_dump") or is_dataclass(value):
        return json.dumps(to_plain_value(value), ensure_ascii=False)
    return str(output)
