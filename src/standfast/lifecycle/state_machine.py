"""State machines described by transition tables.

A :class:`TransitionTable` is data that can be checked and drawn; a :class:`StateMachine` is one object's state in it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from standfast.base.errors import InvalidInput, StandfastError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(StandfastError):
    """The event is not allowed in the current state. The state did not change."""

    code = "illegal-transition"

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(f"event {event.name} is not allowed in state {state.name}")
        self.state, self.event = state, event


class InvalidTransitionTable(InvalidInput):
    """A transition table is inconsistent; ``problems`` has one sentence for each problem."""

    code = "faulty-table"

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class TransitionTable(Generic[S, E]):
    """The states of a lifecycle and its transitions. An event that a state does not list is not allowed."""

    states: type[S]
    transitions: Mapping[S, Mapping[E, S]]
    initial: S
    terminal: frozenset[S]

    def find_reachable(self, start: S) -> set[S]:
        """Return every state that can be reached from ``start``, including ``start``."""
        reachable, border = {start}, [start]
        while border:
            border = [s for state in border for s in self.transitions.get(state, {}).values() if s not in reachable]
            reachable.update(border)
        return reachable

    def check(self, *, stop: E | None = None) -> None:
        """Check the table, and raise :class:`InvalidTransitionTable` if a rule is violated.

        Every state has a row and can be reached, a terminal state can be reached from every state and cannot be left,
        and the event ``stop``, if given, is allowed in every other state.
        """
        if problems := tuple(self._find_problems(stop)):
            raise InvalidTransitionTable(problems)

    def _find_problems(self, stop: E | None) -> Iterator[str]:
        if not self.terminal:
            yield "there is no terminal state"
        named = {self.initial, *self.terminal, *self.transitions}
        for unknown in named.union(*(row.values() for row in self.transitions.values())) - set(self.states):
            yield f"{unknown!r} is not one of the states"
        reachable = self.find_reachable(self.initial)
        for state in self.states:
            row = self.transitions.get(state)
            if row is None:
                yield f"{state.name} has no row"
            if state not in reachable:
                yield f"{state.name} cannot be reached from {self.initial.name}"
            if state in self.terminal:
                if any(target is not state for target in (row or {}).values()):
                    yield f"{state.name} is terminal but can be left"
                continue
            if not self.terminal & self.find_reachable(state):
                yield f"no terminal state can be reached from {state.name}"
            if stop is not None and stop not in (row or {}):
                yield f"{stop.name} is not allowed in {state.name}"

    def to_mermaid(self) -> str:
        """Return the table as a Mermaid state diagram. The text depends on the table only."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial.name}"]
        for state, row in self.transitions.items():
            for event, target in row.items():
                label = event.name.lower().replace("_", " ")
                lines.append(f"    {state.name} --> {target.name} : {label}")
        lines += [f"    {state.name} --> [*]" for state in self.states if state in self.terminal]
        return "\n".join(lines) + "\n"


class StateMachine(Generic[S, E]):
    """The current state of one object, changed by events according to a table.

    ``on_transition`` is called with ``(before, event, after)`` after each transition. An exception that it raises
    propagates to the caller of :meth:`fire`; the transition is not undone.
    """

    __slots__ = ("_on_transition", "_table", "state")

    def __init__(self, table: TransitionTable[S, E], *, on_transition: Callable[[S, E, S], Any] | None = None) -> None:
        self._table = table
        self._on_transition = on_transition
        self.state = table.initial

    @property
    def ended(self) -> bool:
        """Whether the state is terminal."""
        return self.state in self._table.terminal

    def allows(self, event: E) -> bool:
        """Return whether the event is possible in the present state."""
        return event in self._table.transitions[self.state]

    def fire(self, event: E) -> S:
        """Apply ``event`` and return the new state. Raises :class:`IllegalTransition` if it is not allowed."""
        before = self.state
        try:
            self.state = after = self._table.transitions[before][event]
        except KeyError:
            raise IllegalTransition(before, event) from None
        if self._on_transition is not None:
            self._on_transition(before, event, after)
        return after
