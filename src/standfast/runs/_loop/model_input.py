"""What the model is shown, kept up to date at the cost of what is new."""

from collections.abc import Sequence

from standfast.base.items import Item
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
