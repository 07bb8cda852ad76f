"""Read, continue and take over histories that ``EncryptedSession`` of openai-agents wrote.

openai-agents stores each item as a Fernet token in an envelope, ``{"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload":
token}``. The key is derived by HKDF-SHA256 from the secret, with the session id as salt. A secret that is 32 bytes in
URL-safe Base64 stands for these bytes.
"""

import base64
import binascii
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, TypedDict

from standfast.base.errors import HistoryMoved, HistoryTampered, WrongKey
from standfast.base.items import Item, decode_item, encode_item
from standfast.history.codec import DecodedRecord, PlainCodec, UnreadableRecord
from standfast.history.encryption.codec import NO_LINK, EncryptingCodec, get_tag, make_tampered_error
from standfast.history.integrity import IntegrityReport
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.store.operations import Op, Splice
from standfast.store.records import HistoryPage, Row, SessionRecord

_KEY_PURPOSE = b"agents.session-store.hkdf.v1"


# Declared by a call because a class cannot have a field that begins with two underscores.
EncryptedEnvelope = TypedDict("EncryptedEnvelope", {"__enc__": Literal[1], "v": int, "kid": str, "payload": str})
"""An encrypted item as openai-agents stores it."""


def is_envelope(item: Any) -> bool:
    """Return whether an item is an envelope of openai-agents."""
    return isinstance(item, dict) and item.get("__enc__") == 1 and isinstance(item.get("payload"), str)


class EnvelopeCipher:
    """Decrypts the envelopes of one session with any of its keys, and encrypts items with the first."""

    def __init__(self, session_id: str, secrets: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, MultiFernet

        keys = [base64.urlsafe_b64encode(_derive_key(secret, session_id)) for secret in secrets]
        self._fernet = MultiFernet([Fernet(key) for key in keys])
        self._session_id = session_id

    def decrypt(self, envelope: Item) -> tuple[Item, float]:
        """Return the item and the time of writing; raise :class:`WrongKey` if no key fits."""
        from cryptography.fernet import InvalidToken

        token = envelope["payload"].encode()
        try:
            data = self._fernet.decrypt(token)
            return decode_item(data), float(self._fernet.extract_timestamp(token))
        except InvalidToken:
            raise WrongKey(
                f"openai-agents encrypted an item of session {self._session_id!r} with another key. Pass the key that"
                " it used; nothing was changed"
            ) from None

    def encrypt(self, item: Item, *, written_at: float | None = None) -> Item:
        """Return the item in an envelope with the time of writing, by default now."""
        at = int(time.time() if written_at is None else written_at)
        token = self._fernet.encrypt_at_time(encode_item(item), at)
        return {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": token.decode()}


def _derive_key(secret: str, session_id: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        decoded = base64.b64decode(secret, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    material = decoded if len(decoded) == 32 else secret.encode()
    return HKDF(algorithm=SHA256(), length=32, salt=session_id.encode(), info=_KEY_PURPOSE).derive(material)


class EnvelopeCodec(PlainCodec):
    """Stores items as openai-agents does, in its tables, as long as these are not adopted."""

    def __init__(self, session_id: str, sealing: EncryptingCodec) -> None:
        self.ttl, self.strict = sealing.ttl, sealing.strict
        self._cipher = EnvelopeCipher(session_id, sealing.keyring.secrets)

    def encode(
        self, items: Sequence[bytes], *, tape: int, seq: int, before: SessionRecord | None = None
    ) -> tuple[bytes, ...]:
        return tuple(encode_item(self._cipher.encrypt(decode_item(item))) for item in items)

    def decode(self, row: Row) -> DecodedRecord:
        envelope = super().decode(row).item
        if not is_envelope(envelope):
            raise UnreadableRecord("the item is not encrypted")
        return DecodedRecord(row, *self._cipher.decrypt(envelope))

    def make_unreadable_error(self, record: SessionRecord, row: Row, reason: str) -> HistoryTampered:
        return make_tampered_error(record, f"the item at position {row.position}: {reason}")


class SealedSession(StoredSession):
    """A stored session whose codec encrypts.

    A history that openai-agents encrypted is encrypted again on first use, in one commit, with its times of writing.
    All its items must be authentic: a history in which others are mixed is treated as tampered with. In tables or keys
    of openai-agents that are not adopted, the items are encrypted as openai-agents does it, without a seal.
    """

    def __init__(self, session_id: str, backend: Backend, *, codec: EncryptingCodec, **options: Any) -> None:
        super().__init__(session_id, backend, codec=codec, **options)
        self._sealing_codec = codec
        self._envelope_codec: EnvelopeCodec | None = None

    @property
    def is_cacheable(self) -> bool:
        return False

    def open_sibling(self, session_id: str) -> "SealedSession":
        return SealedSession(
            session_id,
            self.backend,
            codec=self._sealing_codec,
            settings=self.session_settings,
            owner=self.owner,
            clock=self.clock,
        )

    async def read_page(self, **window: Any) -> HistoryPage | None:
        page = await self.backend.read(self.session_id, **window)
        if self._get_owner_format() is not None:
            if self._envelope_codec is None:
                self._envelope_codec = EnvelopeCodec(self.session_id, self._sealing_codec)
            self.codec = self._envelope_codec
            return page
        self.codec = self._sealing_codec
        if page is not None and page.record.seal is None and page.record.length:
            await self._take_over()
            return await super().read_page(**window)
        if page is not None:
            self.codec.verify_page(page)
        return page

    async def check(self) -> IntegrityReport:
        with suppress(HistoryTampered):  # the report says so
            await self.read_page(start=0, stop=0)
        return await super().check()

    async def require_seal(self, method: str) -> None:
        """Raise :class:`NotAdopted` if the session is in tables of openai-agents, which have no place for a seal."""
        await self.backend.get_session(self.session_id)
        owner_format = self._get_owner_format()
        if owner_format is not None:
            owner_format.refuse(f"{method}()")

    def _get_owner_format(self) -> Any:
        """Return the tables or keys of openai-agents if the session, which was just read, is in them."""
        owner_format = getattr(self.backend, "openai_agents", None)
        return owner_format if owner_format is not None and owner_format.holds(self.session_id) else None

    async def _take_over(self) -> None:
        page = await self.backend.read(self.session_id)
        items = [_decode_plain(row.data) for row in page.rows] if page is not None else []
        if page is None or not items or not all(map(is_envelope, items)):
            return
        reader = EnvelopeCipher(self.session_id, self._sealing_codec.keyring.secrets)
        erased, link, records = self.make_erased_record(page.record), NO_LINK, list[bytes]()
        for seq, envelope in enumerate(items, start=erased.next_seq):
            assert envelope is not None  # noqa: S101 - checked above
            item, written_at = reader.decrypt(envelope)
            data = self._sealing_codec.encrypt_record(
                encode_item(item), tape=erased.tape, seq=seq, written_at=written_at, link=link
            )
            records.append(data)
            link = get_tag(data)
        splice = Splice(session_id=self.session_id, add=tuple(records), tape=erased.tape)
        ops: list[Op] = [self.build_erase_op(page.record), self.complete_splice(erased, splice)]
        try:
            await self.backend.commit(*ops)
        except HistoryMoved:  # another process was faster
            return


def _decode_plain(data: bytes | None) -> Item | None:
    try:
        return decode_item(data or b"")
    except (ValueError, UnreadableRecord):
        return None
