"""Integrity reports: unreadable records, unpaired items, quarantined records and tampering."""

from collections.abc import Sequence

import msgspec

from standfast.base.errors import HistoryTampered
from standfast.base.item_pairs import UnpairedItem, find_unpaired
from standfast.history.codec import Codec, decode_page
from standfast.store.records import EMPTY_HEAD, Generation, Head, HistoryPage, QuarantinedItem


class CorruptItem(msgspec.Struct, frozen=True):
    """An unreadable record, by its position in the history."""

    position: int
    """The index in the history."""
    reason: str
    """Why it cannot be read."""


class IntegrityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one history."""

    session_id: str
    """The id of the session."""
    head: Head
    """The version and length of the history when it was checked."""
    readable: int
    """The number of items that can be read."""
    corrupt: list[CorruptItem]
    """The records that cannot be read."""
    unpaired: list[UnpairedItem]
    """Items without their counterpart, which are not sent to a model. Indexes count the readable items only."""
    quarantined: list[QuarantinedItem]
    """Records that could not be read and were removed from the history."""
    tampered: str | None = None
    """Why the history does not match its seal, if it does not."""

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not (self.corrupt or self.unpaired or self.quarantined or self.tampered)


def check_integrity(
    session_id: str,
    page: HistoryPage | None,
    codec: Codec,
    *,
    generations: Sequence[Generation],
    quarantined: Sequence[QuarantinedItem],
) -> IntegrityReport:
    """Verify the seal of a history and return the report of all findings."""
    tampered = None
    if page is not None:
        try:
            codec.verify_page(page)
            codec.verify_generations(page.record, generations)
        except HistoryTampered as problem:
            tampered = str(problem)
    return build_report(session_id, page, codec, quarantined=quarantined, tampered=tampered)


def build_report(
    session_id: str,
    page: HistoryPage | None,
    codec: Codec,
    *,
    quarantined: Sequence[QuarantinedItem],
    tampered: str | None,
) -> IntegrityReport:
    """Return the report of a history whose seal has been verified already, with the result as ``tampered``."""
    readable, unreadable = decode_page(codec, page)
    items = [entry.item for entry in readable]
    corrupt = [CorruptItem(row.position, reason) for row, reason in unreadable]
    return IntegrityReport(
        session_id=session_id,
        head=page.record.head if page else EMPTY_HEAD,
        readable=len(items),
        corrupt=corrupt,
        unpaired=find_unpaired(items),
        quarantined=list(quarantined),
        tampered=tampered,
    )
