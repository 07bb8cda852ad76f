"""Encryption around a third-party session, which has only the four methods of the protocol."""

import asyncio
import base64
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import msgspec

from standfast.base.errors import Unsupported, WrongKey
from standfast.base.item_pairs import find_unpaired
from standfast.base.items import Item, decode_item, encode_items
from standfast.history.codec import DecodedRecord, UnreadableRecord
from standfast.history.encryption.codec import EncryptingCodec
from standfast.history.encryption.keys import CIPHER_IDS, NONCE_SIZE, TAG_SIZE, DecryptionFailed, drop_expired
from standfast.history.integrity import CorruptItem, IntegrityReport
from standfast.history.session import Session, SessionSettings, validate_limit, with_run_context
from standfast.lifecycle.scope import run_to_end
from standfast.store.records import Head, Row

ENVELOPE_TYPE = "standfast.sealed"
# Before version 0.1.0 was released, the product was called holdfast and wrote the other type; both are read. The type
# is not part of the authenticated data.
_ENVELOPE_TYPES = frozenset([ENVELOPE_TYPE, "holdfast.sealed"])
_NO_LIMIT = 2**31 - 1
_FORMAT_VERSION = 1
_PAYLOAD_HEADER = struct.Struct(f">d{TAG_SIZE}s")  # time of writing, tag of the previous envelope
_CIPHER_NAMES = {number: name for name, number in CIPHER_IDS.items()}
_encoder = msgspec.msgpack.Encoder()


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An encrypted item as it is stored in the underlying session."""

    type: str
    format: int
    cipher: str
    key: str
    stream: str
    """Random, and new after each clearing: numbers start again at 0 then, and older envelopes must not be accepted."""
    number: int
    data: str


class DecryptedEnvelope(msgspec.Struct, frozen=True):
    """An authentic envelope, its position in the underlying session, and its item."""

    position: int
    envelope: Envelope
    item: Item
    written_at: float
    tag: bytes
    previous_tag: bytes


class EnvelopeSession:
    """Stores items in authenticated envelopes in another session.

    Each envelope authenticates the session id, a sequence number and the previous envelope. Envelopes that are out of
    order, replayed, duplicated or altered, and items that are not envelopes, are not shown; :meth:`check` reports them
    and the missing numbers.

    The guarantees are weaker than over a standfast store: truncation at the end is not detected; every call reads the
    whole underlying history; only one object may write at a time, because of two concurrent batches one would not be
    shown; and :class:`WrongKey` is raised only if no item can be decrypted, while a single item that needs another key
    is skipped.
    """

    def __init__(self, underlying: Session, codec: EncryptingCodec) -> None:
        self.underlying = underlying
        self.codec = codec
        self.session_id = underlying.session_id
        self.write_lock = asyncio.Lock()

    @property
    def session_settings(self) -> SessionSettings | None:
        return getattr(self.underlying, "session_settings", None)

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | None) -> None:
        self.underlying.session_settings = settings

    async def get_items(self, limit: int | None = None, *, generation: int | None = None) -> list[Item]:
        if generation is not None:
            raise Unsupported("generation needs a session in a standfast store")
        if validate_limit(limit) is None:
            limit = getattr(self.session_settings, "limit", None)
        items = [entry.item for entry in self.select_visible(self.verify_envelopes(await self.read_raw_items())[0])]
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None) -> None:
        if key is not None or expected is not None:
            raise Unsupported("key and expected need a session in a standfast store")
        data = encode_items(items)
        if not data:
            return
        async with self.write_lock:
            valid, _, _ = self.verify_envelopes(await self.read_raw_items())
            await with_run_context(self.underlying.add_items)(self.wrap_items(data, valid[-1] if valid else None))

    async def pop_item(self) -> Item | None:
        """Remove and return the latest visible item. Raw items after it that are not visible are put back."""
        async with self.write_lock:
            raw = await self.read_raw_items()
            visible = self.select_visible(self.verify_envelopes(raw)[0])
            if not visible:
                return None
            await run_to_end(self.pop_and_restore(raw[visible[-1].row.position + 1 :]), grace=0)
            return visible[-1].item

    async def pop_and_restore(self, later_items: Sequence[Item]) -> None:
        """Pop the item before ``later_items`` and put these back, even if popping fails half-way or is cancelled."""
        popped = 0
        try:
            for _ in range(len(later_items) + 1):
                await with_run_context(self.underlying.pop_item)()
                popped += 1
        finally:
            if removed := later_items[max(len(later_items) - popped, 0) :]:
                await with_run_context(self.underlying.add_items)(list(removed))

    async def clear_session(self) -> None:
        async with self.write_lock:
            await with_run_context(self.underlying.clear_session)()

    async def check(self) -> IntegrityReport:
        """Return the findings. The version in ``head`` is always 0; missing numbers count as tampering."""
        raw = await self.read_raw_items()
        valid, corrupt, gaps = self.verify_envelopes(raw)
        return IntegrityReport(
            session_id=self.session_id,
            head=Head(0, len(raw)),
            readable=len(valid),
            corrupt=corrupt,
            unpaired=find_unpaired([entry.item for entry in valid]),
            quarantined=[],
            tampered=f"missing: {', '.join(gaps)}" if gaps else None,
        )

    # --- shared parts ---------------------------------------------------------------------------

    async def read_raw_items(self) -> list[Item]:
        """Return all items of the underlying session, regardless of the limit in its settings."""
        if getattr(self.session_settings, "limit", None) is None:
            return await with_run_context(self.underlying.get_items)()
        return await with_run_context(self.underlying.get_items)(limit=_NO_LIMIT)

    def wrap_items(self, items: Sequence[bytes], previous: DecryptedEnvelope | None) -> list[Item]:
        """Return envelopes for the items, chained to the ``previous`` envelope."""
        stream = previous.envelope.stream if previous else os.urandom(12).hex()
        number = previous.envelope.number + 1 if previous else 0
        tag = previous.tag if previous else bytes(TAG_SIZE)
        key, cipher_id, now = self.codec.keyring.primary, self.codec.cipher_id, self.codec.clock()
        cipher = key.get_cipher(cipher_id, self.key_purpose)
        envelopes = []
        for data in items:
            nonce = os.urandom(NONCE_SIZE)
            envelope = Envelope(
                type=ENVELOPE_TYPE,
                format=_FORMAT_VERSION,
                cipher=_CIPHER_NAMES[cipher_id],
                key=key.id.hex(),
                stream=stream,
                number=number,
                data="",
            )
            encrypted = cipher.encrypt(
                nonce, _PAYLOAD_HEADER.pack(now, tag) + data, self.build_associated_data(envelope)
            )
            text = base64.b64encode(nonce + encrypted).decode()
            envelopes.append(msgspec.to_builtins(msgspec.structs.replace(envelope, data=text)))
            number, tag = number + 1, encrypted[-TAG_SIZE:]
        return envelopes

    @property
    def key_purpose(self) -> bytes:
        return b"envelopes of " + self.session_id.encode()

    def build_associated_data(self, envelope: Envelope) -> bytes:
        """Return the unencrypted fields of an envelope and the session id, which are authenticated with its data."""
        parts = (envelope.format, self.session_id, envelope.cipher, envelope.key, envelope.stream, envelope.number)
        return _encoder.encode(parts)

    def decrypt_envelope(self, position: int, item: Item) -> DecryptedEnvelope:
        """Return the content of an envelope, or raise :class:`UnreadableRecord`."""
        if not is_envelope(item):
            raise UnreadableRecord("expected an encrypted item, found plaintext")
        try:
            envelope = msgspec.convert(item, Envelope)
            cipher_id, key_id = CIPHER_IDS[envelope.cipher], bytes.fromhex(envelope.key)
            data = base64.b64decode(envelope.data, validate=True)
        except (msgspec.ValidationError, ValueError, KeyError):
            raise UnreadableRecord("the envelope is damaged") from None
        key = self.codec.keyring.find(key_id)
        if key is None:
            raise UnreadableRecord(f"the item needs the encryption key with the id {envelope.key}")
        nonce, encrypted = data[:NONCE_SIZE], data[NONCE_SIZE:]
        try:
            payload = key.decrypt(
                cipher_id,
                self.key_purpose,
                nonce=nonce,
                data=encrypted,
                associated_data=self.build_associated_data(envelope),
            )
            written_at, previous_tag = _PAYLOAD_HEADER.unpack_from(payload)
            decrypted = decode_item(payload[_PAYLOAD_HEADER.size :])
        except DecryptionFailed:
            raise UnreadableRecord(
                "authentication failed: the item was altered or belongs to another session"
            ) from None
        except (ValueError, struct.error) as error:
            raise UnreadableRecord(str(error)) from None
        return DecryptedEnvelope(position, envelope, decrypted, written_at, encrypted[-TAG_SIZE:], previous_tag)

    def verify_envelopes(self, raw: Sequence[Item]) -> tuple[list[DecryptedEnvelope], list[CorruptItem], list[str]]:
        """Return the envelopes in their right order, the findings about all other items, and the missing numbers."""
        authentic: list[DecryptedEnvelope] = []
        corrupt: list[CorruptItem] = []
        for position, item in enumerate(raw):
            try:
                authentic.append(self.decrypt_envelope(position, item))
            except UnreadableRecord as problem:
                corrupt.append(CorruptItem(position, str(problem)))
        if not authentic:
            self.check_keys(raw)
        streams = Counter(entry.envelope.stream for entry in authentic)
        stream = max(streams, key=streams.__getitem__, default=None)
        valid: list[DecryptedEnvelope] = []
        gaps: list[str] = []
        for entry, reason in check_placement(authentic, stream):
            if reason:
                corrupt.append(CorruptItem(entry.position, reason))
                continue
            gaps += format_gap(valid[-1].envelope.number + 1 if valid else 0, entry.envelope.number)
            valid.append(entry)
        return valid, sorted(corrupt, key=lambda finding: finding.position), gaps

    def check_keys(self, raw: Sequence[Item]) -> None:
        """Raise :class:`WrongKey` if an envelope needs a key that is not in the keyring."""
        for item in raw:
            if is_envelope(item):
                key_id = str(item.get("key"))
                if key_id not in {key.id.hex() for key in self.codec.keyring.keys}:
                    raise WrongKey(
                        f"session {self.session_id!r} needs the encryption key with the id {key_id},"
                        f" but got the keys {self.codec.keyring}"
                    )

    def select_visible(self, envelopes: Sequence[DecryptedEnvelope]) -> list[DecodedRecord]:
        entries = [
            DecodedRecord(Row(entry.position, 0, entry.envelope.number, None), entry.item, entry.written_at)
            for entry in envelopes
        ]
        if self.codec.ttl is None:
            return entries
        return drop_expired(entries, now=self.codec.clock(), ttl=self.codec.ttl)


def is_envelope(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") in _ENVELOPE_TYPES


def check_placement(
    entries: Sequence[DecryptedEnvelope], stream: str | None
) -> list[tuple[DecryptedEnvelope, str | None]]:
    """Return each authentic envelope with the reason why its position is wrong, or ``None`` if it is right."""
    current = [entry for entry in entries if entry.envelope.stream == stream]
    # Each envelope names the tag of its predecessor.
    successor_tags: dict[int, set[bytes]] = {}
    for entry in current:
        successor_tags.setdefault(entry.envelope.number - 1, set()).add(entry.previous_tag)
    chained = [entry for entry in current if entry.tag in successor_tags.get(entry.envelope.number, {entry.tag})]
    in_order = {entry.position for entry in find_longest_increasing_subsequence(chained)}
    reasons: dict[int, str] = {
        **{entry.position: "replayed: the item is from before the history was cleared" for entry in entries},
        **{entry.position: "replayed: the next item was written after another one" for entry in current},
        **{entry.position: "out of order or duplicated" for entry in chained},
    }
    return [(entry, None if entry.position in in_order else reasons[entry.position]) for entry in entries]


def find_longest_increasing_subsequence(entries: Sequence[DecryptedEnvelope]) -> list[DecryptedEnvelope]:
    """Return the longest run of envelopes in ascending order, so that a moved envelope hides as few as possible."""
    ends: list[int] = []  # for each length, the index of the smallest number that ends a subsequence of that length
    predecessors: list[int] = []
    for index, entry in enumerate(entries):
        size = bisect_left(ends, entry.envelope.number, key=lambda end: entries[end].envelope.number)
        predecessors.append(ends[size - 1] if size else -1)
        ends[size : size + 1] = [index]
    longest = []
    index = ends[-1] if ends else -1
    while index >= 0:
        longest.append(entries[index])
        index = predecessors[index]
    return longest[::-1]


def format_gap(first: int, end: int) -> list[str]:
    """Return a description of the numbers from ``first`` up to ``end``; empty for an empty range."""
    if first >= end:
        return []
    return [f"item {first}" if first == end - 1 else f"items {first} to {end - 1}"]
