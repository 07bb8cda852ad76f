"""Which outcomes of steps are written to the journal of a run, and which of them not before the next one."""

from standfast.runs.active_run import ActiveRun
from standfast.runs.core import steps
from standfast.runs.core.steps import Outcome
from standfast.runs.core.transitions import choose_next_step


def is_empty(outcome: Outcome, *, changed: bool) -> bool:
    """Return whether the outcome adds nothing to the journal."""
    if isinstance(outcome, steps.Resumed):
        return not changed
    if isinstance(outcome, steps.CallsInvoked):
        return not (outcome.calls or outcome.entries or outcome.guardrails or outcome.error)
    return False


def can_defer(run: ActiveRun, outcome: Outcome) -> bool:
    """Return whether the outcome need not be written at once: after a crash the step is simply repeated."""
    if isinstance(outcome, steps.Finished):
        return run.state.ended  # written with the end of the run
    if isinstance(outcome, steps.ModelAnswered):
        return outcome.error is None and run.finishes_at_once()
    if not isinstance(outcome, steps.ApprovalsChecked | steps.ToolOutputChecked | steps.Resumed):
        return False
    if run.model_input.needs_history(run.state):
        return False  # the session is about to be read and must contain what the run has stored
    next_step = choose_next_step(run.state)
    return next_step is not None and not isinstance(next_step, steps.InvokeCalls)
