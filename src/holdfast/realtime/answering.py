"""What a call of the model is answered with: by a tool, by a handoff, or by the reason why neither was possible."""

import asyncio
import json
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from holdfast.agents.enablement import enabled
from holdfast.agents.errors import AgentsException, UserError
from holdfast.agents.function_schema import is_async
from holdfast.agents.handoffs import Handoff
from holdfast.agents.tool_refs import ToolRef
from holdfast.agents.tools import FunctionTool
from holdfast.agents.types import resolved
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.changing import Changing
from holdfast.realtime.events import RealtimeToolStart
from holdfast.realtime.model_events import RealtimeModelToolCallEvent
from holdfast.realtime.room import Room
from holdfast.realtime.snapshot import Snapshot
from holdfast.realtime.wire_items import LONGEST, size
from holdfast.toolcalls.call import Call
from holdfast.toolcalls.invoke import Made, Perform, invoke
from holdfast.toolcalls.judge import REJECTED, Verdict
from holdfast.toolcalls.output import plain_value
from holdfast.toolcalls.refusing import ToolErrorFormatterArgs
from holdfast.tracing.inner import handing_span

FAILED = "An error occurred while running the tool."
EXPIRED = "Nobody approved this call in time, so it was not made."
CUT_OFF = "The user began to speak, so this call was cancelled."


@dataclass(frozen=True)
class Answer:
    """``text`` is for the model and ``output`` for the program; ``speak`` asks the model to go on with it."""

    text: str
    output: Any
    speak: bool = True


@dataclass(eq=False)
class Record:
    """One call from its arrival until the model has its answer."""

    event: RealtimeModelToolCallEvent
    snapshot: Snapshot
    arrived_at: float
    call: Call | None = None
    answer: Answer | None = None
    sent: bool = False
    """The model has the answer."""
    running: bool = False
    """The tool itself is at work."""
    cut: bool = False
    """Cancelled, because the user barged in."""
    silent: bool = False
    """The model is to have the answer without speaking of it."""
    undecided: "asyncio.Future[None] | None" = None
    """Done when the person who was asked has decided; there while somebody is asked."""
    parked: asyncio.Event = field(default_factory=asyncio.Event)
    """The conversation does not wait for it: it asks a person, or somebody needs the reader."""
    again: asyncio.Event = field(default_factory=asyncio.Event)
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
    def blocks_a_thread(self) -> bool:
        """Whether its tool is a plain function: that runs in a thread, and threads cannot be stopped."""
        function = getattr(self.tool, "__wrapped__", None)
        return self.running and function is not None and not is_async(function)


def bound(room: Room, record: Record, tool: FunctionTool) -> Call:
    """The call as the toolcalls part knows it."""
    event, agent = record.event, record.snapshot.agent
    item = {"type": "function_call", "call_id": event.call_id, "name": event.name, "arguments": event.arguments}
    return Call(
        tool=tool,
        ref=ToolRef.of(tool),
        item=item,
        raw=event,
        agent=agent,
        owner=room.owner_of(agent),
        arguments=event.arguments,
        idempotency_key=event.call_id,
        run_config=room.run_config,
    )


async def still_enabled(room: Room, record: Record, thing: Any) -> bool:
    return bool(await enabled([thing], room.context, record.snapshot.agent))


async def make(
    room: Room, record: Record, call: Call, *, perform: Perform | None = None, again: bool = False
) -> Answer:
    """Make the call. Input guardrails are asked, output guardrails too, hooks are told.

    ``perform`` makes calls that are more than calling a function; one that goes on ``again`` has begun before.
    """
    made = Made()

    async def started(context: Any, arguments: str) -> Any:
        record.running = True
        if not again:
            agent = record.snapshot.agent
            room.emit(RealtimeToolStart(agent, call.tool, arguments, room.info, call_id=record.id))
        return await (perform or call.tool.invoke)(context, arguments)

    await invoke(call, room.context, made, hooks=room.hooks, perform=started, again=again)
    record.running = False
    text = as_text(made)
    if (length := size(text)) > LONGEST:
        raise UserError(
            f"the output of {call.tool.name} has {length:,} bytes, more than a realtime model can be told; "
            "let it return less"
        )
    return Answer(text, made.output)


async def refused(room: Room, call: Call, verdict: Verdict) -> Answer:
    """What the model is told after a no."""
    text = verdict.message
    words = room.run_config.get("tool_error_formatter")
    if text is None and words is not None:
        args = ToolErrorFormatterArgs("approval_rejected", "function", call.tool.name, call.id, REJECTED, room.context)
        try:
            text = await resolved(words(args))
        except Exception as error:  # noqa: BLE001 - the usual words do
            room.fail(error)
    text = text if isinstance(text, str) else REJECTED
    return Answer(text, text)


async def hand_over(room: Room, changing: Changing, record: Record, handoff: Handoff[Any, Any]) -> Answer:
    """Follow a handoff, unless somebody else has taken over since the call was made."""
    if room.snapshot is not record.snapshot:
        return _overtaken(room)
    with handing_span(record.snapshot.agent.name) as span:
        agent = await handoff.on_invoke_handoff(room.context, record.event.arguments)
        if not isinstance(agent, RealtimeAgent):
            raise UserError(f"the handoff {handoff.tool_name} must lead to a RealtimeAgent, it led to {agent!r}")
        if span is not None:
            span.span_data.to_agent = agent.name
        if not await changing.to(agent, reason="handoff", instead_of=record.snapshot):
            return _overtaken(room)
    text = handoff.get_transfer_message(agent)
    return Answer(text, text)


def _overtaken(room: Room) -> Answer:
    text = f"This handoff was ignored: {room.snapshot.agent.name} has taken over already."
    return Answer(text, text, speak=False)


def missing(record: Record) -> Answer:
    known = [*record.snapshot.tools, *record.snapshot.handoffs]
    text = f"Tool {record.event.name} not found. There are: {', '.join(known) or 'none'}."
    return Answer(text, text)


def failed(error: Exception) -> Answer:
    """What the model is told about an error: our own words are fit for it, a tool's error is the program's business."""
    text = f"{FAILED} {error}" if isinstance(error, AgentsException) and error.__cause__ is None else FAILED
    return Answer(text, text)


def cancelled(*, by_user: bool) -> Answer:
    """What the model is told about a call that was cancelled: by the user's speech, or by itself."""
    text = CUT_OFF if by_user else f"{FAILED} It was cancelled."
    return Answer(text, text, speak=not by_user)


def as_text(made: Made) -> str:
    """The output of a tool as the text that a realtime model takes."""
    told = made.item["output"] if made.item is not None else ""
    if isinstance(told, list):
        texts = [part["text"] for part in told if part.get("type") == "input_text"]
        return "\n".join(texts) if len(texts) == len(told) else json.dumps(told, ensure_ascii=False)
    value = made.output
    if isinstance(value, dict | list | tuple) or hasattr(value, "model_dump") or is_dataclass(value):
        return json.dumps(plain_value(value), ensure_ascii=False)
    return str(told)
