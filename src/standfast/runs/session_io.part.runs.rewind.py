"""Taking back what a run has stored in a session, so that it can be run anew."""

from typing import Any

from holdfast.base.errors import HistoryMoved
from holdfast.base.items import Item
from holdfast.history.contract import Session


async def remove_own_items(session: Session, own: list[Item]) -> bool:
    """Remove exactly ``own`` from the end of the history. If that is not what stands there, nothing is removed.

    Sessions that can do it take it back in one commit. From others it is popped item by item; when that fails, or
    something else comes up, what was taken off is put back in order.
    """
    if not own:
        return True
    if hasattr(session, "rewind") and hasattr(session, "head"):
        return await _remove_atomically(session, own)
    if await session.get_items(limit=len(own)) != own:
        return False
    popped: list[Item] = []
    try:
        for expected in reversed(own):
            item = await session.pop_item()
            if item is None:
                break
            popped.append(item)
            if item != expected:
                break
    except BaseException:
        await _restore_items(session, popped)
        raise
    if popped != own[::-1]:
        await _restore_items(session, popped)
        return False
    return True


async def _remove_atomically(session: Any, own: list[Item]) -> bool:
    while True:
        head = await session.head()
        if head.length < len(own) or await session.get_items(limit=len(own)) != own:
            return False
        try:
            await session.rewind(head.length - len(own), expected=head)
        except HistoryMoved:
            continue
        return True


async def _restore_items(session: Session, popped: list[Item]) -> None:
    if popped:
        await session.add_items(popped[::-1])
