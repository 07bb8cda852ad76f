"""Taking back what a run has added to its session."""

from holdfast.runtime.home import RuntimeContext
from holdfast.store.contract import Op, Splice, ViewUpdate
from holdfast.store.view import slice_spans


async def build_rewind_ops(ctx: RuntimeContext, session_id: str | None, to: int | None) -> list[Op]:
    """What makes the session show what it showed before a run, for the commit in which that run ends.

    In that commit and no other: until then the run has the session, and nothing of another is behind its items.
    """
    before = None if session_id is None else await ctx.backend.get_session(session_id)
    if session_id is None or before is None or to is None or to >= before.length:
        return []
    shape = ViewUpdate(closed=slice_spans(before.view, 0, to), open_from=before.next_seq, length=to, archive=True)
    splice = Splice(session_id=session_id, view_update=shape, tape=before.tape)
    return [ctx.open_session(session_id).seal_splice(before, splice)]
