"""A run as it was after a step: as a portable state, or described for a reader."""

from typing import Any

import msgspec

from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.history.encryption.workspace_seal import WorkspaceSeal
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.context import restore_context
from standfast.runs.core.conversion import to_usage_record
from standfast.runs.core.state import State, list_finished_calls
from standfast.runs.run_state import RunState
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.journal import ReplayedRun, replay, validate_step
from standfast.runtime._engine.records import decode_header
from standfast.runtime._engine.run_cipher import require_unlocked
from standfast.runtime.types import RunStep, StepCall, StepItem
from standfast.store.records import RunRecord
from standfast.workspaces.branches import find_workspace
from standfast.workspaces.run_workspace import RunWorkspace
from standfast.workspaces.storage import WorkspaceStorage, describe_location
from standfast.workspaces.versions import (
    WorkspaceRef,
    WorkspaceVersion,
    choose_version,
    find_version,
    name_run_workspace,
    name_session_workspace,
)


async def load_state(ctx: RuntimeContext, run_id: str, *, at: int | None) -> RunState[Any, Any]:
    """Return the run as a portable state, as it is now or as it was after the step ``at``."""
    record = await ctx.get_run(run_id)
    graph = ctx.get_graph(decode_header(record).agent)
    replayed = await replay(ctx.backend, record, upto=None if at is None else validate_step(record, at))
    context: RunContextWrapper[Any] = RunContextWrapper(
        restore_context(replayed.context, deserializer=None, strict=False),
        usage=replayed.usage,
        approvals=Approvals(list(replayed.state.approvals)),
        tool_input=replayed.state.tool_input,
    )
    workspace = await find_run_workspace(ctx, record, replayed.state)
    return RunState.from_run(
        ActiveRun(replayed.state, graph=graph, context=context, config=ctx.config, workspace=workspace)
    )


async def find_run_workspace(ctx: RuntimeContext, record: RunRecord, state: State) -> RunWorkspace:
    """Return the workspace of a run as it was in this state, for a state that is continued elsewhere."""
    key = name_run_workspace(record.run_id) if record.session_id is None else name_session_workspace(record.session_id)
    found = await find_workspace(ctx.backend, key)
    if found is None:
        return RunWorkspace(record.run_id)
    storage = WorkspaceStorage(ctx.backend)
    number = find_run_version(await storage.read_versions(key), record, list_finished_calls(state))
    if not number:
        return RunWorkspace(record.run_id)
    line = await storage.read_line(key, number)
    saved = next((one.checkpoint_id for one in reversed(line) if one.checkpoint_id is not None), None)
    reference = WorkspaceRef(key, found.workspace_id, number, saved, describe_location(ctx.backend))
    seal = None if ctx.cipher is None else WorkspaceSeal(ctx.cipher.keyring)
    return RunWorkspace(record.run_id, reference, seal=seal, storage=storage)


def find_run_version(versions: list[WorkspaceVersion], record: RunRecord, outputs: list[str]) -> int:
    """Return the version after these calls of a run; before its first call, that which its session had."""
    if record.session_id is None:
        return choose_version(versions, outputs)
    own = [one for one in versions if one.cell.run_id == record.run_id]
    before = own[0].cell.parent if own else versions[-1].number
    return find_version(own, outputs) or before


async def describe_step(ctx: RuntimeContext, run_id: str, *, at: int | None) -> RunStep:
    """Return what the run had done by a step."""
    record = await ctx.get_run(run_id)
    require_unlocked(record)
    step = record.journal_length if at is None else validate_step(record, at)
    replayed = await replay(ctx.backend, record, upto=step)
    state, mark = replayed.state, next((mark for mark, _ in replayed.session_marks), None)
    workspace = (await find_run_workspace(ctx, record, state)).reference
    return RunStep(
        run_id=run_id,
        step=step,
        steps=record.journal_length,
        agent=decode_header(record).agent,
        agent_path=state.agent,
        turn=state.turn,
        input=state.input,
        items=[StepItem(entry.item, entry.kind, entry.agent, entry.hidden) for entry in state.transcript],
        calls=list_calls(replayed, state),
        context=None if replayed.context is None else msgspec.to_builtins(replayed.context),
        usage=msgspec.to_builtins(to_usage_record(replayed.usage)),
        history_length=mark.length if mark else 0,
        history_generation=mark.generation if mark else 0,
        workspace=workspace.key if workspace else None,
        workspace_version=workspace.version if workspace else 0,
    )


def list_calls(run: ReplayedRun, state: State, route: tuple[str, ...] = ()) -> list[StepCall]:
    """Return the calls of the current turn, each followed by those of the run that is nested in it."""
    calls = []
    for call in state.calls:
        item = state.transcript[call.position].item
        calls.append(
            StepCall(
                call_id=call.id,
                tool=str(call.tool),
                status=call.status,
                arguments=call.arguments or str(item.get("arguments", "")),
                approval_id=run.pending_approvals.get((route, call.id)),
                route=route,
            )
        )
        if call.child is not None:
            calls += list_calls(run, call.child, (*route, call.id))
    return calls
