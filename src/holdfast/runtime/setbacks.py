"""Runs whose process ends again and again at the same step: they are tried later each time, and not for ever."""

from functools import reduce
from typing import NamedTuple

from holdfast.agents.graph import AgentGraph
from holdfast.runs import steps
from holdfast.runs.decide import decide
from holdfast.runs.state import State
from holdfast.runtime.home import Home
from holdfast.runtime.records import Begun, Called, JournalEntry, Outlived, Owned, Problem, Settled, entry_of
from holdfast.store.contract import RunRecord

MOST = 5
"""How often a process may end at one step of a run before people have to look at it."""
LOSSES = 3
"""How many losses of a lease weigh as much as an end of a process: the step may be what held its owner up."""
CODE = "process-ended"

_PROGRESS = frozenset(
    {
        steps.InputStaged,
        steps.InputTaken,
        steps.Answered,
        steps.CallsMade,
        steps.HandedOver,
        steps.Finished,
        Begun,
        Settled,
        Called,
    }
)
_TAIL = 8 * MOST * LOSSES  # more than what is written about a step that is tried so often
_DOING: dict[type, str] = {
    steps.TakeInput: "taking the input",
    steps.AskModel: "asking the model",
    steps.Judge: "looking at calls",
    steps.HandOver: "handing over",
    steps.Finish: "looking at the final output",
}


class Setbacks(NamedTuple):
    """How often a run had to be recovered since it last came further, or since a person let it go on.

    An owner that lives and finds its lease lost says so; one that says nothing has ended.
    """

    ended: int = 0
    lost: int = 0

    def after(self, entry: JournalEntry) -> "Setbacks":
        it = entry.it
        if type(it) in _PROGRESS:
            return Setbacks()
        if isinstance(it, Owned) and it.how == "recovered":
            return Setbacks(self.ended + 1, self.lost)
        if isinstance(it, Outlived) and self.ended:
            return Setbacks(self.ended - 1, self.lost + 1)
        return self

    @property
    def weight(self) -> float:
        return self.ended + self.lost / LOSSES

    @property
    def too_many(self) -> bool:
        return self.weight >= MOST


async def pause(home: Home, record: RunRecord) -> float:
    """Seconds to leave a run alone that has no owner any more: none at first, longer each time that did not help."""
    rows = await home.backend.journal(record.run_id, after=max(0, record.journal_length - _TAIL))
    before = reduce(Setbacks.after, map(entry_of, rows), Setbacks()).weight
    return 0.0 if before + 1 >= MOST else home.lease * (2**before - 1) / 4


def keeps_ending(state: State, graph: AgentGraph, setbacks: Setbacks) -> Problem:
    times = [f"its process ended {setbacks.ended} times"] if setbacks.ended else []
    times += [f"its owner lost its lease {setbacks.lost} times"] if setbacks.lost else []
    return Problem(
        CODE,
        f"{' and '.join(times)} at this step: {_at(state, graph)}. Find out why, then resume the run to try again, "
        "or cancel it",
    )


def _at(state: State, graph: AgentGraph) -> str:
    """What the run was doing."""
    under_way = [call for call in state.calls if call.status in ("approved", "started", "unknown")]
    for call in under_way:
        if call.child is not None:
            return f"{_at(call.child, graph)}, inside of {call.tool}"
    agent = graph.find(state.agent)
    who = f"the agent {state.agent if agent is None else agent.name!r}"
    if under_way:
        return f"{who} calling {', '.join(f'{call.tool} ({call.id})' for call in under_way)}"
    return f"{who} {_DOING.get(type(decide(state)), 'going on')}"
