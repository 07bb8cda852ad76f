"""What a call of the model is answered with: by a tool, by a handoff, or by the reason why neither was possible."""

import asyncio
import json
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from standfast.agents.errors import AgentsException, UserError
from standfast.agents.function_schema import is_async
from standfast.agents.handoffs import Handoff
from standfast.agents.tool_identity import ToolRef
from standfast.agents.tools import FunctionTool, filter_enabled
from standfast.agents.types import maybe_await
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.item_conversion import MAX_TEXT_BYTES, count_bytes
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.events import RealtimeToolStart
from standfast.realtime.model_events import RealtimeModelToolCallEvent
from standfast.tool_calls.approval import REJECTION_MESSAGE, ApprovalCheck
from standfast.tool_calls.call import ToolCall
from standfast.tool_calls.execution import ToolCallOutcome, ToolInvoker, invoke_tool
from standfast.tool_calls.output import ToolErrorFormatterArgs, to_plain_value
from standfast.tracing.instrumentation import maybe_handoff_span

TOOL_FAILED_MESSAGE = "An error occurred while running the tool."
APPROVAL_EXPIRED_MESSAGE = "Nobody approved this call in time, so it was not made."
BARGE_IN_MESSAGE = "The user began to speak, so this call was cancelled."


@dataclass(frozen=True)
class ToolCallResult:
    """``text`` is for the model and ``output`` for the program; ``speak`` asks the model to go on with it."""

    text: str
    output: Any
    start_response: bool = True


@dataclass(eq=False)
class TrackedCall:
    """One call from its arrival until the model has its answer."""

    event: RealtimeModelToolCallEvent
    resolved_agent: ResolvedAgent
    arrived_at: float
    call: ToolCall | None = None
    result: ToolCallResult | None = None
    sent: bool = False
    """The model has the answer."""
    running: bool = False
    """The tool itself is at work."""
    interrupted: bool = False
    """Cancelled, because the user barged in."""
    suppress_response: bool = False
    """The model is to have the answer without speaking of it."""
    pending_approval: "asyncio.Future[None] | None" = None
    """Done when the person who was asked has decided; there while somebody is asked."""
    detached: asyncio.Event = field(default_factory=asyncio.Event)
    """The conversation does not wait for it: it asks a person, or somebody needs the reader."""
    retry_now: asyncio.Event = field(default_factory=asyncio.Event)
    """An answer that could not be sent is worth another try now."""
    task: "asyncio.Task[None] | None" = None

    @property
    def id(self) -> str:
        return self.event.call_id

    @property
    def tool(self) -> FunctionTool | None:
        """What is called, once it is known that there is such a tool."""
        return None if self.call is None else self.call.tool

    @property
    def is_blocking_thread(self) -> bool:
        """Whether its tool is a plain function: that runs in a thread, and threads cannot be stopped."""
        function = getattr(self.tool, "__wrapped__", None)
        return self.running and function is not None and not is_async(function)


