"""Compact the history of a session before a run reads it."""

from msgspec.structs import replace

from standfast.base.errors import HistoryMoved
from standfast.base.items import Item, encode_items
from standfast.base.log import get_logger
from standfast.history.codec import DecodedRecord
from standfast.history.compaction import HistoryCompaction, Trigger
from standfast.history.stored_session import StoredSession
from standfast.runtime._engine.journal_writer import JournalWriter
from standfast.runtime._engine.records import SessionCompacted
from standfast.runtime._engine.session_marks import mark_session

_log = get_logger(__name__)


async def compact_session(writer: JournalWriter, session: StoredSession, policy: HistoryCompaction) -> None:
    """Replace the oldest items by a summary if the trigger has been passed.

    The replacement and its entry in the journal are one commit under the leases of the run. After a crash before it,
    the next owner of the run makes another summary; after it, none. An error of the summariser is logged.
    """
    record = await session.read_verified_record()
    trigger = policy.trigger
    if record is None or (
        isinstance(trigger, Trigger) and trigger.tokens is None and record.length <= (trigger.items or 0)
    ):
        return
    entries = await session.read_latest(None)
    try:
        oldest = await policy.select_oldest(entries)
        summary = await policy.make_summary(oldest) if oldest else []
    except Exception:  # noqa: BLE001 - code of the program
        _log.exception("session %r could not be compacted; the next run tries again", session.session_id)
        return
    while summary and not await _replace_oldest(writer, session, oldest, summary):
        entries = await session.read_latest(None)
        if [entry.row for entry in entries[: len(oldest)]] != [entry.row for entry in oldest]:
            return  # others have compacted or rewound the history meanwhile


async def _replace_oldest(
    writer: JournalWriter, session: StoredSession, oldest: list[DecodedRecord], summary: list[Item]
) -> bool:
    """Commit the summary in place of the oldest items; return False when the session has changed meanwhile."""
    record = await session.read_verified_record()
    stop = oldest[-1].row.position + 1
    if record is None or record.length < stop:
        return False
    data = encode_items(summary)
    splice = await session.build_replacement(record, 0, stop, data, words=session.extract_words(summary))
    mark = replace(
        mark_session(record),
        generation=record.generation + 1,
        length=record.length - stop + len(data),
        next_seq=record.next_seq + len(data),
    )
    writer.add_note(SessionCompacted(len(oldest), mark))
    try:
        await writer.flush(splice)
    except HistoryMoved:
        writer.drop_last_entry()
        return False
    return True
