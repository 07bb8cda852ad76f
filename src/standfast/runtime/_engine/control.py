"""Start, cancel, resume and fork runs, from any process."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

from msgspec.structs import replace

from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.base.errors import (
    ApprovalMoved,
    BlobsMissing,
    HistoryMoved,
    InvalidInput,
    OutsideScope,
    RunMoved,
    StoreUnavailable,
    WorkspaceMoved,
)
from standfast.base.ids import new_id, validate_name, validate_owner
from standfast.base.items import Item
from standfast.base.validation import is_integer
from standfast.history.encryption.workspace_seal import WorkspaceSeal
from standfast.history.stored_session import wait_before_retry
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.context import SavedContext, restore_context, save_context
from standfast.runs.core.state import State, list_finished_calls
from standfast.runs.run_state import RunState
from standfast.runs.session_io import validate_input
from standfast.runtime._engine.approvals import build_withdrawal_ops
from standfast.runtime._engine.context import RuntimeContext, validate_session_id
from standfast.runtime._engine.journal import ReplayedRun
from standfast.runtime._engine.leases import acquire_leases
from standfast.runtime._engine.records import (
    ENDED_STATUSES,
    STOPPED_STATUSES,
    CancelRequested,
    JournalEntry,
    ResumeRequested,
    RunHeader,
    RunQueued,
    RunStopped,
    compute_request_digest,
    decode_header,
    encode,
    encode_entry,
)
from standfast.runtime._engine.replay import replay, validate_step
from standfast.runtime._engine.run_cipher import require_unlocked
from standfast.runtime._engine.scheduler import (
    Scheduler,
    build_create_ops,
    find_next_queued,
    find_session_holder,
    make_run_ids,
)
from standfast.runtime._engine.session_marks import build_rewind_ops, find_fork_place
from standfast.runtime.errors import RunEnded, RunKeyReused, SessionBusy, SessionEncrypted
from standfast.runtime.types import CancelMode, OnBusy
from standfast.store.operations import Annotate, AppendJournal, Op, SaveRun
from standfast.store.records import RunRecord
from standfast.workspaces.branches import build_fork_ops, find_workspace
from standfast.workspaces.references import WorkspaceRef
from standfast.workspaces.run_workspace import RunWorkspace
from standfast.workspaces.storage import WorkspaceStorage, describe_location
from standfast.workspaces.versions import (
    WorkspaceVersion,
    choose_version,
    find_version,
    list_workspaces,
    name_run_workspace,
    name_session_workspace,
)

_BUSY_ADVICE = "wait for it, or start with on_busy='enqueue' or 'interrupt'"


@dataclass(frozen=True)
class StartRequest:
    """The arguments of a start."""

    agent: str
    input: str | list[Item]
    session_id: str | None
    context: SavedContext | None
    max_turns: int | None
    key: str | None
    on_busy: OnBusy
    owner: str | None = None

    @property
    def digest(self) -> str:
        return compute_request_digest(self.agent, self.input, self.session_id, self.context, self.max_turns)

    @property
    def preempts(self) -> bool:
        return self.on_busy in ("interrupt", "rollback")

    def build_ops(self, run_id: str) -> list[Op]:
        """Return the operations that create the queued run; one that preempts is the next of its session."""
        header = RunHeader(self.agent, self.digest, key=self.key)
        first = RunQueued(self.input, self.max_turns, self.context)
        status: Literal["next", "queued"] = "next" if self.preempts else "queued"
        return build_create_ops(run_id, header, first, session_id=self.session_id, status=status)

    def check_same_request(self, record: RunRecord) -> str:
        """Return the run that the key has started before, or raise :class:`RunKeyReused` for another request."""
        if decode_header(record).request != self.digest:
            raise RunKeyReused(self.key or "", run_id=record.run_id)
        return record.run_id


def build_request(
    agent: str,
    input: str | list[Item],
    session_id: str | None,
    context: Any,
    max_turns: int | None,
    key: str | None,
    on_busy: OnBusy,
    owner: str | None,
) -> StartRequest:
    """Return a checked request, or raise :class:`InvalidInput`."""
    if on_busy not in get_args(OnBusy):
        raise InvalidInput(f"on_busy must be enqueue, reject, interrupt or rollback, not {on_busy!r}")
    if max_turns is not None and not is_integer(max_turns):
        raise InvalidInput(f"max_turns must be an integer or None, not {max_turns!r}")
    return StartRequest(
        agent,
        validate_input(input),
        validate_session_id(session_id),
        save_context(context, serializer=None, strict=True),
        max_turns,
        None if key is None else validate_name("key", key),
        on_busy,
        validate_owner(owner),
    )


async def start_run(scheduler: Scheduler, request: StartRequest) -> str:
    """Create the run, start it if its session is free, and return its id."""
    backend = scheduler.ctx.backend
    run_id, *others = make_run_ids(scheduler.ctx, request.key)
    for one in (run_id, *others) if request.key is not None else ():
        if (existing := await backend.get_run(one)) is not None:
            return request.check_same_request(existing)
    await check_session(scheduler.ctx, request.session_id)
    labels = await _build_owner_ops(scheduler.ctx, request)
    if request.on_busy == "reject" and request.session_id is not None:
        await _reject_if_busy(scheduler, run_id, request.session_id)
    try:
        await backend.commit(*labels, *request.build_ops(run_id))
    except StoreUnavailable:
        if await backend.get_run(run_id) is None:
            raise
    except OutsideScope:  # another owner has created the session in the meantime
        raise _make_owner_error(request.session_id) from None
    except RunMoved:
        return request.check_same_request(await scheduler.ctx.get_run(run_id))
    scheduler.ctx.subscriptions.notify_written(run_id)
    if request.preempts and request.session_id is not None:
        await _cancel_session_holder(scheduler, run_id, request.session_id, rollback=request.on_busy == "rollback")
    await scheduler.claim(await scheduler.ctx.get_run(run_id))
    return run_id


async def check_session(ctx: RuntimeContext, session_id: str | None) -> None:
    """Refuse a session that this runtime cannot read, or would not encrypt, before anything is written."""
    record = None if session_id is None else await ctx.backend.get_session(session_id)
    if record is None:
        return
    if record.seal is not None and ctx.cipher is None:
        raise SessionEncrypted(record.session_id)
    ctx.codec.verify(record)


async def _build_owner_ops(ctx: RuntimeContext, request: StartRequest) -> list[Op]:
    """Return the operation that records the owner of a session without one, or raise :class:`InvalidInput`."""
    if request.owner is None:
        return []
    if request.session_id is None:
        raise InvalidInput("an owner is recorded with a session: pass session_id= as well")
    record = await ctx.backend.get_session(request.session_id)
    if record is None or record.owner is None:
        return [Annotate(session_id=request.session_id, metadata={}, owner=request.owner, claim=True)]
    if record.owner != request.owner:
        raise _make_owner_error(request.session_id)
    return []


def _make_owner_error(session_id: str | None) -> InvalidInput:
    return InvalidInput(f"session {session_id!r} has another owner: use store.set_owner(), or another session")


async def _cancel_session_holder(scheduler: Scheduler, run_id: str, session_id: str, *, rollback: bool) -> None:
    """Cancel the run that holds the session. The new run is next already, so no other can start in between."""
    other = await find_session_holder(scheduler.ctx.backend, session_id)
    if other is not None and other.run_id != run_id:
        with suppress(RunEnded):
            await cancel_run(scheduler, other.run_id, "immediate", rollback=rollback)


async def _reject_if_busy(scheduler: Scheduler, run_id: str, session_id: str) -> None:
    """Acquire the leases of a run that is about to be created, or raise :class:`SessionBusy`."""
    ctx = scheduler.ctx
    leases = await acquire_leases(ctx.backend, run_id, session_id, owner=ctx.runtime_id, ttl=ctx.lease_ttl, ops=[])
    # The queue is read first: a run that starts between the two reads is then found as the holder.
    queued = await find_next_queued(ctx.backend, session_id)
    busy = await find_session_holder(ctx.backend, session_id) or queued
    if leases is None:
        raise SessionBusy(session_id, run_id=busy.run_id if busy else None, advice=_BUSY_ADVICE)
    if busy is not None:
        await ctx.backend.commit(*leases.build_release_ops())
        raise SessionBusy(session_id, run_id=busy.run_id, advice=_BUSY_ADVICE)


async def cancel_run(scheduler: Scheduler, run_id: str, mode: CancelMode, *, rollback: bool = False) -> None:
    """Stop the run, or request that from its owner. ``rollback`` removes what it added to its session."""
    ctx = scheduler.ctx
    while True:
        record = await ctx.get_run(run_id)
        if record.status == "cancelled" and not rollback:
            return
        if record.status in ENDED_STATUSES:
            raise RunEnded(run_id, status=record.status, action="cancelled")
        header = replace(decode_header(record), rollback_requested=rollback or decode_header(record).rollback_requested)
        if record.status in ("running", "woken"):
            saved = await update_run(ctx, record, replace(header, cancel=mode), record.status, CancelRequested(mode))
        else:
            ops = await build_withdrawal_ops(ctx.backend, run_id)
            ops += await build_rewind_ops(ctx, record) if header.rollback_requested else []
            ended = replace(header, problem=None)
            saved = await update_run(ctx, record, ended, "cancelled", RunStopped("cancelled"), *ops)
        if saved:
            break
    if run_id in scheduler.executors:
        scheduler.executors[run_id].cancel(mode)
    elif record.status == "woken":
        await scheduler.claim_if_runnable(run_id)
    else:
        await scheduler.start_next(record.session_id)


async def resume_run(scheduler: Scheduler, run_id: str, *, accept: bool, agent: str | None) -> None:
    """Resume a run that failed, was cancelled or is blocked; for other runs this does nothing.

    For a run that is already running, only ``accept`` is stored: a runtime that was just opened may have retried the
    blocked run on its own.
    """
    ctx = scheduler.ctx
    while True:
        record = await ctx.get_run(run_id)
        header = decode_header(record)
        if header.rollback_requested:
            raise RunEnded(run_id, status="rolled back", action="resumed")
        new_header, status = replace(header, accept=accept or header.accept), record.status
        if status in ("failed", "cancelled", "blocked"):
            new_header = replace(new_header, problem=None, cancel=None, agent=agent or header.agent)
            # A blocked run still holds its session; the others have to queue for it again.
            status = "woken" if status == "blocked" else "queued"
        elif status not in ("woken", "running") or new_header == header:
            break
        if await update_run(ctx, record, new_header, status, ResumeRequested(accept, agent)):
            break
    await scheduler.claim_if_runnable(run_id)


async def update_run(
    ctx: RuntimeContext, record: RunRecord, header: RunHeader, status: str, note: Any, *ops: Op
) -> bool:
    """Write the header and a note; return False when another process has changed the run meanwhile."""
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status=status,
        data=encode(header),
        session_id=record.session_id,
    )
    entry = encode_entry(JournalEntry(note))
    try:
        await ctx.backend.commit(*ops, save, AppendJournal(run_id=record.run_id, entries=(entry,)))
    except (RunMoved, ApprovalMoved, HistoryMoved, WorkspaceMoved):
        return False
    ctx.subscriptions.notify_written(record.run_id, stopped=status in STOPPED_STATUSES)
    return True


async def fork_run(
    ctx: RuntimeContext, parent: RunRecord, *, at: int | None, session_id: str | None, owner: str | None = None
) -> RunRecord:
    """Create a queued run that continues from a step of its parent. Its journal begins with its parent's, uncopied.

    The run, its session and its workspace are created in one commit, which fails if the session has another owner.
    """
    require_unlocked(parent)
    await check_session(ctx, parent.session_id)
    step = parent.journal_length if at is None else validate_step(parent, at)
    replayed = await replay(ctx.backend, parent, upto=step)
    run_id = new_id("run")
    child_id = None if parent.session_id is None else session_id or new_id("session")
    first = RunQueued(replayed.state.input, replayed.state.max_turns, replayed.context, parent.run_id, step)
    request = compute_request_digest("fork", parent.run_id, step)
    forked = RunHeader(decode_header(parent).agent, request, parent=parent.run_id)
    claim = (
        []
        if child_id is None or owner is None
        else [Annotate(session_id=child_id, metadata={}, owner=owner, claim=True)]
    )
    for attempt in count():
        conversation = [*await _build_fork_ops(ctx, parent, replayed, run_id, child_id), *claim]
        try:
            await ctx.backend.commit(*build_create_ops(run_id, forked, first, session_id=child_id), *conversation)
            break
        except (HistoryMoved, WorkspaceMoved, BlobsMissing):
            await wait_before_retry(attempt)
    return await ctx.get_run(run_id)


async def _build_fork_ops(
    ctx: RuntimeContext, parent: RunRecord, run: ReplayedRun, run_id: str, child_id: str | None
) -> list[Op]:
    """Return the operations that create the session and the workspace of a fork, as they were at this step."""
    ops, outputs = list[Op](), list[str]()
    if parent.session_id is None or child_id is None:
        source, target = name_run_workspace(parent.run_id), name_run_workspace(run_id)
    else:
        source, target = name_session_workspace(parent.session_id), name_session_workspace(child_id)
        place = await find_fork_place(ctx, parent, run)
        if place is not None:
            session, (length, generation) = ctx.open_session(parent.session_id), place
            child = ctx.open_session(child_id)
            ops += await session.build_fork_ops(child, length, generation=generation, with_workspace=False)
            outputs += await session.list_output_ids(length, generation=generation)
    outputs += list_finished_calls(run.state, start=run.state.stored)
    for pair in zip(list_workspaces(source), list_workspaces(target), strict=True):
        ops += await build_fork_ops(ctx.backend, *pair, outputs, any_line=True)
    return ops


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
