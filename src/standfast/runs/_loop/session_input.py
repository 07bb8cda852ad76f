"""A program's own arrangement of history and new input, without storing anything twice."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import msgspec

from standfast.agents.errors import UserError
from standfast.agents.types import maybe_await
from standfast.base.items import Item, encode_item
from standfast.base.pairing import find_unpaired
from standfast.history.session import SessionInputCallback


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
