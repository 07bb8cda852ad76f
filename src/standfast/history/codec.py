"""Codecs, which turn items into stored records.

The encrypting codec is in :mod:`standfast.history.encryption.codec`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from standfast.base.errors import SessionDamaged, StandfastError
from standfast.base.items import Item, decode_item
from standfast.store.operations import make_wrong_key_error
from standfast.store.records import Generation, HistoryPage, Row, SessionRecord


class UnreadableRecord(ValueError):
    """A stored record cannot be decoded to an item. The message gives the reason."""


class DecodedRecord(msgspec.Struct, frozen=True):
    """A stored record with its item. ``written_at`` is set only if the codec authenticates it."""

    row: Row
    item: Item
    written_at: float | None = None


class Codec(Protocol):
    """Encodes and decodes the records of one session."""

    location_bound: bool
    """Whether a record depends on its location, so that it can only be encoded for a known version of the session."""

    ttl: float | None
    """Seconds after which an item expires; ``None`` for never."""

    strict: bool
    """Whether a record that cannot be read makes reading fail, instead of being skipped."""

    def encode(
        self, items: Sequence[bytes], *, tape: int, seq: int, before: SessionRecord | None = None
    ) -> tuple[bytes, ...]:
        """Return the records of a batch of JSON items that is written to ``tape`` from ``seq`` on.

        ``before`` is the session before the write.
        """
        ...

    def decode(self, row: Row) -> DecodedRecord:
        """Return the item of a record, or raise :class:`UnreadableRecord`."""
        ...

    def digest(self, items: Sequence[bytes]) -> str:
        """Return a digest that is equal for equal batches. Without the key it reveals nothing else."""
        ...

    def find_replaced(self, record: SessionRecord, entries: Sequence[DecodedRecord]) -> dict[int, str]:
        """Return the positions of readable records that are not the ones that were sealed, with the reason."""
        ...

    def seal(
        self,
        record: SessionRecord,
        *,
        replaced: SessionRecord | None = None,
        added: Sequence[bytes] = (),
        tags: Mapping[tuple[int, int], bytes] | None = None,
    ) -> bytes | None:
        """Return the seal to store with the session: a proof of which items it shows.

        ``record`` is the session after the change, but still with the seal from before it. ``replaced`` is the session
        before the change, if the change makes that an earlier generation. ``added`` are the records that the change
        adds, and ``tags`` those of stored records, by tape and place, that the seal from before does not contain.
        """
        ...

    def verify(self, record: SessionRecord) -> None:
        """Raise an error if the session does not match its seal."""
        ...

    def verify_page(self, page: HistoryPage) -> None:
        """Raise an error if the session does not match its seal or its tape."""
        ...

    def make_unreadable_error(self, record: SessionRecord, row: Row, reason: str) -> StandfastError:
        """Return the error about a record that cannot be read, for a strict codec."""
        ...

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        """Raise an error if these are not the earlier generations of ``record``, which must be verified already."""
        ...


class PlainCodec:
    """The codec without encryption: a record is the JSON of its item."""

    location_bound = False
    ttl: float | None = None
    strict = False

    def encode(
        self, items: Sequence[bytes], *, tape: int, seq: int, before: SessionRecord | None = None
    ) -> tuple[bytes, ...]:
        return tuple(items)

    def decode(self, row: Row) -> DecodedRecord:
        if row.data is None:
            raise UnreadableRecord("the record is missing")
        try:
            return DecodedRecord(row, decode_item(row.data))
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None

    def digest(self, items: Sequence[bytes]) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for item in items:
            digest.update(len(item).to_bytes(8, "big"))
            digest.update(item)
        return digest.hexdigest()

    def find_replaced(self, record: SessionRecord, entries: Sequence[DecodedRecord]) -> dict[int, str]:
        return {}

    def seal(
        self,
        record: SessionRecord,
        *,
        replaced: SessionRecord | None = None,
        added: Sequence[bytes] = (),
        tags: Mapping[tuple[int, int], bytes] | None = None,
    ) -> bytes | None:
        return None

    def verify(self, record: SessionRecord) -> None:
        if record.seal is not None:
            raise make_wrong_key_error(record.session_id)

    def verify_page(self, page: HistoryPage) -> None:
        self.verify(page.record)

    def make_unreadable_error(self, record: SessionRecord, row: Row, reason: str) -> StandfastError:
        return SessionDamaged(record.session_id, f"the item at position {row.position}: {reason}")

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        pass


def decode_page(codec: Codec, page: HistoryPage | None) -> tuple[list[DecodedRecord], list[tuple[Row, str]]]:
    """Return the decoded records of a page, and the rows that cannot be decoded with the reason, both in order."""
    decoded: list[DecodedRecord] = []
    unreadable: list[tuple[Row, str]] = []
    for row in page.rows if page else []:
        try:
            decoded.append(codec.decode(row))
        except UnreadableRecord as problem:
            unreadable.append((row, str(problem)))
    replaced = codec.find_replaced(page.record, decoded) if page else {}
    if not replaced:
        return decoded, unreadable
    unreadable += [(entry.row, replaced[entry.row.position]) for entry in decoded if entry.row.position in replaced]
    unreadable.sort(key=lambda entry: entry[0].position)
    return [entry for entry in decoded if entry.row.position not in replaced], unreadable