def build_call(ctx: SessionContext, tracked_call: TrackedCall, tool: FunctionTool) -> ToolCall:
    """The call as the toolcalls part knows it."""
    event, agent = tracked_call.event, tracked_call.resolved_agent.agent
    item = {"type": "function_call", "call_id": event.call_id, "name": event.name, "arguments": event.arguments}
    return ToolCall(
        tool=tool,
        ref=ToolRef.from_tool(tool),
        item=item,
        raw=event,
        agent=agent,
        owner=ctx.get_owner_name(agent),
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
    """Make the call. Input guardrails are asked, output guardrails too, hooks are told.

    ``perform`` makes calls that are more than calling a function; one that goes on ``again`` has begun before.
    """
    made = ToolCallOutcome()

    async def started(context: Any, arguments: str) -> Any:
        tracked_call.running = True
        if not resumed:
            agent = tracked_call.resolved_agent.agent
            ctx.emit(RealtimeToolStart(agent, call.tool, arguments, ctx.info, call_id=tracked_call.id))
        return await (perform or call.tool.invoke)(context, arguments)

    await invoke_tool(call, ctx.run_context, made, hooks=ctx.hooks, invoker=started, resumed=resumed)
    tracked_call.running = False
    text = output_as_text(made)
    if (length := count_bytes(text)) > MAX_TEXT_BYTES:
        raise UserError(
            f"the output of {call.tool.name} has {length:,} bytes, more than a realtime model can be told; "
            "let it return less"
        )
    return ToolCallResult(text, made.output)


async def make_rejection_result(ctx: SessionContext, call: ToolCall, verdict: ApprovalCheck) -> ToolCallResult:
    """What the model is told after a no."""
    text = verdict.message
    words = ctx.run_config.get("tool_error_formatter")
    if text is None and words is not None:
        args = ToolErrorFormatterArgs(
            "approval_rejected", "function", call.tool.name, call.id, REJECTION_MESSAGE, ctx.run_context
        )
        try:
            text = await maybe_await(words(args))
        except Exception as error:  # noqa: BLE001 - the usual words do
            ctx.emit_error(error)
    text = text if isinstance(text, str) else REJECTION_MESSAGE
    return ToolCallResult(text, text)


async def perform_handoff(
    ctx: SessionContext, agent_switcher: AgentSwitcher, tracked_call: TrackedCall, handoff: Handoff[Any, Any]
) -> ToolCallResult:
    """Follow a handoff, unless somebody else has taken over since the call was made."""
    if ctx.resolved_agent is not tracked_call.resolved_agent:
        return _make_superseded_result(ctx)
    with maybe_handoff_span(tracked_call.resolved_agent.agent.name) as span:
        agent = await handoff.on_invoke_handoff(ctx.run_context, tracked_call.event.arguments)
        if not isinstance(agent, RealtimeAgent):
            raise UserError(f"the handoff {handoff.tool_name} must lead to a RealtimeAgent, it led to {agent!r}")
        if span is not None:
            span.span_data.to_agent = agent.name
        if not await agent_switcher.switch_to(agent, reason="handoff", expected_current=tracked_call.resolved_agent):
            return _make_superseded_result(ctx)
    text = handoff.get_transfer_message(agent)
    return ToolCallResult(text, text)


def _make_superseded_result(ctx: SessionContext) -> ToolCallResult:
    text = f"This handoff was ignored: {ctx.resolved_agent.agent.name} has taken over already."
    return ToolCallResult(text, text, start_response=False)


def make_not_found_result(tracked_call: TrackedCall) -> ToolCallResult:
    known = [*tracked_call.resolved_agent.tools, *tracked_call.resolved_agent.handoffs]
    text = f"Tool {tracked_call.event.name} not found. There are: {', '.join(known) or 'none'}."
    return ToolCallResult(text, text)


def make_error_result(error: Exception) -> ToolCallResult:
    """What the model is told about an error: our own words are fit for it, a tool's error is the program's business."""
    text = (
        f"{TOOL_FAILED_MESSAGE} {error}"
        if isinstance(error, AgentsException) and error.__cause__ is None
        else TOOL_FAILED_MESSAGE
    )
    return ToolCallResult(text, text)


def make_cancelled_result(*, by_user: bool) -> ToolCallResult:
    """What the model is told about a call that was cancelled: by the user's speech, or by itself."""
    text = BARGE_IN_MESSAGE if by_user else f"{TOOL_FAILED_MESSAGE} It was cancelled."
    return ToolCallResult(text, text, start_response=not by_user)


def output_as_text(invocation: ToolCallOutcome) -> str:
    """The output of a tool as the text that a realtime model takes."""
    told = invocation.item["output"] if invocation.item is not None else ""
    if isinstance(told, list):
        texts = [part["text"] for part in told if part.get("type") == "input_text"]
        return "\n".join(texts) if len(texts) == len(told) else json.dumps(told, ensure_ascii=False)
    value = invocation.output
    if isinstance(value, dict | list | tuple) or hasattr(value, "model_dump") or is_dataclass(value):
        return json.dumps(to_plain_value(value), ensure_ascii=False)
    return str(told)
