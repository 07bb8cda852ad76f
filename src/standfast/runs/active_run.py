"""A run while the driver works on it: its state, agents, tools, context, session and listeners."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.approvals import RecordedDecision
from standfast.agents.context import AgentHookContext, RunContextWrapper, RunHooksBase
from standfast.agents.errors import AgentMissing
from standfast.agents.graph import AgentGraph
from standfast.agents.tools import FunctionTool, LocalTool, ToolOrigin, ToolOriginType
from standfast.base.items import Item
from standfast.base.log import log
from standfast.history.session import Session, get_conversation_key
from standfast.models.interface import wrap_attributes
from standfast.runs._loop.model_input import ModelInputBuilder
from standfast.runs.config import RunConfig
from standfast.runs.core.conversion import make_guardrail_record, to_usage_record
from standfast.runs.core.state import (
    CallRecord,
    GuardrailRecord,
    SessionConversation,
    State,
    TranscriptEntry,
    get_state_key,
    list_finished_calls,
)
from standfast.runs.core.steps import Outcome
from standfast.runs.items import (
    HandoffOutputItem,
    InputItem,
    ItemTypes,
    RunItem,
    StreamEvent,
    ToolApprovalItem,
    ToolCallItem,
    ToolCallOutputItem,
)
from standfast.runs.toolbox import Toolbox
from standfast.tool_calls.call import ToolCall
from standfast.workspaces.run_workspace import RunWorkspace

EmitCallback: TypeAlias = Callable[[StreamEvent], Awaitable[None]]
CatchUpCallback: TypeAlias = Callable[[bool], Awaitable[None]]

UNSET: Any = object()


class OutcomeRecorder(Protocol):
    """Makes a run durable while it is driven.

    With a recorder every call is recorded as soon as it has ended, and nested runs are recorded from their start.
    """

    async def record_outcome(self, run: "ActiveRun", outcome: Outcome, call: Any = None) -> None:
        """Apply the outcome to the run's state and record it, with what its ``call`` from :meth:`open_call` adds.

        The driver waits for this before the next step. With a ``call`` it waits to the end even if it is cancelled.
        """
        ...

    async def before_request(self, run: "ActiveRun") -> None:
        """Raise an exception if the run may not ask its model now."""
        ...

    def open_call(self, run: "ActiveRun", record: CallRecord) -> Any:
        """Return the object by which a call that is about to be made adds to the record of its outcome.

        Its ``finish`` is called when the outcome is recorded, or never will be.
        """
        ...

    def open_sandbox(self, run: "ActiveRun") -> Any:
        """Return the stored workspace of the run, a :class:`~standfast.sandbox.stored_workspace.StoredSandbox`."""
        ...


class RunOrigin(Protocol):
    """The object that a run was resumed from; it takes over what the run does."""

    def claim(self, run: "ActiveRun") -> None: ...

    def release(self, run: "ActiveRun") -> None: ...


def _do_nothing() -> None:
    return


class ActiveRun:
    """One run while it is driven. Everything except ``state`` can be rebuilt from it.

    ``stop_after_turn`` ends the drive before the next model call, ``stop_after_step`` before any further step except
    calls that have started. ``raw_items`` holds model items and tool outputs as the original objects, by position in
    the transcript: values that JSON cannot represent exist only there. ``standing_decisions`` were made outside of this
    run, apply to every call of a tool and hold in nested runs too.
    """

    def __init__(
        self,
        state: State,
        *,
        graph: AgentGraph,
        context: RunContextWrapper[Any],
        config: RunConfig,
        hooks: RunHooksBase[Any, Any] | None = None,
        session: Session | None = None,
        error_handlers: Any = None,
        emit: EmitCallback | None = None,
        recorder: OutcomeRecorder | None = None,
        route: tuple[str, ...] = (),
        outer_conversation_key: str | None = None,
        workspace: RunWorkspace | None = None,
    ) -> None:
        self.state, self.graph, self.context, self.config = state, graph, context, config
        self.hooks, self.session, self.error_handlers = hooks, session, error_handlers or {}
        self.emit, self.recorder, self.route = emit, recorder, route
        self.catch_up: CatchUpCallback | None = None
        """Lets the reader of the events handle them, and with ``True`` waits until it has."""
        self._outer_conversation_key = outer_conversation_key
        self.workspace = workspace or RunWorkspace(state.run_id, state.workspace)
        self._start = len(state.transcript)
        self.model_input = ModelInputBuilder()
        self.raw_items: dict[int, Any] = {}
        self.approved_calls: dict[int, ToolCall] = {}
        """The calls that were approved as the model made them and are not made yet, by position."""
        self.guardrail_results: dict[int, Any] = {}
        self.unrecorded_results: list[Any] = []
        """The results of input guardrails in a step that failed, which has no outcome."""
        self.final_output: Any = None
        self.on_output_parsed: Callable[[], None] = _do_nothing
        """Ends the span of the last turn, before hooks and guardrails see the final output."""
        self.standing_decisions: tuple[RecordedDecision, ...] = ()
        self.is_session_new = False
        """Whether the session had no items when this run got it: then its history is not read."""
        self.stop_after_turn = False
        self.stop_after_step = False
        self.resumed = False
        self.start_hooks_due = False
        """Whether the start hooks of the agent run before the next model call, although they have run before."""
        self.invocation: Any = None
        self.origin: RunOrigin | None = None
        self.origin_data: State | None = None
        self._item_cache: dict[int, RunItem] = {}
        self._approval_items: dict[int, tuple[int, ToolApprovalItem]] = {}
        self._toolboxes: dict[str, Toolbox] = {}
        self._unlisted_agents: dict[str, Agent[Any]] = {}

    @property
    def conversation_key(self) -> str:
        """The key of the conversation that this run belongs to; a nested run belongs to that of its outer run."""
        if self._outer_conversation_key:
            return self._outer_conversation_key
        if self.session is not None and isinstance(self.state.conversation, SessionConversation):
            return get_conversation_key(self.session, self.session.session_id)
        return get_state_key(self.state)

    # --- agents -----------------------------------------------------------------------------------

    @property
    def current_agent(self) -> Agent[Any]:
        return self.get_agent(self.state.agent)

    def get_agent(self, path: str) -> Agent[Any]:
        """Return the agent at a path, or raise :class:`AgentMissing`."""
        agent: Agent[Any] | None = self._unlisted_agents.get(path) or self.graph.find(path)
        if agent is None:
            raise AgentMissing(path, path.rsplit(":", 1)[-1])
        return agent

    def get_agent_path(self, agent: Agent[Any]) -> str:
        """Return the path of an agent. One that no declared handoff reaches gets a path valid in this process only."""
        try:
            return self.graph.get_path(agent)
        except AgentMissing:
            path = f"unlisted:{agent.name}"
            while self._unlisted_agents.get(path, agent) is not agent:
                path += "~"
            self._unlisted_agents[path] = agent
            return path

    def make_hook_context(self, turn_input: list[Item]) -> AgentHookContext[Any]:
        """Return the context for the start and end hooks of an agent."""
        run = self.context
        return AgentHookContext(run.context, run.usage, turn_input, run.approvals, run.tool_input)

    def share_unlisted_agents(self, other: "ActiveRun") -> None:
        """Use the same table of agents outside of the graph as the other run."""
        self._unlisted_agents = other._unlisted_agents

    def copy_caches(self, earlier: "ActiveRun") -> None:
        """Take over the objects of an earlier run of the same state that are not part of the state."""
        self._unlisted_agents, self._toolboxes = earlier._unlisted_agents, dict(earlier._toolboxes)
        self.raw_items, self.guardrail_results = dict(earlier.raw_items), dict(earlier.guardrail_results)
        self.final_output, self._approval_items = earlier.final_output, dict(earlier._approval_items)
        self._item_cache = {
            place: item for place, item in earlier._item_cache.items() if place < len(self.state.transcript)
        }

    async def get_toolbox(self, path: str, *, refresh: bool = False) -> Toolbox:
        """Return the agent's tools as last offered to its model; ``refresh`` asks the agent again."""
        box = self._toolboxes.get(path)
        if box is None or refresh:
            strict = self.config.tool_name_collision_policy == "error"
            box = self._toolboxes[path] = await Toolbox.from_agent(self.get_agent(path), self.context, strict=strict)
        return box

    def finishes_at_once(self) -> bool:
        """Return whether the run ends with the last response as it is, without calling code of the program before."""
        state, agent = self.state, self.current_agent
        return (
            state.answer is not None
            and state.answer.text is not None
            and state.answer.refusal is None
            and not (state.answer.accepted or state.calls or self.route)
            and agent.output_type in (None, str)
            and not (agent.hooks or self.hooks or agent.output_guardrails or self.config.output_guardrails)
            and self.config.sandbox is None
            and not self._list_local_tools()
        )

    def _list_local_tools(self) -> list[LocalTool]:
        return [tool for box in self._toolboxes.values() for tool in box.tools if isinstance(tool, LocalTool)]

    async def release_tools(self) -> None:
        """Release what tools have made for this run; a failure is logged."""
        for tool in self._list_local_tools():
            try:
                await tool.release(self.context)
            except Exception:  # noqa: BLE001 - the run has ended
                log.exception("the tool %r could not release what it made for the run %s", tool.name, self.state.run_id)

    # --- items ------------------------------------------------------------------------------------

    def get_items(self) -> list[RunItem]:
        """Return the items that the run has produced so far, without its input."""
        self.note_approvals()
        approvals: dict[int, list[RunItem]] = {}
        for before, approval in self._approval_items.values():
            approvals.setdefault(before, []).append(approval)
        items: list[RunItem] = []
        for place, entry in enumerate(self.state.transcript):
            items += approvals.get(place, ())
            if entry.kind != "given" and not entry.hidden:
                items.append(self.get_item(place))
        items += approvals.get(len(self.state.transcript), ())
        return items

    def note_approvals(self) -> None:
        """Remember the calls that wait for approval now, as items before the outputs of the calls that follow them."""
        for index, call in enumerate(self.state.calls):
            asks = call.status == "waiting" and call.child is None and not call.uncertain
            if not asks or call.position in self._approval_items:
                continue
            later = {other.id for other in self.state.calls[index + 1 :]}
            places = range(self.state.responses[-1].stop, len(self.state.transcript))
            before = [place for place in places if self.state.transcript[place].item.get("call_id") in later]
            item = self.make_approval_item(self.state, call, self.route)
            self._approval_items[call.position] = min(before, default=len(self.state.transcript)), item

    def get_item(self, position: int) -> RunItem:
        """Return the item at a position of the transcript: always the same object for the same position."""
        item = self._item_cache.get(position)
        if item is None:
            item = self._item_cache[position] = self._make_item(position)
        return item

    def _make_item(self, position: int) -> RunItem:
        return self.build_item(self.state.transcript[position], self.raw_items.get(position, UNSET))

    def discard_from(self, position: int) -> None:
        """Drop the cached objects from this position on: the transcript behind it has changed."""
        for cache in (self.raw_items, self._item_cache):
            for place in [place for place in cache if place >= position]:
                del cache[place]

    def build_item(self, entry: TranscriptEntry, original: Any = UNSET) -> RunItem:
        """Return the public item of an entry; ``original`` is the object that was converted to its JSON."""
        agent = self.get_agent(entry.agent)
        if entry.kind == "output":
            value = (
                original
                if original is not UNSET
                else entry.value
                if entry.value is not None
                else entry.item.get("output")
            )
            tool = self._find_tool(entry)
            origin = None if tool is None else tool.origin
            return ToolCallOutputItem(agent, entry.item, value, tool_origin=origin, custom_data=entry.custom_data)
        raw = wrap_attributes(entry.item) if original is UNSET else original
        if entry.kind == "call":
            tool = self._find_tool(entry)
            if tool is None:
                server = entry.item.get("server_label") if entry.item.get("type") == "mcp_call" else None
                return ToolCallItem(
                    agent, raw, tool_origin=server and ToolOrigin(ToolOriginType.MCP, mcp_server_name=server)
                )
            description, title = tool.description, tool.title
            return ToolCallItem(agent, raw, description=description, title=title, tool_origin=tool.origin)
        if entry.kind == "handed":
            source = self.get_agent(entry.agent)
            return HandoffOutputItem(agent, entry.item, source, self.get_agent(entry.target or entry.agent))
        if entry.kind == "input":
            return InputItem(agent, entry.item, input_id=entry.input_id or "")
        return ItemTypes.by_kind[entry.kind](agent, raw)  # type: ignore[return-value]

    def _find_tool(self, entry: TranscriptEntry) -> FunctionTool | None:
        box = self._toolboxes.get(entry.agent)
        return None if box is None or entry.tool is None else box.find_tool(entry.tool)

    async def load_toolboxes(self) -> None:
        """Ask the agents of this run for their tools, so that items of a loaded run describe them."""
        for path in {entry.agent for entry in self.state.transcript if entry.tool is not None}:
            await self.get_toolbox(path)

    def record_guardrails(self, results: Sequence[Any]) -> tuple[GuardrailRecord, ...]:
        """Keep the results as programs see them, and return their records for the next outcome."""
        if not results:
            return ()
        start = len(self.state.guardrails)
        self.guardrail_results.update((start + index, result) for index, result in enumerate(results))
        return tuple(make_guardrail_record(result, agent=self.state.agent) for result in results)

    def get_interruptions(self) -> list[ToolApprovalItem]:
        """Return the calls that wait for approval, those of nested agents included."""
        return list(self._iter_interruptions(self.state, self.route))

    def _iter_interruptions(self, state: State, route: tuple[str, ...]) -> Any:
        for call in state.calls:
            if call.status != "waiting":
                continue
            if call.child is not None:
                yield from self._iter_interruptions(call.child, (*route, call.id))
                continue
            yield self.make_approval_item(state, call, route)

    def make_approval_item(self, state: State, call: CallRecord, route: tuple[str, ...] = ()) -> ToolApprovalItem:
        """Return the item by which a person or the program decides about a call."""
        entry = state.transcript[call.position]
        item, tool = entry.item, self._find_tool(entry)
        as_made = call.shown is None or call.shown == item.get("arguments")
        original = self.raw_items.get(call.position) if as_made and state is self.state else item
        return ToolApprovalItem(
            self.get_agent(state.agent),
            wrap_attributes(item if as_made else {**item, "arguments": call.shown})
            if original is None or isinstance(original, dict)
            else original,
            tool_name=call.tool.name,
            tool_namespace=call.tool.namespace if call.tool.kind == "namespaced" else None,
            tool_origin=None if tool is None else tool.origin,
            tool_lookup_key=call.tool.lookup_key,
            agent_path=state.agent,
            route=route,
            uncertain=call.uncertain,
        )

    def capture_state(self) -> State:
        """Return the state with the decisions and the usage of the run context in it, and where its workspace is."""
        return replace(
            self.state,
            workspace=self.workspace.find_reference(list_finished_calls(self.state, start=self._start)),
            approvals=tuple(self.context.approvals.list_decisions()),
            usage=to_usage_record(self.context.usage),
        )
