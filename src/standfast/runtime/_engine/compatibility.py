"""Whether a run fits the current code: its agents exist, and the tools of its open calls do."""

from msgspec.structs import replace

from standfast.runs.active_run import ActiveRun
from standfast.runs.core import steps
from standfast.runs.core.serialization import list_agent_paths
from standfast.runs.core.state import CallRecord, State
from standfast.runs.toolbox import Toolbox
from standfast.runtime._engine.journal import strip_children
from standfast.runtime.types import RunProblem

Route = tuple[str, ...]


def find_missing_agent(run: ActiveRun) -> RunProblem | None:
    """Return a problem for the first agent of the run that does not exist in this process."""
    for path in list_agent_paths(run.state):
        if run.graph.find(path) is None:
            name = path.rsplit(":", 1)[-1]
            return RunProblem(
                "agent-missing",
                f"the agent {name!r} at {path!r} no longer exists: add it and resume the run, or cancel the run",
            )
    return None


async def find_orphaned_calls(run: ActiveRun) -> list[tuple[Route, CallRecord, str]]:
    """Return the open calls whose tool or handoff no longer exists, with the name of the agent."""
    return await _collect_orphaned_calls(run, run.state, ())


async def _collect_orphaned_calls(run: ActiveRun, state: State, route: Route) -> list[tuple[Route, CallRecord, str]]:
    orphaned: list[tuple[Route, CallRecord, str]] = []
    agent = run.get_agent(state.agent)
    toolbox: Toolbox | None = None
    for call in state.calls:
        if call.status in ("done", "rejected") or call.kind == "mcp":
            continue
        if call.child is not None:
            orphaned += await _collect_orphaned_calls(run, call.child, (*route, call.id))
        toolbox = toolbox or await Toolbox.from_agent(agent, run.context)
        if call.kind == "handoff":
            exists = call.tool.name in toolbox.handoffs_by_name
        else:
            exists = toolbox.find_tool(call.tool) is not None
        if not exists:
            orphaned.append((route, call, agent.name))
    return orphaned


def make_tool_missing_problem(orphaned: list[tuple[Route, CallRecord, str]]) -> RunProblem:
    names = ", ".join(sorted({f"{call.tool} of {agent!r}" for _, call, agent in orphaned}))
    return RunProblem(
        "tool-missing",
        f"open calls of the run need tools that no longer exist: {names}. Add them and resume the run, resume it with "
        "accept_changes=True (--accept-changes) to reject the calls, or cancel it",
    )


def reject_call(call: CallRecord) -> steps.Outcome:
    """Return the outcome that rejects a call whose tool no longer exists."""
    message = f"The tool {call.tool} is no longer available."
    rejected = replace(call, status="rejected", kind="function", uncertain=False, message=message, child=None)
    return strip_children(steps.ApprovalsChecked((rejected,)))
