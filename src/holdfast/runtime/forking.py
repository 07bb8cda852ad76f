"""A new run from an earlier step of another one. Nothing is copied: the fork's journal begins with its parent's."""

from holdfast.base.errors import InvalidInput
from holdfast.base.ids import new_id
from holdfast.runs.state import State
from holdfast.runtime.home import Home
from holdfast.runtime.queueing import created
from holdfast.runtime.records import Begun, Header, header_of, request_digest
from holdfast.runtime.replaying import checked_step, replay
from holdfast.store.contract import RunRecord


async def fork(home: Home, parent: RunRecord, *, at: int | None, session_id: str | None) -> RunRecord:
    """Create the fork, to be taken up. Its session is a fork as well, of what the parent's had at that step."""
    step = parent.journal_length if at is None else checked_step(parent, at)
    replayed = await replay(home.backend, parent, upto=step)
    header, run_id = header_of(parent), new_id("run")
    base, session = header.base, None
    if parent.session_id is not None:
        session = await _forked_session(home, parent, replayed.state, base, session_id)
    first = Begun(replayed.state.input, replayed.state.max_turns, replayed.context, parent.run_id, step)
    request = request_digest("fork", parent.run_id, step)
    mine = Header(header.agent, request, parent=parent.run_id, base=base)
    await home.backend.commit(*created(run_id, mine, first, session_id=session))
    return await home.record(run_id)


async def _forked_session(home: Home, parent: RunRecord, state: State, base: int | None, session_id: str | None) -> str:
    """A session with what the parent's showed when its run was there."""
    session = home.session(parent.session_id or "")
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
