"""Encryption around a session that only has the four methods."""

import asyncio
import base64
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import msgspec

from standfast.base.errors import Unsupported, WrongKey
from standfast.base.items import Item, decode_item, encode_items
from standfast.base.pairing import find_unpaired
from standfast.history.codec import DecodedRecord, UnreadableRecord
from standfast.history.encryption.codec import FORMAT_VERSION, EncryptingCodec
from standfast.history.encryption.keys import CIPHER_IDS, NONCE_SIZE, TAG_SIZE, DecryptionFailed, drop_expired
from standfast.history.integrity import CorruptItem, IntegrityReport
from standfast.history.session import Session, SessionSettings, validate_limit
from standfast.lifecycle.cancellation import run_to_end
from standfast.store.contract import Head, Row

ENVELOPE_TYPE = "holdfast.sealed"
_NO_LIMIT = 2**31 - 1
_PAYLOAD_HEADER = struct.Struct(f">d{TAG_SIZE}s")  # written at, tag of the envelope before
_CIPHER_NAMES = {number: name for name, number in CIPHER_IDS.items()}
_encoder = msgspec.msgpack.Encoder()


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An item as the underlying session sees it."""

    type: str
    format: int
    cipher: str
    key: str
    stream: str
    """Random, new after each clearing: numbers start again, old envelopes must not fit."""
    number: int
    data: str


class DecryptedEnvelope(msgspec.Struct, frozen=True):
    """An authentic envelope, where it was found, and its item."""

    position: int
    envelope: Envelope
    item: Item
    written_at: float
    tag: bytes
    previous_tag: bytes


class EnvelopeSession:
    """Keeps items in authenticated envelopes: the session id, a running number and the envelope before are in them.

    Envelopes out of order, replayed, duplicated or altered, and anything that is not an envelope, are not shown;
    :meth:`check` names them and the numbers that are missing. Compared with a standfast store: nobody can tell that
    the newest items were cut off; every call reads the whole underlying history; there may be one writer at a time
    only, since of two that write at once one is not shown; and :class:`WrongKey` comes only when no item opens,
    while a single one that needs another key is left out.
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
            raise Unsupported("earlier generations need a history in a standfast store")
        if validate_limit(limit) is None:
            limit = getattr(self.session_settings, "limit", None)
        shown = [entry.item for entry in self.select_visible(self.verify_envelopes(await self.read_raw_items())[0])]
        return shown if limit is None else shown[max(len(shown) - limit, 0) :]

    async def add_items(self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None) -> None:
        if key is not None or expected is not None:
            raise Unsupported("key and expected need a history in a standfast store")
        data = encode_items(items)
        if not data:
            return
        async with self.write_lock:
            opened, _, _ = self.verify_envelopes(await self.read_raw_items())
            await self.underlying.add_items(self.wrap_items(data, opened[-1] if opened else None))

    async def pop_item(self) -> Item | None:
        """The latest item that is shown. What stands behind it and is not shown is put back."""
        async with self.write_lock:
            raw = await self.read_raw_items()
            shown = self.select_visible(self.verify_envelopes(raw)[0])
            if not shown:
                return None
            await run_to_end(self.pop_and_restore(raw[shown[-1].row.position + 1 :]), grace=0)
            return shown[-1].item

    async def pop_and_restore(self, later_items: Sequence[Item]) -> None:
        """Pop the item before those; they are put back, also when popping fails half-way or is cancelled."""
        popped = 0
        try:
            for _ in range(len(later_items) + 1):
                await self.underlying.pop_item()
                popped += 1
        finally:
            if passed := later_items[max(len(later_items) - popped, 0) :]:
                await self.underlying.add_items(list(passed))

    async def clear_session(self) -> None:
        async with self.write_lock:
            await self.underlying.clear_session()

    async def check(self) -> IntegrityReport:
        """``head`` knows no version here. Missing numbers count as tampering."""
        raw = await self.read_raw_items()
        opened, corrupt, gaps = self.verify_envelopes(raw)
        return IntegrityReport(
            session_id=self.session_id,
            head=Head(0, len(raw)),
            readable=len(opened),
            corrupt=corrupt,
            unpaired=find_unpaired([entry.item for entry in opened]),
            quarantined=[],
            tampered=f"missing: {', '.join(gaps)}" if gaps else None,
        )

    # --- shared parts ---------------------------------------------------------------------------

    async def read_raw_items(self) -> list[Item]:
        """Everything the underlying session has, whatever limit it was given."""
        if getattr(self.session_settings, "limit", None) is None:
            return await self.underlying.get_items()
        return await self.underlying.get_items(limit=_NO_LIMIT)

    def wrap_items(self, items: Sequence[bytes], previous: DecryptedEnvelope | None) -> list[Item]:
        """Envelopes that follow on the last one."""
        stream = previous.envelope.stream if previous else os.urandom(12).hex()
        number = previous.envelope.number + 1 if previous else 0
        tag = previous.tag if previous else bytes(TAG_SIZE)
        key, cipher, now = self.codec.keyring.primary, self.codec.cipher_id, self.codec.clock()
        box = key.get_cipher(cipher, self.key_purpose)
        made = []
        for data in items:
            nonce = os.urandom(NONCE_SIZE)
            envelope = Envelope(
                type=ENVELOPE_TYPE,
                format=FORMAT_VERSION,
                cipher=_CIPHER_NAMES[cipher],
                key=key.id.hex(),
                stream=stream,
                number=number,
                data="",
            )
            sealed = box.encrypt(nonce, _PAYLOAD_HEADER.pack(now, tag) + data, self.build_associated_data(envelope))
            text = base64.b64encode(nonce + sealed).decode()
            made.append(msgspec.to_builtins(msgspec.structs.replace(envelope, data=text)))
            number, tag = number + 1, sealed[-TAG_SIZE:]
        return made

    @property
    def key_purpose(self) -> bytes:
        return b"envelopes of " + self.session_id.encode()

    def build_associated_data(self, envelope: Envelope) -> bytes:
        """What an envelope says in the open, to be authenticated with it."""
        parts = (envelope.format, self.session_id, envelope.cipher, envelope.key, envelope.stream, envelope.number)
        return _encoder.encode(parts)

    def decrypt_envelope(self, position: int, item: Item) -> DecryptedEnvelope:
        if not isinstance(item, dict) or item.get("type") != ENVELOPE_TYPE:
            raise UnreadableRecord("plaintext stands where a sealed item should be")
        try:
            envelope = msgspec.convert(item, Envelope)
            cipher, key_id = CIPHER_IDS[envelope.cipher], bytes.fromhex(envelope.key)
            data = base64.b64decode(envelope.data, validate=True)
        except (msgspec.ValidationError, ValueError, KeyError):
            raise UnreadableRecord("the envelope is damaged") from None
        key = self.codec.keyring.find(key_id)
        if key is None:
            raise UnreadableRecord(f"the item is sealed with the key {envelope.key}, which was not given")
        nonce, sealed = data[:NONCE_SIZE], data[NONCE_SIZE:]
        try:
            inside = key.decrypt(
                cipher, self.key_purpose, nonce=nonce, data=sealed, associated_data=self.build_associated_data(envelope)
            )
            written_at, tag_before = _PAYLOAD_HEADER.unpack_from(inside)
            plain = decode_item(inside[_PAYLOAD_HEADER.size :])
        except DecryptionFailed:
            raise UnreadableRecord(
                "authentication failed: the item was altered or belongs to another session"
            ) from None
        except (ValueError, struct.error) as error:
            raise UnreadableRecord(str(error)) from None
        return DecryptedEnvelope(position, envelope, plain, written_at, sealed[-TAG_SIZE:], tag_before)

    def verify_envelopes(self, raw: Sequence[Item]) -> tuple[list[DecryptedEnvelope], list[CorruptItem], list[str]]:
        """The envelopes that stand where they belong, what is wrong with the others, and which numbers are missing."""
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
        kept: list[DecryptedEnvelope] = []
        gaps: list[str] = []
        for entry, reason in check_placement(authentic, stream):
            if reason:
                corrupt.append(CorruptItem(entry.position, reason))
                continue
            gaps += format_gap(kept[-1].envelope.number + 1 if kept else 0, entry.envelope.number)
            kept.append(entry)
        return kept, sorted(corrupt, key=lambda found: found.position), gaps

    def check_keys(self, raw: Sequence[Item]) -> None:
        """Raise :class:`WrongKey` when an envelope names a key that was not given."""
        for item in raw:
            if isinstance(item, dict) and item.get("type") == ENVELOPE_TYPE:
                named = str(item.get("key"))
                if named not in {key.id.hex() for key in self.codec.keyring.keys}:
                    raise WrongKey(
                        f"session {self.session_id!r} needs the encryption key with the id {named};"
                        f" given: {self.codec.keyring}"
                    )

    def select_visible(self, envelopes: Sequence[DecryptedEnvelope]) -> list[DecodedRecord]:
        entries = [
            DecodedRecord(Row(entry.position, 0, entry.envelope.number, None), entry.item, entry.written_at)
            for entry in envelopes
        ]
        if self.codec.ttl is None:
            return entries
        return drop_expired(entries, now=self.codec.clock(), ttl=self.codec.ttl)


