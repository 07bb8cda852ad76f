"""Transition tables and state machines."""

from enum import Enum, auto

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.base.errors import InvalidInput, StandfastError
from standfast.lifecycle import IllegalTransition, InvalidTransitionTable, StateMachine, TransitionTable


class Door(Enum):
    OPEN = auto()
    SHUT = auto()
    GONE = auto()


class Did(Enum):
    PUSH = auto()
    PULL_HARD = auto()
    REMOVE = auto()


ROWS = {
    Door.OPEN: {Did.PUSH: Door.SHUT, Did.REMOVE: Door.GONE},
    Door.SHUT: {Did.PULL_HARD: Door.OPEN, Did.REMOVE: Door.GONE},
    Door.GONE: {},
}


def table(rows=ROWS, *, initial=Door.OPEN, terminal=(Door.GONE,)):
    return TransitionTable(Door, rows, initial=initial, terminal=frozenset(terminal))


def problems(faulty, **options):
    with pytest.raises(InvalidTransitionTable) as caught:
        faulty.check(**options)
    assert isinstance(caught.value, InvalidInput)
    return set(caught.value.problems)


def test_an_event_leads_where_the_table_says():
    machine = StateMachine(table())
    assert machine.state is Door.OPEN
    assert machine.fire(Did.PUSH) is Door.SHUT
    assert machine.fire(Did.PULL_HARD) is Door.OPEN
    assert not machine.ended
    assert machine.fire(Did.REMOVE) is Door.GONE
    assert machine.ended


def test_an_event_that_the_state_does_not_list_raises_and_changes_nothing():
    seen = []
    machine = StateMachine(table(), on_transition=lambda *transition: seen.append(transition))
    with pytest.raises(IllegalTransition, match=r"PULL_HARD.*OPEN") as caught:
        machine.fire(Did.PULL_HARD)
    assert isinstance(caught.value, StandfastError)
    assert (caught.value.state, caught.value.event) == (Door.OPEN, Did.PULL_HARD)
    assert caught.value.code == "illegal-transition"
    assert machine.state is Door.OPEN
    assert seen == []


def test_allows_tells_which_events_are_allowed():
    machine = StateMachine(table())
    assert machine.allows(Did.PUSH)
    assert not machine.allows(Did.PULL_HARD)


def test_machines_of_one_table_are_independent():
    shared = table()
    one, other = StateMachine(shared), StateMachine(shared)
    one.fire(Did.PUSH)
    assert other.state is Door.OPEN


def test_on_transition_is_called_after_each_transition():
    seen = []
    machine = StateMachine(table(), on_transition=lambda *transition: seen.append((*transition, machine.state)))
    machine.fire(Did.PUSH)
    machine.fire(Did.REMOVE)
    assert seen == [
        (Door.OPEN, Did.PUSH, Door.SHUT, Door.SHUT),
        (Door.SHUT, Did.REMOVE, Door.GONE, Door.GONE),
    ]


def test_on_transition_may_fire_the_next_event():
    def close_for_good(before, event, after):
        if after is Door.SHUT:
            machine.fire(Did.REMOVE)

    machine = StateMachine(table(), on_transition=close_for_good)
    machine.fire(Did.PUSH)
    assert machine.state is Door.GONE


def test_an_error_of_on_transition_does_not_undo_the_transition():
    def fail(*_):
        raise ZeroDivisionError

    machine = StateMachine(table(), on_transition=fail)
    with pytest.raises(ZeroDivisionError):
        machine.fire(Did.PUSH)
    assert machine.state is Door.SHUT


def test_a_valid_table_passes():
    table().check()
    table().check(stop=Did.REMOVE)


def test_staying_in_a_terminal_state_is_not_leaving_it():
    table({**ROWS, Door.GONE: {Did.REMOVE: Door.GONE}}).check()


@pytest.mark.parametrize(
    ("faulty", "options", "expected"),
    [
        pytest.param(
            table({**ROWS, Door.GONE: {Did.PUSH: Door.OPEN}}),
            {},
            {"GONE is terminal but can be left"},
            id="nothing leaves a terminal state",
        ),
        pytest.param(
            table({**ROWS, Door.SHUT: {Did.PUSH: Door.SHUT}}),
            {},
            {"no terminal state can be reached from SHUT"},
            id="every state reaches a terminal one",
        ),
        pytest.param(
            table({**ROWS, Door.SHUT: {Did.PULL_HARD: Door.OPEN}}),
            {"stop": Did.REMOVE},
            {"REMOVE is not allowed in SHUT"},
            id="stop is legal in every live state",
        ),
        pytest.param(
            table({**ROWS, Door.OPEN: {Did.REMOVE: Door.GONE}}),
            {},
            {"SHUT cannot be reached from OPEN"},
            id="every state can be reached",
        ),
        pytest.param(
            table({Door.OPEN: ROWS[Door.OPEN], Door.SHUT: ROWS[Door.SHUT]}),
            {},
            {"GONE has no row"},
            id="every state is described",
        ),
        pytest.param(
            table({**ROWS, Door.OPEN: {**ROWS[Door.OPEN], Did.PULL_HARD: Did.PUSH}}),
            {},
            {"<Did.PUSH: 1> is not one of the states"},
            id="every state is one of the enumeration",
        ),
        pytest.param(
            table(terminal=()),
            {},
            {"there is no terminal state"} | {f"no terminal state can be reached from {s.name}" for s in Door},
            id="there is an end",
        ),
    ],
)
def test_an_invalid_table_does_not_pass(faulty, options, expected):
    assert problems(faulty, **options) == expected


def test_all_problems_are_reported_at_once():
    faulty = table({Door.OPEN: {Did.PUSH: Door.SHUT}, Door.SHUT: {}, Door.GONE: {Did.PUSH: Door.OPEN}})
    assert problems(faulty, stop=Did.REMOVE) == {
        "no terminal state can be reached from OPEN",
        "no terminal state can be reached from SHUT",
        "GONE cannot be reached from OPEN",
        "GONE is terminal but can be left",
        "REMOVE is not allowed in OPEN",
        "REMOVE is not allowed in SHUT",
    }


def test_the_diagram_shows_every_transition():
    assert table().to_mermaid() == (
        "stateDiagram-v2\n"
        "    [*] --> OPEN\n"
        "    OPEN --> SHUT : push\n"
        "    OPEN --> GONE : remove\n"
        "    SHUT --> OPEN : pull hard\n"
        "    SHUT --> GONE : remove\n"
        "    GONE --> [*]\n"
    )


rows = st.fixed_dictionaries({state: st.dictionaries(st.sampled_from(Did), st.sampled_from(Door)) for state in Door})


@given(rows=rows, initial=st.sampled_from(Door), terminal=st.sets(st.sampled_from(Door)))
def test_from_every_state_of_a_valid_table_a_terminal_state_can_be_reached(rows, initial, terminal):
    """Compare with the definition: as many steps as there are states reach every reachable state."""
    candidate = table(rows, initial=initial, terminal=terminal)

    def within(state, steps):
        reached = {state}
        for _ in range(steps):
            reached |= {target for s in reached for target in rows[s].values()}
        return reached

    sound = (
        bool(terminal)
        and within(initial, 3) == set(Door)
        and all(within(state, 3) & terminal for state in Door)
        and all(target is state for state in terminal for target in rows[state].values())
    )
    try:
        candidate.check()
    except InvalidTransitionTable:
        assert not sound
    else:
        assert sound
    assert all(candidate.find_reachable(state) == within(state, 3) for state in Door)
