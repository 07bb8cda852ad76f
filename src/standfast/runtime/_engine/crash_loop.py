"""Runs whose process ends again and again at the same step: they are tried later each time, and not for ever."""

from functools import reduce
from typing import NamedTuple

from standfast.agents.graph import AgentGraph
from standfast.runs.core import steps
from standfast.runs.core.state import State
from standfast.runs.core.transitions import choose_next_step
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.records import (
    ApprovalDecided,
    JournalEntry,
    LeaseLossReported,
    ResumeRequested,
    RunClaimed,
    RunQueued,
    decode_row,
)
from standfast.runtime.types import RunProblem
from standfast.store.contract import RunRecord

MAX_CRASHES = 5
"""How often a process may end at one step of a run before people have to look at it."""
LOSSES_PER_CRASH = 3
"""How many losses of a lease weigh as much as an end of a process: the step may be what held its owner up."""
CRASH_LOOP_CODE = "process-ended"

_PROGRESS_TYPES = frozenset(
    {
        steps.InputStaged,
        steps.InputTaken,
        steps.ModelAnswered,
        steps.CallsInvoked,
        steps.HandoffPerformed,
        steps.Finished,
        RunQueued,
        ApprovalDecided,
        ResumeRequested,
    }
)
_TAIL_LENGTH = 8 * MAX_CRASHES * LOSSES_PER_CRASH  # more than what is written about a step that is tried so often
_STEP_DESCRIPTIONS: dict[type, str] = {
    steps.TakeInput: "taking the input",
    steps.AskModel: "asking the model",
    steps.CheckApprovals: "looking at calls",
    steps.PerformHandoff: "handing over",
    steps.Finish: "looking at the final output",
}


class CrashCount(NamedTuple):
    """How often a run had to be recovered since it last came further, or since a person let it go on.

    An owner that lives and finds its lease lost says so; one that says nothing has ended.
    """

    ended: int = 0
    lost: int = 0

    def advance(self, entry: JournalEntry) -> "CrashCount":
        it = entry.it
        if type(it) in _PROGRESS_TYPES:
            return CrashCount()
        if isinstance(it, RunClaimed) and it.how == "recovered":
            return CrashCount(self.ended + 1, self.lost)
        if isinstance(it, LeaseLossReported) and self.ended:
            return CrashCount(self.ended - 1, self.lost + 1)
        return self

    @property
    def weight(self) -> float:
        return self.ended + self.lost / LOSSES_PER_CRASH

    @property
    def limit_reached(self) -> bool:
        return self.weight >= MAX_CRASHES


async def compute_recovery_delay(ctx: RuntimeContext, record: RunRecord) -> float:
    """Seconds to leave a run alone that has no owner any more: none at first, longer each time that did not help."""
    rows = await ctx.backend.read_journal(record.run_id, after=max(0, record.journal_length - _TAIL_LENGTH))
    before = reduce(CrashCount.advance, map(decode_row, rows), CrashCount()).weight
    return 0.0 if before + 1 >= MAX_CRASHES else ctx.lease_ttl * (2**before - 1) / 4


def make_crash_loop_problem(state: State, graph: AgentGraph, crashes: CrashCount) -> RunProblem:
    times = [f"its process ended {crashes.ended} times"] if crashes.ended else []
    times += [f"its owner lost its lease {crashes.lost} times"] if crashes.lost else []
    return RunProblem(
        CRASH_LOOP_CODE,
        f"{' and '.join(times)} at this step: {_describe_position(state, graph)}. Find out why, then resume the run to try again, "
        "or cancel it",
    )


def _describe_position(state: State, graph: AgentGraph) -> str:
    """What the run was doing."""
    under_way = [call for call in state.calls if call.status in ("approved", "started", "unknown")]
    for call in under_way:
        if call.child is not None:
            return f"{_describe_position(call.child, graph)}, inside of {call.tool}"
    agent = graph.find(state.agent)
    who = f"the agent {state.agent if agent is None else agent.name!r}"
    if under_way:
        return f"{who} calling {', '.join(f'{call.tool} ({call.id})' for call in under_way)}"
    return f"{who} {_STEP_DESCRIPTIONS.get(type(choose_next_step(state)), 'going on')}"
