"""Taking back what a run has added to its session."""

from holdfast.runtime.home import Home
from holdfast.store.contract import Op, Shape, Splice
from holdfast.store.view import cut


async def rewound(home: Home, session_id: str | None, to: int | None) -> list[Op]:
    """What makes the session show what it showed before a run, for the commit in which that run ends.

    In that commit and no other: until then the run has the session, and nothing of another is behind its items.
    """
    before = None if session_id is None else await home.backend.record(session_id)
    if session_id is None or before is None or to is None or to >= before.length:
        return []
    shape = Shape(closed=cut(before.view, 0, to), open_from=before.next_seq, length=to, archive=True)
    splice = Splice(session_id=session_id, shape=shape, tape=before.tape)
    return [home.session(session_id).sealed(before, splice)]
