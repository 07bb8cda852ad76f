"""Build the input of the model from the session's history and the transcript of the run.

:class:`ModelInputBuilder` keeps it up to date at the cost of what is new. :func:`arrange_input` applies a program's
``session_input_callback``, which may rearrange history and new input.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec

from standfast.agents.errors import UserError
from standfast.agents.types import maybe_await
from standfast.base.item_pairs import find_unpaired
from standfast.base.items import Item, encode_item
from standfast.history.session import SessionInputCallback
from standfast.runs.core.state import InputSelection, ServerConversation, SessionConversation, State, TranscriptEntry


class ModelInputBuilder:
    """The model input of one run. It can be rebuilt from the state and the session's items at any time."""

    def __init__(self) -> None:
        self._history: list[Item] = []
        self._items: list[Item] = []
        self._position = 0
        self._selection: InputSelection | None = None
        self._replacement: tuple[InputSelection | None, InputSelection] | None = None
        self.loaded = False
        self.history_contains_own_items = False
        """Whether the history that was loaded already contains items of this run."""

    @property
    def history(self) -> list[Item]:
        """The session's items before this run, without unpaired calls and outputs."""
        return self._history

    def start(self, history: list[Item], *, policy: str | None = None) -> None:
        """Start with the session's items before this run, without unpaired calls and outputs."""
        self._history = [strip_reasoning_id(item, policy) for item in history] if policy == "omit" else history
        self._items, self._position, self._selection, self.loaded = list(self._history), 0, None, True

    def skip_stored(self, state: State, stored: int) -> None:
        """Skip the first ``stored`` entries of the transcript: they are among the session's items already.

        The positions in the state's selection refer to an earlier history and are not used.
        """
        self.history_contains_own_items = stored > 0
        self._replacement = state.view, InputSelection(tuple(range(len(self._history))), stored)
        self._position, self._selection = stored, state.view

    def history_changed(self, state: State) -> bool:
        """Return whether the history differs from the one that the positions in the state refer to."""
        return self._replacement is not None and self._replacement[0] is state.view

    def get_selection(self, state: State) -> InputSelection:
        """Return what the model is shown, as positions in this history and the transcript."""
        if self._replacement is not None and self.history_changed(state):
            return self._replacement[1]
        return state.view or InputSelection(tuple(range(len(self._history))), 0)

    @staticmethod
    def uses_history_positions(state: State) -> bool:
        """Return whether the state selects items by position."""
        return state.view is not None and any(isinstance(part, int) for part in state.view.shown)

    def build_input(self, state: State) -> list[Item]:
        """Return the model's input. The list belongs to the caller, the items are shared."""
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
        """Return the item at a position of an :class:`InputSelection`: the history first, then the transcript."""
        before = len(self._history)
        return self._history[position] if position < before else state.transcript[position - before].item

    def needs_history(self, state: State) -> bool:
        """Return whether the session has to be read before the next model call."""
        return not self.loaded and isinstance(state.conversation, SessionConversation)

    def _rebuild(self, state: State) -> None:
        self._selection, view = state.view, self.get_selection(state)
        shown = [self.get_item(state, part) if isinstance(part, int) else part for part in view.shown]
        self._items, self._position = (
            [strip_reasoning_id(item, state.reasoning_item_id_policy) for item in shown],
            view.since,
        )

    @staticmethod
    def _to_items(state: State, entries: Sequence[TranscriptEntry]) -> list[Item]:
        return [strip_reasoning_id(entry.item, state.reasoning_item_id_policy) for entry in entries]


def strip_reasoning_id(item: Item, policy: str | None) -> Item:
    """Return the item, without its id if it is a reasoning item and the run's policy omits these ids."""
    if policy != "omit" or item.get("type") != "reasoning":
        return item
    return {name: part for name, part in item.items() if name != "id"}


@dataclass(frozen=True)
class ArrangedInput:
    """The arranged input: ``selection`` has positions (history, then ``new_items``) and replacement items."""

    selection: tuple[int | Item, ...]
    new_items: tuple[Item, ...]


