"""How items become stored bytes. The plain codec is JSON; :mod:`standfast.history.encryption.codec` is the other one."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from standfast.base.items import Item, decode_item
from standfast.store.contract import Generation, Row, SessionRecord, make_wrong_key_error


class UnreadableRecord(ValueError):
    """A stored record holds no item; the message says why."""


class DecodedRecord(msgspec.Struct, frozen=True):
    """A stored item that could be read. ``written_at`` is known only where the codec vouches for it."""

    row: Row
    item: Item
    written_at: float | None = None


class Codec(Protocol):
    """Turns JSON into records and back, for one session."""

    position_bound: bool
    """Whether a record depends on its place, so that it can only be made for a known version of the session."""

    ttl: float | None
    """Seconds after which an item is no longer shown."""

    def encode(self, items: Sequence[bytes], *, tape: int, seq: int) -> tuple[bytes, ...]: ...

    def decode(self, row: Row) -> DecodedRecord:
        """The item of a record, or :class:`Unreadable`."""
        ...

    def digest(self, items: Sequence[bytes]) -> str:
        """The same for the same batch, and telling nothing about it to those who may not read it."""
        ...

    def seal(self, record: SessionRecord, *, replaced: SessionRecord | None = None) -> bytes | None:
        """A proof that the session shows what it shows, to be stored with it.

        ``record`` is the session as it is about to be, still with the seal it had before; ``replaced`` is the
        session as it was, when that becomes an earlier generation.
        """
        ...

    def verify(self, record: SessionRecord) -> None:
        """Raise when the session does not show what it showed when it was sealed."""
        ...

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        """Raise when these are not the earlier generations of a record that was verified."""
        ...


class PlainCodec:
    """Records are the JSON of their items."""

    position_bound = False
    ttl: float | None = None

    def encode(self, items: Sequence[bytes], *, tape: int, seq: int) -> tuple[bytes, ...]:
        return tuple(items)

    def decode(self, row: Row) -> DecodedRecord:
        if row.data is None:
            raise UnreadableRecord("the record is gone")
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
