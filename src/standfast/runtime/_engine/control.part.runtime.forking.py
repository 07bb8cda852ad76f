"""A new run from an earlier step of another one. Nothing is copied: the fork's journal begins with its parent's."""

from holdfast.base.errors import InvalidInput
from holdfast.base.ids import new_id
from holdfast.runs.state import State
from holdfast.runtime.home import RuntimeContext
from holdfast.runtime.queueing import build_create_ops
from holdfast.runtime.records import RunHeader, RunQueued, compute_request_digest, decode_header
from holdfast.runtime.replaying import replay, validate_step
from holdfast.store.contract import RunRecord


async def fork_run(ctx: RuntimeContext, parent: RunRecord, *, at: int | None, session_id: str | None) -> RunRecord:
    """Create the fork, to be taken up. Its session is a fork as well, of what the parent's had at that step."""
    step = parent.journal_length if at is None else validate_step(parent, at)
    replayed = await replay(ctx.backend, parent, upto=step)
    header, run_id = decode_header(parent), new_id("run")
    base, session = header.base, None
    if parent.session_id is not None:
        session = await _fork_session(ctx, parent, replayed.state, base, session_id)
    first = RunQueued(replayed.state.input, replayed.state.max_turns, replayed.context, parent.run_id, step)
    request = compute_request_digest("fork", parent.run_id, step)
    mine = RunHeader(header.agent, request, parent=parent.run_id, base=base)
    await ctx.backend.commit(*build_create_ops(run_id, mine, first, session_id=session))
    return await ctx.get_run(run_id)


async def _fork_session(
    ctx: RuntimeContext, parent: RunRecord, state: State, base: int | None, session_id: str | None
) -> str:
    """A session with what the parent's showed when its run was there."""
    session = ctx.open_session(parent.session_id or "")
    own = sum(not entry.hidden for entry in state.transcript[: state.stored])
    head = await session.head()
    length = (base if base is not None else head.length) + own
    if length > head.length:
        raise InvalidInput(
            f"the session {parent.session_id!r} has {head.length} items and the run had stored its {length}th by then: "
            "it was rewound since, so the run cannot be forked there"
        )
    if not head.version:
        return session_id or new_id("session")
    child = await session.fork(at=length, session_id=session_id)
    return child.session_id
