"""Fork a run: a new run from a step of another one, unchanged or with another input, outputs or agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from msgspec import structs

from standfast.base.errors import BlobsMissing, HistoryMoved, InvalidInput, WorkspaceMoved
from standfast.base.ids import new_id
from standfast.base.item_pairs import get_call_id
from standfast.base.items import Item
from standfast.history.stored_session import wait_before_retry
from standfast.runs.core.conversion import to_usage_record
from standfast.runs.core.serialization import encode_run
from standfast.runs.core.state import RunTranscript, SessionConversation, list_finished_calls
from standfast.runs.core.transitions import withdraw_approvals
from standfast.runs.session_io import list_stored_items
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.control import check_session
from standfast.runtime._engine.journal import ReplayedRun, replay, validate_step
from standfast.runtime._engine.records import RunHeader, RunQueued, compute_request_digest, decode_header
from standfast.runtime._engine.run_cipher import require_unlocked
from standfast.runtime._engine.scheduler import build_create_ops
from standfast.runtime._engine.session_marks import find_fork_place
from standfast.store.operations import Annotate, Op, Splice
from standfast.store.records import RunRecord
from standfast.workspaces.branch_points import RunPoint
from standfast.workspaces.branches import build_fork_ops
from standfast.workspaces.versions import list_workspaces, name_run_workspace, name_session_workspace


@dataclass(frozen=True)
class ForkTarget:
    """The step where a fork begins, the session it gets, and whose that is."""

    at: int | None = None
    session_id: str | None = None
    owner: str | None = None


@dataclass(frozen=True)
class ForkEdit:
    """What is different in a fork: the input, the outputs of tools by call id, the agent."""

    input: str | list[Item] | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None


@dataclass(frozen=True)
class ForkOrigin:
    """A step of the parent, as the fork begins with it."""

    step: int
    run: ReplayedRun
    is_edited: bool = False


async def fork_run(ctx: RuntimeContext, parent: RunRecord, target: ForkTarget, edit: ForkEdit) -> RunRecord:
    """Create a queued run that continues from a step of its parent.

    Without an edit its journal begins with its parent's, uncopied. The run, its session and its workspace are created
    in one commit, which fails if the session has another owner.
    """
    require_unlocked(parent)
    await check_session(ctx, parent.session_id)
    if edit.agent is not None:
        ctx.get_graph(edit.agent)
    origin = await find_origin(ctx, parent, target.at, edit)
    run_id = new_id("run")
    child_id = None if parent.session_id is None else target.session_id or new_id("session")
    agent = edit.agent or decode_header(parent).agent
    first = build_first_entry(ctx, parent, origin, agent, run_id, child_id)
    request = compute_request_digest("fork", parent.run_id, origin.step)
    forked = RunHeader(agent, request, parent=parent.run_id)
    claim = (
        []
        if child_id is None or target.owner is None
        else [Annotate(session_id=child_id, metadata={}, owner=target.owner, claim=True)]
    )
    for attempt in count():
        conversation = [*await _build_fork_ops(ctx, parent, origin.run, run_id, child_id), *claim]
        try:
            create = build_create_ops(
                run_id,
                forked,
                first,
                session_id=child_id,
                queue=ctx.name_queue(agent),
                priority=parent.priority,
                share=target.owner or parent.share,
            )
            await ctx.backend.commit(*create, *conversation)
            break
        except (HistoryMoved, WorkspaceMoved, BlobsMissing):
            await wait_before_retry(attempt)
    return await ctx.get_run(run_id)


async def find_origin(ctx: RuntimeContext, parent: RunRecord, at: int | None, edit: ForkEdit) -> ForkOrigin:
    """Return the step that the fork begins with, edited."""
    if edit.input is not None:
        if at not in (None, 1) or edit.outputs:
            raise InvalidInput("a fork with another input begins at step 1, without outputs: leave out at and outputs")
        run = await replay(ctx.backend, parent, upto=1)
        if run.state.input_taken:
            raise InvalidInput(f"the run {parent.run_id!r} began after its input: fork the run that it was forked from")
        return ForkOrigin(1, replace(run, state=structs.replace(run.state, input=edit.input)), is_edited=True)
    step = parent.journal_length if at is None else validate_step(parent, at)
    run = await replay(ctx.backend, parent, upto=step)
    if not edit.outputs:
        return ForkOrigin(step, run)
    return ForkOrigin(step, replace_outputs(run, edit.outputs), is_edited=True)


def replace_outputs(run: ReplayedRun, outputs: Mapping[str, str]) -> ReplayedRun:
    """Return the run with other outputs of calls, which the session gets in place of those that it has."""
    state = run.state
    entries = list(state.transcript)
    places = {
        get_call_id(entry.item): index
        for index, entry in enumerate(entries)
        if entry.kind == "output" and index >= state.turn_start and entry.item.get("type") == "function_call_output"
    }
    unknown = [call_id for call_id in outputs if call_id not in places]
    if unknown or state.answer is not None:
        raise InvalidInput(
            f"at this step the call {(unknown or list(outputs))[0]!r} has no output that the model has not seen: fork"
            " at the step `calls.made` of that call"
        )
    for call_id, output in outputs.items():
        entry = entries[places[call_id]]
        entries[places[call_id]] = structs.replace(entry, item=entry.item | {"output": output}, value=None)
    stored = min(state.stored, min(places[call_id] for call_id in outputs))
    edited = structs.replace(state, transcript=RunTranscript(entries), stored=stored)
    own = len(list_stored_items(edited))
    # The session of the fork ends before the first of them, so an earlier mark tells where that is.
    marks = [(mark, inherited) for mark, inherited in run.session_marks if inherited <= own]
    if run.session_marks and not marks:
        raise InvalidInput("the outputs of calls before a fork cannot be replaced in it: fork the run that made them")
    return replace(run, state=edited, session_marks=marks)


def build_first_entry(
    ctx: RuntimeContext, parent: RunRecord, origin: ForkOrigin, agent: str, run_id: str, child_id: str | None
) -> RunQueued:
    """Return the first entry of the fork's journal: a place in that of its parent, or an edited state."""
    run, state = origin.run, origin.run.state
    if not origin.is_edited:
        return RunQueued(state.input, state.max_turns, run.context, parent.run_id, origin.step)
    if not state.input_taken:
        return RunQueued(state.input, state.max_turns, run.context)
    changed = structs.replace(
        withdraw_approvals(state), run_id=run_id, trace=None, workspace=None, usage=to_usage_record(run.usage)
    )
    if isinstance(state.conversation, SessionConversation) and child_id is not None:
        changed = structs.replace(changed, conversation=structs.replace(state.conversation, session_id=child_id))
    values = encode_run(changed, ctx.get_graph(agent), None)
    return RunQueued(state.input, state.max_turns, run.context, state=values)


async def _build_fork_ops(
    ctx: RuntimeContext, parent: RunRecord, run: ReplayedRun, run_id: str, child_id: str | None
) -> list[Op]:
    """Return the operations that create the session and the workspace of a fork, as they were at this step."""
    ops, outputs, call, stored_at = list[Op](), list[str](), None, None
    if parent.session_id is None or child_id is None:
        source, target = name_run_workspace(parent.run_id), name_run_workspace(run_id)
    else:
        source, target = name_session_workspace(parent.session_id), name_session_workspace(child_id)
        place = await find_fork_place(ctx, parent, run)
        if place is not None:
            session, (length, generation, call) = ctx.open_session(parent.session_id), place
            child = ctx.open_session(child_id)
            ops += await session.build_fork_ops(child, length, generation=generation, with_workspace=False)
            outputs += await session.list_output_ids(length, generation=generation)
            stored_at = next((op.tape, 0, 0) for op in ops if isinstance(op, Splice))
    pending = list_finished_calls(run.state, start=run.state.stored)
    point = RunPoint([*outputs, *pending], call, parent.run_id, pending, stored_at)
    for pair in zip(list_workspaces(source), list_workspaces(target), strict=True):
        ops += await build_fork_ops(ctx.backend, *pair, point)
    return ops
