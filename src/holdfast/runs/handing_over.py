"""One agent hands over to another: who it is, and what the new one is shown."""

from collections.abc import Sequence
from typing import Any

from holdfast.agents.agent import Agent
from holdfast.agents.errors import ModelBehaviorError, UserError
from holdfast.agents.handoff_history import nest_handoff_history
from holdfast.agents.handoffs import Handoff, HandoffInputData
from holdfast.agents.types import resolved
from holdfast.base.items import Item
from holdfast.runs.live import Live
from holdfast.runs.persistence import load_history
from holdfast.runs.state import CallRecord, Entry, OnServer, View
from holdfast.runs.steps import HandedOver
from holdfast.toolcalls.output import output_item
from holdfast.tracing.inner import handing_span

IGNORED = "Multiple handoffs detected, ignoring this one."


async def hand_over(run: Live, calls: tuple[CallRecord, ...]) -> HandedOver:
    """Take the first handoff and answer the others."""
    state, source = run.state, run.current_agent
    first, *others = calls
    box = await run.toolbox(state.agent)
    way = box.by_name.get(first.tool.name)
    if way is None:
        raise ModelBehaviorError(f"the agent {source.name!r} has no handoff {first.tool.name!r} any more")
    item = state.transcript[first.position].item
    target = await _target(run, source, way, item.get("arguments") or "")
    path = run.path(target)
    entries = [Entry(output_item(call.id, IGNORED), "output", agent=state.agent) for call in others]
    told = output_item(first.id, way.get_transfer_message(target))
    entries.insert(0, Entry(told, "handed", agent=state.agent, target=path))
    return HandedOver(tuple(entries), path, await _view(run, way, tuple(entries)))


async def _target(run: Live, source: Agent[Any], way: Handoff[Any, Any], arguments: str) -> Agent[Any]:
    """The agent to which the handoff leads, once everybody has been told."""
    with handing_span(source.name) as span:
        target: Agent[Any] = await way.on_invoke_handoff(run.context, arguments)
        if not isinstance(target, Agent):
            raise UserError(f"the handoff {way.tool_name} must lead to an agent, not to {target!r}")
        if span is not None:
            span.span_data.to_agent = target.name
        if run.hooks is not None:
            await run.hooks.on_handoff(run.context, source, target)
        if target.hooks is not None:
            await target.hooks.on_handoff(run.context, target, source)
        return target


async def _view(run: Live, way: Handoff[Any, Any], entries: tuple[Entry, ...]) -> View | None:
    """What the new agent's model is shown, when that is not simply everything."""
    config = run.config
    nest = config.nest_handoff_history if way.nest_handoff_history is None else way.nest_handoff_history
    edit = way.input_filter or config.handoff_input_filter
    if edit is None and not nest:
        return None
    if isinstance(run.state.conversation, OnServer):
        if edit is not None:
            raise UserError(
                f"the handoff {way.tool_name} filters its input, but the provider keeps this conversation: "
                "nothing that it has can be taken back"
            )
        return None
    await load_history(run)
    shown = _Shown(run, entries)
    data = shown.data()
    if edit is not None:
        data = await resolved(edit(data))
        if not isinstance(data, HandoffInputData):
            raise UserError(f"the input filter of {way.tool_name} must return HandoffInputData, not {data!r}")
    else:
        data = nest_handoff_history(data, history_mapper=config.handoff_history_mapper)
    return View(shown.places(data), len(run.state.transcript) + len(entries))


class _Shown:
    """What the model was shown until now, in the words of handoff filters, and the way back from those."""

    def __init__(self, run: Live, entries: tuple[Entry, ...]) -> None:
        self.run = run
        self.before = len(run.view.history)
        state = run.state
        start = len(state.transcript)
        view = run.view.chosen(state)
        shown: list[int | Item] = [*view.shown, *(self.before + place for place in range(view.since, start))]
        turn = state.turn_start + self.before
        self.history = [part for part in shown if not isinstance(part, int) or self._is_history(part)]
        self.earlier = [part for part in shown if isinstance(part, int) and not self._is_history(part) and part < turn]
        own = [part for part in shown if isinstance(part, int) and not self._is_history(part) and part >= turn]
        new = [*own, *range(self.before + start, self.before + start + len(entries))]
        self.new = new
        # The items of the handoff itself are not in the transcript yet; the view speaks of them already.
        self.pending = entries
        self.known: dict[int, int] = {}
        self.kept: list[Any] = []

    def data(self) -> HandoffInputData:
        state = self.run.state
        items = [self._item(part) for part in self.history]
        untouched = state.view is None and not self.before and isinstance(state.input, str)
        history: Any = state.input if untouched and not any(self._staged()) else tuple(items)
        return HandoffInputData(
            input_history=history,
            pre_handoff_items=tuple(self._run_item(part) for part in self.earlier),
            new_items=tuple(self._run_item(part) for part in self.new),
            run_context=self.run.context,
        )

    def places(self, data: HandoffInputData) -> tuple[int | Item, ...]:
        """What the filter left, as positions where it is unchanged and as substitutes where it is not."""
        history = data.input_history
        given = [{"content": history, "role": "user"}] if isinstance(history, str) else list(history)
        if isinstance(history, str) and history == self.run.state.input and self.history:
            found: list[int | Item] = list(self.history)
        else:
            found = [self.known.get(id(item), item) for item in given]
        last = data.new_items if data.input_items is None else data.input_items
        for item in (*data.pre_handoff_items, *last):
            found.append(self.known.get(id(item)) if id(item) in self.known else item.to_input_item())  # type: ignore[arg-type]
        return tuple(map(self._item, found) if self.run.view.moved(self.run.state) else found)

    def _is_history(self, place: int) -> bool:
        return place < self.before or self._entry(place).kind == "given"

    def _staged(self) -> Sequence[bool]:
        return [not isinstance(part, int) for part in self.history]

    def _entry(self, place: int) -> Entry:
        index = place - self.before
        start = len(self.run.state.transcript)
        return self.run.state.transcript[index] if index < start else self.pending[index - start]

    def _item(self, part: int | Item) -> Item:
        if not isinstance(part, int):
            return part
        item = self.run.view.history[part] if part < self.before else self._entry(part).item
        self.known[id(item)] = part
        return item

    def _run_item(self, place: int) -> Any:
        index = place - self.before
        item = self.run.item(index) if index < len(self.run.state.transcript) else self.run.shape(self._entry(place))
        self.known[id(item)] = place
        self.kept.append(item)
        return item
