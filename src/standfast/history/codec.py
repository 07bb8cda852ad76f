"""Codecs turn items into stored records. The encrypting one is in :mod:`standfast.history.encryption.codec`."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from standfast.base.items import Item, decode_item
from standfast.store.preconditions import make_wrong_key_error
from standfast.store.records import Generation, Row, SessionRecord


class UnreadableRecord(ValueError):
    """A stored record cannot be decoded to an item. The message gives the reason."""


class DecodedRecord(msgspec.Struct, frozen=True):
    """A stored record with its item. ``written_at`` is set only if the codec authenticates it."""

    row: Row
    item: Item
    written_at: float | None = None


class Codec(Protocol):
    """Encodes and decodes the records of one session."""

    position_bound: bool
    """Whether a record depends on its location, so that it can only be encoded for a known version of the session."""

    ttl: float | None
    """Seconds after which an item expires; ``None`` for never."""

    def encode(self, items: Sequence[bytes], *, tape: int, seq: int) -> tuple[bytes, ...]:
        """Return the records of a batch of JSON items that is written to ``tape`` from ``seq`` on."""
        ...

    def decode(self, row: Row) -> DecodedRecord:
        """Return the item of a record, or raise :class:`UnreadableRecord`."""
        ...

    def digest(self, items: Sequence[bytes]) -> str:
        """Return a digest that is equal for equal batches. Without the key it reveals nothing else."""
        ...

    def seal(self, record: SessionRecord, *, replaced: SessionRecord | None = None) -> bytes | None:
        """Return the seal to store with the session: a proof of which items it shows.

        ``record`` is the session after the change, but still with the seal from before it. ``replaced`` is the session
        before the change, if the change makes that an earlier generation.
        """
        ...

    def verify(self, record: SessionRecord) -> None:
        """Raise an error if the session does not match its seal."""
        ...

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        """Raise an error if these are not the earlier generations of ``record``, which must be verified already."""
        ...


class PlainCodec:
    """The codec without encryption: a record is the JSON of its item."""

    position_bound = False
    ttl: float | None = None

    def encode(self, items: Sequence[bytes], *, tape: int, seq: int) -> tuple[bytes, ...]:
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

    def seal(self, record: SessionRecord, *, replaced: SessionRecord | None = None) -> bytes | None:
        return None

    def verify(self, record: SessionRecord) -> None:
        if record.seal is not None:
            raise make_wrong_key_error(record.session_id)

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        pass
