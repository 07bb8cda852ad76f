"""What the model is shown, kept up to date at the cost of what is new."""

from collections.abc import Sequence

from holdfast.base.items import Item
from holdfast.runs.state import Entry, InSession, OnServer, State, View


class ModelView:
    """The model's input of one run. It can be made again from the state and the session's items at any time."""

    def __init__(self) -> None:
        self._history: list[Item] = []
        self._items: list[Item] = []
        self._seen = 0
        self._of: View | None = None
        self._instead: tuple[View | None, View] | None = None
        self.loaded = False
        self.mixed = False

    @property
    def history(self) -> list[Item]:
        """What the session held before this run, as far as a model may be shown it."""
        return self._history

    def begin(self, history: list[Item]) -> None:
        """Start with what the session held before this run, as far as a model may be shown it."""
        self._history = history
        self._items, self._seen, self._of, self.loaded = list(self._history), 0, None, True

    def skip(self, state: State, stored: int) -> None:
        """The first ``stored`` entries of the transcript are among the session's items already.

        What the state says of positions in the history was about another one.
        """
        self.mixed = stored > 0
        self._instead = state.view, View(tuple(range(len(self._history))), stored)
        self._seen, self._of = stored, state.view

    def moved(self, state: State) -> bool:
        """Whether this is another history than the one whose positions are to be saved."""
        return self._instead is not None and self._instead[0] is state.view

    def chosen(self, state: State) -> View:
        """What the model is shown, as positions in this history and the transcript."""
        if self._instead is not None and self.moved(state):
            return self._instead[1]
        return state.view or View(tuple(range(len(self._history))), 0)

    @staticmethod
    def counts_on_history(state: State) -> bool:
        """Whether what the model is shown was chosen by position."""
        return state.view is not None and any(isinstance(part, int) for part in state.view.shown)

    def input(self, state: State) -> list[Item]:
        """What the model is to be shown now; the list is the caller's, the items are not."""
        server = state.conversation
        if isinstance(server, OnServer):
            return self._told(state, state.transcript.since(server.acknowledged))
        if state.view is not self._of or self._seen > len(state.transcript):
            self._begin_again(state)
        new = state.transcript.since(self._seen)
        self._items += self._told(state, new)
        self._seen += len(new)
        return list(self._items)

    def at(self, state: State, position: int) -> Item:
        """The item at a position of a :class:`View`: the session's items first, then the transcript."""
        before = len(self._history)
        return self._history[position] if position < before else state.transcript[position - before].item

    def needs_history(self, state: State) -> bool:
        """Whether the session has to be read before the model can be asked."""
        return not self.loaded and isinstance(state.conversation, InSession)

    def _begin_again(self, state: State) -> None:
        self._of, view = state.view, self.chosen(state)
        shown = [self.at(state, part) if isinstance(part, int) else part for part in view.shown]
        self._items, self._seen = [without_id(state, item) for item in shown], view.since

    @staticmethod
    def _told(state: State, entries: Sequence[Entry]) -> list[Item]:
        if state.reasoning_item_id_policy != "omit":
            return [entry.item for entry in entries]
        return [without_id(state, entry.item) for entry in entries]


def without_id(state: State, item: Item) -> Item:
    """The item, without its id where the run is told to leave out the ids of reasoning."""
    if state.reasoning_item_id_policy != "omit" or item.get("type") != "reasoning":
        return item
    return {name: part for name, part in item.items() if name != "id"}
