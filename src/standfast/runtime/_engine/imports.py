"""Make a run that a program has saved durable: its state, and the variables and files that it refers to."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from standfast.agents.graph import ROOT, AgentGraph
from standfast.base.errors import InvalidInput, RunMoved, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.history.store import Store
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.context import save_context
from standfast.runs.core.serialization import encode_run, list_agent_paths
from standfast.runs.core.state import SessionConversation, State
from standfast.runs.saved_workspace import list_python_stores
from standfast.runs.session_io import list_stored_items
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.control import check_session
from standfast.runtime._engine.records import RunHeader, RunQueued, compute_request_digest, decode_header
from standfast.runtime._engine.scheduler import Scheduler, build_create_ops
from standfast.store.operations import Op
from standfast.store.records import RunRecord
from standfast.workspaces.bundles import build_import_ops
from standfast.workspaces.run_workspace import is_reached
from standfast.workspaces.storage import WorkspaceStorage, refuse_clear
from standfast.workspaces.versions import name_run_workspace, name_session_workspace

if TYPE_CHECKING:
    from standfast.runs.run_state import RunState

MAX_WORKSPACE_BYTES = 256 << 20
"""Bytes of compressed content that a run may bring along."""


async def import_run(scheduler: Scheduler, agent: str, saved: "RunState[Any, Any]") -> str:
    """Create a queued run that continues from a saved state, under its id, and return that id.

    The run and its workspace are created in one commit. The same state gives the same run, however often it is
    imported.
    """
    ctx = scheduler.ctx
    run = saved.to_active_run()
    state = run.capture_state()
    run_id = validate_name("run id", state.run_id)
    _check_agents(ctx.get_graph(agent), run)
    values = encode_run(replace(state, workspace=None, trace=None), saved.graph, None)
    context = save_context(saved.context.context, serializer=None, strict=True)
    digest = compute_request_digest("state", agent, values, context)
    if (existing := await ctx.backend.get_run(run_id)) is not None:
        return _check_same_state(existing, digest)
    session_id = await _find_session(ctx, state)
    first = RunQueued(state.input, state.max_turns, context, state=values)
    header, queue = RunHeader(agent, digest), ctx.name_queue(agent)
    ops = build_create_ops(run_id, header, first, session_id=session_id, queue=queue)
    target = name_run_workspace(run_id) if session_id is None else name_session_workspace(session_id)
    try:
        await ctx.backend.commit(*ops, *await _build_workspace_ops(ctx, run, target))
    except StoreUnavailable:
        if await ctx.backend.get_run(run_id) is None:
            raise
    except RunMoved:
        return _check_same_state(await ctx.get_run(run_id), digest)
    ctx.subscriptions.notify_written(run_id)
    await scheduler.claim(await ctx.get_run(run_id))
    return run_id


def _check_agents(graph: AgentGraph, run: ActiveRun) -> None:
    """Raise :class:`AgentMissing` or :class:`AgentChanged` unless the agents of the runtime are those of the run."""
    for path in dict.fromkeys((ROOT, *list_agent_paths(run.state))):
        known = run.graph.find(path)
        if known is not None:
            graph.resolve(run.graph.get_ref(known))


def _check_same_state(record: RunRecord, digest: str) -> str:
    if decode_header(record).request != digest:
        raise InvalidInput(
            f"the run {record.run_id!r} is in this store already, and not from this state: use resume() or fork()"
        )
    return record.run_id


async def _find_session(ctx: RuntimeContext, state: State) -> str | None:
    """Return the session of the run, which has to be in this store with what the run has read and stored."""
    if not isinstance(state.conversation, SessionConversation):
        return None
    session_id = state.conversation.session_id
    await check_session(ctx, session_id)
    length = (await ctx.open_session(session_id).head()).length
    if length < state.conversation.window + len(list_stored_items(state)):
        raise InvalidInput(
            f"the run belongs to session {session_id!r}, which is not in this store, or has lost items: open the"
            " runtime on the store of that session, or copy the session first"
        )
    return session_id


def _name_conversations(ctx: RuntimeContext, state: State) -> list[str]:
    """Return the keys by which the Python of a run can know its conversation."""
    if isinstance(state.conversation, SessionConversation):
        return [state.run_id, ctx.open_session(state.conversation.session_id).conversation_key]
    provided = getattr(state.conversation, "conversation_id", None)
    return [state.run_id] if provided is None else [state.run_id, provided]


async def _build_workspace_ops(ctx: RuntimeContext, run: ActiveRun, target: str) -> list[Op]:
    """Return the operations that create the workspace of the run as it was saved. Its chunks are stored already."""
    workspace, reference = run.workspace, run.workspace.reference
    if reference is None:
        return []
    if workspace.is_sealed or workspace.is_confidential:
        refuse_clear(ctx.backend, is_encrypted=ctx.cipher is not None)
    storage = WorkspaceStorage(ctx.backend)
    record = await storage.get(target)
    if record is not None and is_reached(record, reference):
        return []
    stores = [*list_python_stores(run.graph), Store(ctx.backend)]
    names = _name_conversations(ctx, run.state)
    own = {target, name_run_workspace(run.state.run_id)}
    own |= {store.name_workspace(name) for store in stores for name in names}
    bundle = await workspace.export(stores, own=own, max_bytes=MAX_WORKSPACE_BYTES)
    await workspace.check_owner(storage, target, bundle, is_taken=record is not None)
    return await build_import_ops(storage, target, record, bundle)
