"""Lifecycles as tables: what may happen in which state, and what it leads to.

A ``Table`` is data that can be proven and drawn; a ``Machine`` is one thing going through it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from standfast.base.errors import InvalidInput, StandfastError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(StandfastError):
    """The table has no such event in this state. The state did not change."""

    code = "illegal-transition"

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(f"{event.name} cannot happen in {state.name}")
        self.state, self.event = state, event


class InvalidTransitionTable(InvalidInput):
    """A transition table does not keep its promises; ``problems`` has one sentence for each."""

    code = "faulty-table"

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class TransitionTable(Generic[S, E]):
    """A whole lifecycle. An event that a state does not list is a mistake of whoever fires it."""

    states: type[S]
    transitions: Mapping[S, Mapping[E, S]]
    initial: S
    terminal: frozenset[S]

    def find_reachable(self, start: S) -> set[S]:
        """Every state that a machine in ``start`` may come to, ``start`` included."""
        found, border = {start}, [start]
        while border:
            border = [s for state in border for s in self.transitions.get(state, {}).values() if s not in found]
            found.update(border)
        return found

    def check(self, *, stop: E | None = None) -> None:
        """Prove the table, or raise ``FaultyTable``.

        Every state is described and can be reached, every state reaches a terminal one, nothing leaves a
        terminal one, and ``stop``, if given, is legal in every other.
        """
        if problems := tuple(self._find_problems(stop)):
            raise InvalidTransitionTable(problems)

    def _find_problems(self, stop: E | None) -> Iterator[str]:
        known = set(self.states)
        if not self.terminal:
            yield "there is no terminal state"
        named = {self.initial, *self.terminal, *self.transitions}
        for stranger in named.union(*(row.values() for row in self.transitions.values())) - known:
            yield f"{stranger!r} is not one of the states"
        met = self.find_reachable(self.initial)
        for state in self.states:
            row = self.transitions.get(state)
            if row is None:
                yield f"{state.name} has no row"
            if state not in met:
                yield f"{state.name} cannot be reached from {self.initial.name}"
            if state in self.terminal:
                if any(target is not state for target in (row or {}).values()):
                    yield f"{state.name} is terminal and can be left"
                continue
            if not self.terminal & self.find_reachable(state):
                yield f"{state.name} never comes to an end"
            if stop is not None and stop not in (row or {}):
                yield f"{stop.name} is not legal in {state.name}"

    def to_mermaid(self) -> str:
        """The table as a Mermaid state diagram, always the same text for the same table."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial.name}"]
        for state, row in self.transitions.items():
            for event, target in row.items():
                label = event.name.lower().replace("_", " ")
                lines.append(f"    {state.name} --> {target.name} : {label}")
        lines += [f"    {state.name} --> [*]" for state in self.states if state in self.terminal]
        return "\n".join(lines) + "\n"


class StateMachine(Generic[S, E]):
    """One thing on its way through a table.

    ``observe`` is told of every transition after it happened, as ``(before, event, after)``. What it raises
    reaches whoever fired the event; the transition stands.
    """

    __slots__ = ("_on_transition", "_table", "state")

    def __init__(self, table: TransitionTable[S, E], *, on_transition: Callable[[S, E, S], Any] | None = None) -> None:
        self._table = table
        self._on_transition = on_transition
        self.state = table.initial

    @property
    def ended(self) -> bool:
        return self.state in self._table.terminal

    def allows(self, event: E) -> bool:
        return event in self._table.transitions[self.state]

    def fire(self, event: E) -> S:
        """Go where the table says, and return the new state. Raises ``IllegalTransition`` otherwise."""
        before = self.state
        try:
            self.state = after = self._table.transitions[before][event]
        except KeyError:
            raise IllegalTransition(before, event) from None
        if self._on_transition is not None:
            self._on_transition(before, event, after)
        return after
