"""Whether a stored run still fits the code: its agents are there, and so are the tools of its open calls."""

from msgspec.structs import replace

from standfast.agents.context import RunContextWrapper
from standfast.runs.active_run import ActiveRun
from standfast.runs.core import steps
from standfast.runs.core.serialization import list_agent_paths
from standfast.runs.core.state import CallRecord, State
from standfast.runs.toolbox import Toolbox
from standfast.runtime._engine.journal import strip_children
from standfast.runtime.types import RunProblem

Route = tuple[str, ...]


def find_missing_agent(run: ActiveRun) -> RunProblem | None:
    """The first agent of the run that this process does not have."""
    for path in list_agent_paths(run.state):
        if run.graph.find(path) is None:
            name = path.rsplit(":", 1)[-1]
            return RunProblem(
                "agent-missing",
                f"the agent {name!r} at {path!r} is no longer there: bring it back and resume the run, or cancel it",
            )
    return None


async def find_orphaned_calls(run: ActiveRun) -> list[tuple[Route, CallRecord, str]]:
    """Open calls of tools and handoffs that their agents do not have any more, with the agent's name."""
    return await _collect_orphaned_calls(run, run.state, ())


async def _collect_orphaned_calls(run: ActiveRun, state: State, route: Route) -> list[tuple[Route, CallRecord, str]]:
    found: list[tuple[Route, CallRecord, str]] = []
    agent = run.get_agent(state.agent)
    box: Toolbox | None = None
    for call in state.calls:
        if call.status in ("done", "rejected") or call.kind == "mcp":
            continue
        if call.child is not None:
            found += await _collect_orphaned_calls(run, call.child, (*route, call.id))
        box = box or await Toolbox.from_agent(agent, RunContextWrapper(run.context.context))
        known = (
            call.tool.name in box.handoffs_by_name if call.kind == "handoff" else box.find_tool(call.tool) is not None
        )
        if not known:
            found.append((route, call, agent.name))
    return found


def make_tool_missing_problem(orphaned: list[tuple[Route, CallRecord, str]]) -> RunProblem:
    names = ", ".join(sorted({f"{call.tool} of {agent!r}" for _, call, agent in orphaned}))
    return RunProblem(
        "tool-missing",
        f"the code no longer has what open calls of the run need: {names}. Bring it back and resume the run, resume it "
        "with accept_changes=True (--accept-changes) to have the calls refused, or cancel it",
    )


def reject_call(call: CallRecord) -> steps.Outcome:
    """The outcome by which a call is not made, because there is nothing any more that could make it."""
    message = f"The tool {call.tool} is not available any more."
    gone = replace(call, status="rejected", kind="function", uncertain=False, message=message, child=None)
    return strip_children(steps.ApprovalsChecked((gone,)))