def check_placement(
    entries: Sequence[DecryptedEnvelope], stream: str | None
) -> list[tuple[DecryptedEnvelope, str | None]]:
    """Each authentic envelope, and why it does not belong where it stands, if so."""
    ours = [entry for entry in entries if entry.envelope.stream == stream]
    # An envelope vouches for the one before it.
    vouched: dict[int, set[bytes]] = {}
    for entry in ours:
        vouched.setdefault(entry.envelope.number - 1, set()).add(entry.previous_tag)
    genuine = [entry for entry in ours if entry.tag in vouched.get(entry.envelope.number, {entry.tag})]
    in_order = {entry.position for entry in find_longest_increasing_subsequence(genuine)}
    reasons: dict[int, str] = {
        **{entry.position: "replayed: the item is from before the history was cleared" for entry in entries},
        **{entry.position: "replayed: another item stood here" for entry in ours},
        **{entry.position: "out of order or duplicated" for entry in genuine},
    }
    return [(entry, None if entry.position in in_order else reasons[entry.position]) for entry in entries]


def find_longest_increasing_subsequence(entries: Sequence[DecryptedEnvelope]) -> list[DecryptedEnvelope]:
    """As many of them as stand in the order of their numbers: one that was moved does not hide the others."""
    ends: list[int] = []  # for each length the index of the smallest number that a rise of it ends with
    before: list[int] = []
    for index, entry in enumerate(entries):
        size = bisect_left(ends, entry.envelope.number, key=lambda end: entries[end].envelope.number)
        before.append(ends[size - 1] if size else -1)
        ends[size : size + 1] = [index]
    found = []
    index = ends[-1] if ends else -1
    while index >= 0:
        found.append(entries[index])
        index = before[index]
    return found[::-1]


def format_gap(first: int, end: int) -> list[str]:
    """The numbers from ``first`` up to ``end``, for people."""
    if first >= end:
        return []
    return [f"item {first}" if first == end - 1 else f"items {first} to {end - 1}"]
