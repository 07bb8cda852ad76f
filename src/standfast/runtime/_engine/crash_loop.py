"""Limit the recoveries of a run whose process dies at the same step again and again."""

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
from standfast.store.records import RunRecord

MAX_CRASHES = 5
"""How often a process may die at one step of a run before the run waits for a person."""
LOSSES_PER_CRASH = 3
"""How many lost leases count as one crash: the step may have blocked the owner."""
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
_TAIL_LENGTH = 8 * MAX_CRASHES * LOSSES_PER_CRASH  # more than the entries of one step with that many recoveries
_STEP_DESCRIPTIONS: dict[type, str] = {
    steps.TakeInput: "reading the input",
    steps.AskModel: "calling the model",
    steps.CheckApprovals: "checking approvals",
    steps.PerformHandoff: "making a handoff",
    steps.Finish: "checking the final output",
}


class CrashCount(NamedTuple):
    """How often a run was recovered since its last progress, or since a person resumed it.

    An owner that is alive and has lost its lease reports it; one that does not report counts as a crash.
    """

    crashes: int = 0
    lost: int = 0

    def advance(self, entry: JournalEntry) -> "CrashCount":
        content = entry.content
        if type(content) in _PROGRESS_TYPES:
            return CrashCount()
        if isinstance(content, RunClaimed) and content.how == "recovered":
            return CrashCount(self.crashes + 1, self.lost)
        if isinstance(content, LeaseLossReported) and self.crashes:
            return CrashCount(self.crashes - 1, self.lost + 1)
        return self

    @property
    def weight(self) -> float:
        return self.crashes + self.lost / LOSSES_PER_CRASH

    @property
    def limit_reached(self) -> bool:
        return self.weight >= MAX_CRASHES


async def compute_recovery_delay(ctx: RuntimeContext, record: RunRecord) -> float:
    """Return the seconds to wait before a run without an owner is recovered: 0 at first, more after each crash."""
    rows = await ctx.backend.read_journal(record.run_id, after=max(0, record.journal_length - _TAIL_LENGTH))
    before = reduce(CrashCount.advance, map(decode_row, rows), CrashCount()).weight
    return 0.0 if before + 1 >= MAX_CRASHES else ctx.lease_ttl * (2**before - 1) / 4


def make_crash_loop_problem(state: State, graph: AgentGraph, count: CrashCount) -> RunProblem:
    times = [f"its process ended {count.crashes} times"] if count.crashes else []
    times += [f"its owner lost its lease {count.lost} times"] if count.lost else []
    return RunProblem(
        CRASH_LOOP_CODE,
        f"{' and '.join(times)} at this step: {_describe_position(state, graph)}. Find out why, then resume the run to "
        "try again, or cancel it",
    )


def _describe_position(state: State, graph: AgentGraph) -> str:
    """Describe the step that the run is at."""
    active_calls = [call for call in state.calls if call.status in ("approved", "started", "unknown")]
    for call in active_calls:
        if call.child is not None:
            return f"{_describe_position(call.child, graph)}, inside {call.tool}"
    agent = graph.find(state.agent)
    subject = f"the agent {state.agent if agent is None else agent.name!r}"
    if active_calls:
        return f"{subject} calling {', '.join(f'{call.tool} ({call.id})' for call in active_calls)}"
    return f"{subject} {_STEP_DESCRIPTIONS.get(type(choose_next_step(state)), 'continuing')}"
