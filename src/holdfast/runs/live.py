"""A run with the live things around it: the agents, the program's context, the session, who listens."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from holdfast.agents.agent import Agent
from holdfast.agents.approvals import Recorded
from holdfast.agents.context import AgentHookContext, RunContextWrapper
from holdfast.agents.errors import AgentMissing
from holdfast.agents.graph import AgentGraph
from holdfast.agents.hooks import RunHooks
from holdfast.history.contract import Session
from holdfast.models.raw import readable
from holdfast.runs.config import RunConfig
from holdfast.runs.conversations import conversation_key
from holdfast.runs.events import StreamEvent
from holdfast.runs.items import (
    HandoffOutputItem,
    InputItem,
    Kinds,
    RunItem,
    ToolApprovalItem,
    ToolCallItem,
    ToolCallOutputItem,
)
from holdfast.runs.state import Entry, State
from holdfast.runs.steps import Outcome
from holdfast.runs.toolbox import Toolbox
from holdfast.runs.usage import usage_record
from holdfast.runs.view import ModelView

Emit: TypeAlias = Callable[[StreamEvent], Awaitable[None]]

UNSAID: Any = object()


class Keeper(Protocol):
    """Whoever writes a run down while it is driven.

    With a keeper every call is kept as soon as it has ended, and nested runs are kept as well, from their beginning.
    """

    async def keep(self, run: "Live", outcome: Outcome) -> None:
        """Take the outcome into the run's state and write it down. Nothing further happens before that is done."""
        ...


