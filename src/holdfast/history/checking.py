"""What is wrong with a stored history, if anything."""

from collections.abc import Sequence

import msgspec

from holdfast.base.errors import HistoryTampered
from holdfast.base.pairing import Unpaired, unpaired
from holdfast.history.codec import Codec, Unreadable
from holdfast.store.contract import NOWHERE, Generation, Head, Page, Quarantined


class Corrupt(msgspec.Struct, frozen=True):
    """A record that holds no item, by its position in the history."""

    position: int
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one history. ``ok`` when there are none."""

    session_id: str
    head: Head
    readable: int
    corrupt: list[Corrupt]
    unpaired: list[Unpaired]
    """Indexes count the readable items only; a model is not shown these."""
    quarantined: list[Quarantined]
    tampered: str | None = None

    @property
    def ok(self) -> bool:
        return not (self.corrupt or self.unpaired or self.quarantined or self.tampered)


def examine(
    session_id: str,
    page: Page | None,
    codec: Codec,
    *,
    earlier: Sequence[Generation],
    aside: Sequence[Quarantined],
) -> Report:
    tampered = None
    if page is not None:
        try:
            codec.verify(page.record)
            codec.verify_past(page.record, earlier)
        except HistoryTampered as problem:
            tampered = str(problem)
    return findings(session_id, page, codec, aside=aside, tampered=tampered)


def findings(
    session_id: str, page: Page | None, codec: Codec, *, aside: Sequence[Quarantined], tampered: str | None
) -> Report:
    items, corrupt = [], []
    for row in page.rows if page else []:
        try:
            items.append(codec.decode(row).item)
        except Unreadable as problem:
            corrupt.append(Corrupt(row.position, str(problem)))
    return Report(
        session_id=session_id,
        head=page.record.head if page else NOWHERE,
        readable=len(items),
        corrupt=corrupt,
        unpaired=unpaired(items),
        quarantined=list(aside),
        tampered=tampered,
    )
