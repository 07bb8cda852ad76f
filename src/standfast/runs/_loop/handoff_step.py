"""Switch to another agent, and select what its model is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.errors import ModelBehaviorError, UserError
from standfast.agents.handoff_filters import nest_handoff_history
from standfast.agents.handoffs import Handoff, HandoffInputData
from standfast.agents.types import maybe_await
from standfast.base.items import Item
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.state import (
    CallRecord,
    InputSelection,
    ServerConversation,
    SessionConversation,
    TranscriptEntry,
)
from standfast.runs.core.steps import HandoffPerformed
from standfast.runs.items import ItemTypes
from standfast.runs.session_io import as_items, load_history
from standfast.tool_calls.output import make_output_item
from standfast.tracing.create import maybe_handoff_span
from standfast.tracing.spans import SpanError

IGNORED_MESSAGE = "Multiple handoffs detected, ignoring this one."


async def perform_handoff(run: ActiveRun, calls: tuple[CallRecord, ...]) -> HandoffPerformed:
    """Make the first handoff and answer the other handoff calls, these first."""
    state, source = run.state, run.current_agent
    first, *others = calls
    toolbox = await run.get_toolbox(state.agent)
    handoff = toolbox.handoffs_by_name.get(first.tool.name)
    if handoff is None:
        raise ModelBehaviorError(f"the agent {source.name!r} no longer has the handoff {first.tool.name!r}")
    item = state.transcript[first.position].item
    requested = [_get_target_name(toolbox.handoffs_by_name, call) for call in calls]
    target = await _invoke_handoff(run, source, handoff, item.get("arguments") or "", requested)
    path = run.get_agent_path(target)
    entries = [
        TranscriptEntry(make_output_item(call.id, IGNORED_MESSAGE), "output", agent=state.agent) for call in others
    ]
    output = make_output_item(first.id, handoff.get_transfer_message(target))
    entries.append(TranscriptEntry(output, "handed", agent=state.agent, target=path))
    return await _filter_input(run, handoff, HandoffPerformed(tuple(entries), path))


def _get_target_name(handoffs: Mapping[str, Handoff[Any, Any]], call: CallRecord) -> str:
    handoff = handoffs.get(call.tool.name)
    return call.tool.name if handoff is None else handoff.agent_name


async def _invoke_handoff(
    run: ActiveRun, source: Agent[Any], handoff: Handoff[Any, Any], arguments: str, requested: list[str]
) -> Agent[Any]:
    """Invoke the handoff, run the hooks, and return the agent that it leads to."""
    with maybe_handoff_span(source.name) as span:
        if span is not None and len(requested) > 1:
            span.set_error(SpanError(message="Multiple handoffs requested", data={"requested_agents": requested}))
        target: Agent[Any] = await handoff.on_invoke_handoff(run.context, arguments)
        if not isinstance(target, Agent):
            raise UserError(f"the handoff {handoff.tool_name} must return an Agent, got {target!r}")
        if span is not None:
            span.span_data.to_agent = target.name
        if run.hooks is not None:
            await run.hooks.on_handoff(run.context, source, target)
        for hooks in {id(hooks): hooks for hooks in (source.hooks, target.hooks) if hooks is not None}.values():
            await hooks.on_handoff(run.context, target, source)
        return target


async def _filter_input(run: ActiveRun, handoff: Handoff[Any, Any], outcome: HandoffPerformed) -> HandoffPerformed:
    """Return the outcome with what the filter of the handoff, if any, left for the new agent and for the record."""
    config = run.config
    nest = config.nest_handoff_history if handoff.nest_handoff_history is None else handoff.nest_handoff_history
    edit = config.handoff_input_filter if handoff.input_filter is None else handoff.input_filter
    if edit is None and not nest:
        return outcome
    if edit is not None and not callable(edit):
        raise UserError(f"the input filter of {handoff.tool_name} must be a function, not {edit!r}")
    if isinstance(run.state.conversation, ServerConversation):
        if edit is not None:
            raise UserError(
                f"the handoff {handoff.tool_name} filters its input, but the provider stores this conversation: "
                "items that it has stored cannot be removed"
            )
        return outcome
    await load_history(run)
    shown = _HandoffInput(run, outcome.entries)
    data = shown.build_data()
    if edit is not None:
        data = await maybe_await(edit(data))
        if not isinstance(data, HandoffInputData):
            raise UserError(f"the input filter of {handoff.tool_name} must return HandoffInputData, not {data!r}")
    else:
        data = nest_handoff_history(data, history_mapper=config.handoff_history_mapper)
    return shown.apply_filter(data, outcome)


def make_entry(item: Any, *, agent: str) -> TranscriptEntry:
    """Return the entry for an item that a filter made."""
    kinds = {"tool_call_item": "call", "tool_call_output_item": "output", "input_item": "input"}
    others = (kind for kind, cls in ItemTypes.by_kind.items() if isinstance(item, cls))
    kind: Any = kinds.get(item.type) or next(others, "message")
    return TranscriptEntry(item.to_input_item(), kind, agent=agent)


class _HandoffInput:
    """Converts what the model has been shown to the data of a handoff filter, and the filtered data back."""

    def __init__(self, run: ActiveRun, entries: tuple[TranscriptEntry, ...]) -> None:
        self.run = run
        self.history_length = len(run.model_input.history)
        state = run.state
        start = len(state.transcript)
        view = run.model_input.get_selection(state)
        shown: list[int | Item] = [*view.shown, *(self.history_length + place for place in range(view.since, start))]
        turn = state.turn_start + self.history_length
        self.history = [part for part in shown if not isinstance(part, int) or self._is_history(part)]
        self.earlier_items = [
            part for part in shown if isinstance(part, int) and not self._is_history(part) and part < turn
        ]
        own = [part for part in shown if isinstance(part, int) and not self._is_history(part) and part >= turn]
        new = [*own, *range(self.history_length + start, self.history_length + start + len(entries))]
        self.new_items = new
        # The items of the handoff itself are not in the transcript yet, but the selection refers to them.
        self.pending_entries = entries
        self.positions: dict[int, int] = {}
        self.references: list[Any] = []

    def build_data(self) -> HandoffInputData:
        state = self.run.state
        items = [self._get_item(part) for part in self.history]
        in_session = isinstance(state.conversation, SessionConversation)
        untouched = not in_session and isinstance(state.input, str) and items == as_items(state.input)
        history: Any = state.input if untouched and not any(self._find_substitutes()) else tuple(items)
        return HandoffInputData(
            input_history=history,
            pre_handoff_items=tuple(self._get_run_item(part) for part in self.earlier_items),
            new_items=tuple(self._get_run_item(part) for part in self.new_items),
            run_context=self.run.context,
        )

    def apply_filter(self, data: HandoffInputData, outcome: HandoffPerformed) -> HandoffPerformed:
        """Return the outcome with the filtered data: what the model is shown, and the items of the turn that are left.

        Unchanged items are shown by their position. Of the turn, items that the filter removed are hidden; items that
        it replaced are hidden, too, and the replacements are added.
        """
        history = data.input_history
        items = [{"content": history, "role": "user"}] if isinstance(history, str) else list(history)
        if isinstance(history, str) and history == self.run.state.input and self.history:
            selected: list[int | Item] = list(self.history)
        else:
            selected = [self._find_position(item) for item in items]
        input_length = len(selected)
        last = data.new_items if data.input_items is None else data.input_items
        for item in (*data.pre_handoff_items, *last):
            selected.append(self.positions[id(item)] if id(item) in self.positions else item.to_input_item())
        if self.run.model_input.history_changed(self.run.state):
            selected = [self._get_item(part) for part in selected]
        removed, added = self._find_changes(data.new_items)
        entries = (*outcome.entries, *added)
        view = InputSelection(tuple(selected), len(self.run.state.transcript) + len(entries), input_length)
        return replace(outcome, entries=entries, view=view, removed=removed)

    def _find_position(self, item: Item) -> int | Item:
        if id(item) in self.positions:
            return self.positions[id(item)]
        messages = [place for place in self.new_items if self._get_entry(place).kind == "message"]
        return next((place for place in messages if self._get_entry(place).item == item), item)

    def _find_changes(self, left: Sequence[Any]) -> tuple[frozenset[int], list[TranscriptEntry]]:
        """Return the positions of the turn's entries that are not left in the transcript, and entries to add."""
        stored = self.run.state.stored
        turn = [place - self.history_length for place in self.new_items]
        kept = [self.positions[id(item)] - self.history_length if id(item) in self.positions else None for item in left]
        if None not in kept and kept == [place for place in turn if place in kept]:
            return frozenset(place for place in turn if place not in kept and place >= stored), []
        added = [make_entry(item, agent=self.run.state.agent) for item in left]
        return frozenset(place for place in turn if place >= stored), added

    def _is_history(self, place: int) -> bool:
        return place < self.history_length or self._get_entry(place).kind == "given"

    def _find_substitutes(self) -> Sequence[bool]:
        return [not isinstance(part, int) for part in self.history]

    def _get_entry(self, place: int) -> TranscriptEntry:
        index = place - self.history_length
        start = len(self.run.state.transcript)
        return self.run.state.transcript[index] if index < start else self.pending_entries[index - start]

    def _get_item(self, part: int | Item) -> Item:
        if not isinstance(part, int):
            return part
        item = self.run.model_input.history[part] if part < self.history_length else self._get_entry(part).item
        self.positions[id(item)] = part
        return item

    def _get_run_item(self, place: int) -> Any:
        index = place - self.history_length
        item = (
            self.run.get_item(index)
            if index < len(self.run.state.transcript)
            else self.run.build_item(self._get_entry(place))
        )
        self.positions[id(item)] = place
        self.references.append(item)
        return item