async def arrange_input(callback: SessionInputCallback, history: Sequence[Item], new: Sequence[Item]) -> ArrangedInput:
    """Let the callback arrange copies of history and new input, and determine which items of the result are new.

    A returned copy stands for its original. Any other item stands for one with the same content, if in another form,
    looking at new input first and from the end; an item without such an original was made by the callback and is new.
    A new item is stored as the callback left it, once, however often it is shown; one that is not shown is not stored.
    Items of the history whose counterpart the callback left out are not shown: a model would refuse half a pair.
    """
    old, added = deepcopy(list(history)), deepcopy(list(new))
    result = await maybe_await(callback(list(old), list(added)))
    if not isinstance(result, list):
        raise UserError(f"session_input_callback must return a list of items, not {type(result).__name__}")
    for index, item in enumerate(result):
        encode_item(item, f"session_input_callback result[{index}]")
    return _ItemMatcher(list(history), old, added).match(result)


class _ItemMatcher:
    """Finds the original of each item that a callback returned; ``old`` and ``added`` are the callback's copies."""

    def __init__(self, history: list[Item], old: list[Item], added: list[Item]) -> None:
        self.history, self.old, self.added = history, old, added
        self.old_indexes = {id(item): index for index, item in enumerate(old)}
        self.new_indexes = {id(item): index for index, item in enumerate(added)}

    def match(self, result: list[Item]) -> ArrangedInput:
        matches = [self._match_identity(item) for item in result]
        self._match_content(result, matches)
        new: list[Item] = []
        positions: dict[int, int] = {}
        selection: list[int | Item] = []
        unpaired = {problem.index for problem in find_unpaired(result)}
        for place, (item, match) in enumerate(zip(result, matches, strict=True)):
            if match is not None and match[0] == "old":
                index = match[1]
                if place not in unpaired:
                    selection.append(index if self.history[index] == item else item)
                continue
            if match is None:
                new.append(item)
                selection.append(len(self.history) + len(new) - 1)
                continue
            if match[1] not in positions:
                new.append(item)
                positions[match[1]] = len(self.history) + len(new) - 1
            selection.append(positions[match[1]])
        return ArrangedInput(tuple(selection), tuple(new))

    def _match_identity(self, item: Item) -> tuple[str, int] | None:
        if id(item) in self.new_indexes:
            return "new", self.new_indexes[id(item)]
        return ("old", self.old_indexes[id(item)]) if id(item) in self.old_indexes else None

    def _match_content(self, result: list[Item], matches: list[tuple[str, int] | None]) -> None:
        if all(match is not None for match in matches):
            return
        used = {match[1] for match in matches if match is not None and match[0] == "new"}
        free = _group_indexes(
            [(encode_canonical(item), index) for index, item in enumerate(self.added) if index not in used]
        )
        taken = _group_indexes([(encode_canonical(item), index) for index, item in enumerate(self.added)])
        equal = _group_indexes([(encode_content(item), index) for index, item in enumerate(self.history)])
        similar = _group_indexes([(encode_canonical(item), index) for index, item in enumerate(self.history)])
        # From the end: new input is usually last, and equal items of the history come before it.
        for place in range(len(result) - 1, -1, -1):
            if matches[place] is not None:
                continue
            canonical = encode_canonical(result[place])
            stored = equal.get(encode_content(result[place])) or similar.get(canonical)
            if free.get(canonical):
                matches[place] = "new", free[canonical].pop()
            elif stored:
                matches[place] = "old", stored.pop() if len(stored) > 1 else stored[0]
            elif taken.get(canonical):
                matches[place] = "new", taken[canonical][-1]


def _group_indexes(pairs: list[tuple[bytes, int]]) -> dict[bytes, list[int]]:
    indexes: dict[bytes, list[int]] = {}
    for content, index in pairs:
        indexes.setdefault(content, []).append(index)
    return indexes


def encode_content(item: Item) -> bytes:
    """Return the item as JSON, independent of the order of its keys."""
    return msgspec.json.encode(item, order="deterministic")


_TEXT_PARTS = ("input_text", "output_text", "text")


def encode_canonical(item: Item) -> bytes:
    """Return the content of the item, in one form for all spellings of the API.

    Programs that rebuild an item spell out or leave out its ``type``, write its text as a string or as parts, and
    lose its ``id`` and ``status``.
    """
    fields = {name: part for name, part in item.items() if name not in ("id", "status") and part is not None}
    if "role" in fields:
        if fields.get("type") == "message":
            del fields["type"]
        content = fields.get("content")
        parts = content if isinstance(content, list) else [{"type": "input_text", "text": content}]
        fields["content"] = [_to_canonical_part(part) for part in parts]
    return encode_content(fields)


def _to_canonical_part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
        return part
    return {name: value for name, value in part.items() if name != "type" and value not in (None, [])}