class Live:
    """One run while it is driven. ``state`` is what it remembers; everything else can be made again from it.

    ``stopping`` ends the drive before a model is asked again, ``halting`` before any further step but calls that have
    begun. ``raws`` are what the model said and the tools returned as they were, by position in the transcript: what
    JSON cannot hold lives there only. ``standing`` are decisions from outside of this run, about every call of a tool,
    in nested runs too.
    """

    def __init__(
        self,
        state: State,
        *,
        graph: AgentGraph,
        context: RunContextWrapper[Any],
        config: RunConfig,
        hooks: RunHooks[Any] | None = None,
        session: Session | None = None,
        error_handlers: Any = None,
        emit: Emit | None = None,
        keeper: Keeper | None = None,
        route: tuple[str, ...] = (),
        outer_conversation: str | None = None,
    ) -> None:
        self.state, self.graph, self.context, self.config = state, graph, context, config
        self.hooks, self.session, self.error_handlers = hooks, session, error_handlers or {}
        self.emit, self.keeper, self.route = emit, keeper, route
        self._outer_conversation = outer_conversation
        self.view = ModelView()
        self.raws: dict[int, Any] = {}
        self.verdicts: dict[int, Any] = {}
        self.tripped: list[Any] = []
        self.final_output: Any = None
        self.standing: tuple[Recorded, ...] = ()
        self.stopping = False
        self.halting = False
        self.resumed = False
        self.invocation: Any = None
        self._items: dict[int, RunItem] = {}
        self._boxes: dict[str, Toolbox] = {}
        self._unlisted: dict[str, Agent[Any]] = {}

    @property
    def conversation(self) -> str:
        """The key of the conversation that this run belongs to; a nested run belongs to its outer run's."""
        return self._outer_conversation or conversation_key(self.state)

    # --- agents -----------------------------------------------------------------------------------

    @property
    def current_agent(self) -> Agent[Any]:
        return self.agent(self.state.agent)

    def agent(self, path: str) -> Agent[Any]:
        """The agent at a path of this run."""
        found: Agent[Any] | None = self._unlisted.get(path) or self.graph.find(path)
        if found is None:
            raise AgentMissing(path, path.rsplit(":", 1)[-1])
        return found

    def path(self, agent: Agent[Any]) -> str:
        """The path of an agent. One that no declared way leads to gets a path that only this process knows."""
        try:
            return self.graph.path(agent)
        except AgentMissing:
            path = f"unlisted:{agent.name}"
            while self._unlisted.get(path, agent) is not agent:
                path += "~"
            self._unlisted[path] = agent
            return path

    def hook_context(self) -> AgentHookContext[Any]:
        """What the hooks of an agent's start and end are given."""
        own = self.context
        return AgentHookContext(own.context, own.usage, own.turn_input, own.approvals, own.tool_input)

    def unlisted_from(self, other: "Live") -> None:
        """Know the agents that the other run knows beyond the graph."""
        self._unlisted = other._unlisted

    def remember(self, earlier: "Live") -> None:
        """Take over what an earlier run of the same state knows beyond its state."""
        self._unlisted, self._boxes = earlier._unlisted, dict(earlier._boxes)
        self.raws, self.verdicts = dict(earlier.raws), dict(earlier.verdicts)
        self.final_output = earlier.final_output
        self._items = {place: item for place, item in earlier._items.items() if place < len(self.state.transcript)}

    async def toolbox(self, path: str, *, anew: bool = False) -> Toolbox:
        """The agent's tools as they were last offered to its model; ``anew`` asks it again."""
        box = self._boxes.get(path)
        if box is None or anew:
            strict = self.config.tool_name_collision_policy == "error"
            box = self._boxes[path] = await Toolbox.of(self.agent(path), self.context, strict=strict)
        return box

    # --- what it shows ----------------------------------------------------------------------------

    def items(self) -> list[RunItem]:
        """What the run has produced so far, its input not included."""
        positions = range(len(self.state.transcript))
        return [self.item(place) for place in positions if self.state.transcript[place].kind != "given"]

    def item(self, position: int) -> RunItem:
        """The item at a position of the transcript; always the same object for the same position."""
        found = self._items.get(position)
        if found is None:
            found = self._items[position] = self._made(position)
        return found

    def _made(self, position: int) -> RunItem:
        return self.shape(self.state.transcript[position], self.raws.get(position, UNSAID))

    def forget_since(self, position: int) -> None:
        """Show what the transcript says from there on, not what is remembered of it."""
        for kept in (self.raws, self._items):
            for place in [place for place in kept if place >= position]:
                del kept[place]

    def shape(self, entry: Entry, said: Any = UNSAID) -> RunItem:
        """An entry as programs see it; ``said`` is what it was before it became JSON."""
        agent = self.agent(entry.agent)
        if entry.kind == "output":
            value = said if said is not UNSAID else entry.value if entry.value is not None else entry.item.get("output")
            return ToolCallOutputItem(agent, entry.item, value, custom_data=entry.custom_data)
        raw = readable(entry.item) if said is UNSAID else said
        if entry.kind == "call":
            box = self._boxes.get(entry.agent)
            tool = None if box is None or entry.tool is None else box.find(entry.tool)
            if tool is None:
                return ToolCallItem(agent, raw)
            return ToolCallItem(agent, raw, description=tool.description or None, tool_origin=tool.origin)
        if entry.kind == "handed":
            source = self.agent(entry.agent)
            return HandoffOutputItem(agent, entry.item, source, self.agent(entry.target or entry.agent))
        if entry.kind == "input":
            return InputItem(agent, entry.item, input_id=entry.input_id or "")
        return Kinds.plain[entry.kind](agent, raw)  # type: ignore[return-value]

    def interruptions(self) -> list[ToolApprovalItem]:
        """The calls that wait for a person, those of nested agents included."""
        return list(self._waiting(self.state, self.route))

    def _waiting(self, state: State, route: tuple[str, ...]) -> Any:
        for call in state.calls:
            if call.status != "waiting":
                continue
            if call.child is not None:
                yield from self._waiting(call.child, (*route, call.id))
                continue
            entry = state.transcript[call.position]
            yield ToolApprovalItem(
                self.agent(state.agent),
                readable(entry.item),
                tool_name=call.tool.name,
                tool_namespace=call.tool.namespace if call.tool.kind == "namespaced" else None,
                tool_lookup_key=call.tool.lookup_key,
                agent_path=state.agent,
                route=route,
                uncertain=call.uncertain,
            )

    def frozen(self) -> State:
        """The state with what the live objects know by now: decisions and usage."""
        return replace(
            self.state,
            approvals=tuple(self.context.approvals.recorded()),
            usage=usage_record(self.context.usage),
        )
