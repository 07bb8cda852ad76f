"""What the model is shown, kept up to date at the cost of what is new."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import msgspec

from standfast.agents.errors import UserError
from standfast.agents.types import maybe_await
from standfast.base.items import Item, encode_item
from standfast.base.pairing import find_unpaired
from standfast.history.session import SessionInputCallback
from standfast.runs.core.state import InputSelection, ServerConversation, SessionConversation, State, TranscriptEntry


class ModelInputBuilder:
    """The model's input of one run. It can be made again from the state and the session's items at any time."""

    def __init__(self) -> None:
        self._history: list[Item] = []
        self._items: list[Item] = []
        self._position = 0
        self._selection: InputSelection | None = None
        self._replacement: tuple[InputSelection | None, InputSelection] | None = None
        self.loaded = False
        self.mixed = False

    @property
    def history(self) -> list[Item]:
        """What the session held before this run, as far as a model may be shown it."""
        return self._history

    def start(self, history: list[Item]) -> None:
        """Start with what the session held before this run, as far as a model may be shown it."""
        self._history = history
        self._items, self._position, self._selection, self.loaded = list(self._history), 0, None, True

    def skip_stored(self, state: State, stored: int) -> None:
        """The first ``stored`` entries of the transcript are among the session's items already.

        What the state says of positions in the history was about another one.
        """
        self.mixed = stored > 0
        self._replacement = state.view, InputSelection(tuple(range(len(self._history))), stored)
        self._position, self._selection = stored, state.view

    def has_moved(self, state: State) -> bool:
        """Whether this is another history than the one whose positions are to be saved."""
        return self._replacement is not None and self._replacement[0] is state.view

    def get_selection(self, state: State) -> InputSelection:
        """What the model is shown, as positions in this history and the transcript."""
        if self._replacement is not None and self.has_moved(state):
            return self._replacement[1]
        return state.view or InputSelection(tuple(range(len(self._history))), 0)

    @staticmethod
    def uses_history_positions(state: State) -> bool:
        """Whether what the model is shown was chosen by position."""
        return state.view is not None and any(isinstance(part, int) for part in state.view.shown)

    def build_input(self, state: State) -> list[Item]:
        """What the model is to be shown now; the list is the caller's, the items are not."""
        server = state.conversation
        if isinstance(server, ServerConversation):
            return self._to_items(state, state.transcript.slice_from(server.acknowledged))
        if state.view is not self._selection or self._position > len(state.transcript):
            self._rebuild(state)
        new = state.transcript.slice_from(self._position)
        self._items += self._to_items(state, new)
        self._position += len(new)
        return list(self._items)

    def get_item(self, state: State, position: int) -> Item:
        """The item at a position of a :class:`View`: the session's items first, then the transcript."""
        before = len(self._history)
        return self._history[position] if position < before else state.transcript[position - before].item

    def needs_history(self, state: State) -> bool:
        """Whether the session has to be read before the model can be asked."""
        return not self.loaded and isinstance(state.conversation, SessionConversation)

    def _rebuild(self, state: State) -> None:
        self._selection, view = state.view, self.get_selection(state)
        shown = [self.get_item(state, part) if isinstance(part, int) else part for part in view.shown]
        self._items, self._position = [strip_reasoning_id(state, item) for item in shown], view.since

    @staticmethod
    def _to_items(state: State, entries: Sequence[TranscriptEntry]) -> list[Item]:
        if state.reasoning_item_id_policy != "omit":
            return [entry.item for entry in entries]
        return [strip_reasoning_id(state, entry.item) for entry in entries]


def strip_reasoning_id(state: State, item: Item) -> Item:
    """The item, without its id where the run is told to leave out the ids of reasoning."""
    if state.reasoning_item_id_policy != "omit" or item.get("type") != "reasoning":
        return item
    return {name: part for name, part in item.items() if name != "id"}


@dataclass(frozen=True)
class ArrangedInput:
    """What the model is shown, as positions (history first, then ``kept``) and substitutes; ``kept`` is new."""

    selection: tuple[int | Item, ...]
    new_items: tuple[Item, ...]


async def arrange_input(callback: SessionInputCallback, history: Sequence[Item], new: Sequence[Item]) -> ArrangedInput:
    """Let the callback arrange copies of both, and find out what of the result is new.

    An item is what the copy it is was made of; one that is no copy is what it equals, looking for new input first,
    from the end. What equals nothing was made up by the callback and is new. A new item is kept as the callback
    left it, once, however often it is shown; one that is not shown is not kept. Items of the history whose
    counterpart the callback left out are not shown: a model would refuse half a pair.
    """
    old, given = deepcopy(list(history)), deepcopy(list(new))
    result = await maybe_await(callback(list(old), list(given)))
    if not isinstance(result, list):
        raise UserError(f"session_input_callback must return a list of items, not {type(result).__name__}")
    for index, item in enumerate(result):
        encode_item(item, f"session_input_callback result[{index}]")
    return _ItemMatcher(list(history), old, given).match(result)


class _ItemMatcher:
    def __init__(self, history: list[Item], old: list[Item], given: list[Item]) -> None:
        self.history, self.old, self.given = history, old, given
        self.old_indexes = {id(item): index for index, item in enumerate(old)}
        self.new_indexes = {id(item): index for index, item in enumerate(given)}

    def match(self, result: list[Item]) -> ArrangedInput:
        means = [self._match_identity(item) for item in result]
        self._match_content(result, means)
        kept: list[Item] = []
        places: dict[int, int] = {}
        shown: list[int | Item] = []
        halves = {problem.index for problem in find_unpaired(result)}
        for place, (item, meant) in enumerate(zip(result, means, strict=True)):
            if meant is not None and meant[0] == "old":
                index = meant[1]
                if place not in halves:
                    shown.append(index if self.history[index] == item else item)
                continue
            if meant is None:
                kept.append(item)
                shown.append(len(self.history) + len(kept) - 1)
                continue
            if meant[1] not in places:
                kept.append(item)
                places[meant[1]] = len(self.history) + len(kept) - 1
            shown.append(places[meant[1]])
        return ArrangedInput(tuple(shown), tuple(kept))

    def _match_identity(self, item: Item) -> tuple[str, int] | None:
        if id(item) in self.new_indexes:
            return "new", self.new_indexes[id(item)]
        return ("old", self.old_indexes[id(item)]) if id(item) in self.old_indexes else None

    def _match_content(self, result: list[Item], means: list[tuple[str, int] | None]) -> None:
        if all(meant is not None for meant in means):
            return
        used = {meant[1] for meant in means if meant is not None and meant[0] == "new"}
        free = _group_indexes(
            [(encode_content(item), index) for index, item in enumerate(self.given) if index not in used]
        )
        taken = _group_indexes([(encode_content(item), index) for index, item in enumerate(self.given)])
        stored = _group_indexes([(encode_content(item), index) for index, item in enumerate(self.history)])
        # From the end: new input mostly stands there, and equal items of the history stand before it.
        for place in range(len(result) - 1, -1, -1):
            if means[place] is not None:
                continue
            content = encode_content(result[place])
            if free.get(content):
                means[place] = "new", free[content].pop()
            elif stored.get(content):
                found = stored[content]
                means[place] = "old", found.pop() if len(found) > 1 else found[0]
            elif taken.get(content):
                means[place] = "new", taken[content][-1]


def _group_indexes(pairs: list[tuple[bytes, int]]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for content, index in pairs:
        found.setdefault(content, []).append(index)
    return found


def encode_content(item: Item) -> bytes:
    """The item's content; how its parts are ordered does not matter."""
    return msgspec.json.encode(item, order="deterministic")
