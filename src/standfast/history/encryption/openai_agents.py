"""Take over histories that ``EncryptedSession`` of openai-agents wrote.

openai-agents stores each item as a Fernet token in an envelope, ``{"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload":
token}``. The key is derived by HKDF-SHA256 from the secret, with the session id as salt. A secret that is 32 bytes in
URL-safe Base64 stands for these bytes.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from standfast.base.errors import HistoryMoved, WrongKey
from standfast.base.items import Item, decode_item, encode_item
from standfast.history.codec import UnreadableRecord
from standfast.history.encryption.codec import NO_LINK, EncryptingCodec, get_tag
from standfast.history.stored_session import StoredSession
from standfast.store.operations import Op, Splice
from standfast.store.records import Page

_KEY_PURPOSE = b"agents.session-store.hkdf.v1"


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

    def encrypt(self, item: Item) -> Item:
        """Return the item in an envelope."""
        return {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": self._fernet.encrypt(encode_item(item)).decode()}


def _derive_key(secret: str, session_id: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        decoded = base64.b64decode(secret, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    material = decoded if len(decoded) == 32 else secret.encode()
    return HKDF(algorithm=SHA256(), length=32, salt=session_id.encode(), info=_KEY_PURPOSE).derive(material)


class SealedSession(StoredSession):
    """A stored session whose codec encrypts.

    A history that openai-agents encrypted is encrypted anew on first use, in one commit, with its times of writing.
    All its items must be authentic: a history in which others are mixed is treated as tampered with.
    """

    codec: EncryptingCodec

    async def read_page(self, **window: Any) -> Page | None:
        page = await self.backend.read(self.session_id, **window)
        if page is not None and page.record.seal is None and page.record.length:
            await self._take_over()
            return await super().read_page(**window)
        if page is not None:
            self.codec.verify_page(page)
        return page

    async def _take_over(self) -> None:
        page = await self.backend.read(self.session_id)
        items = [_decode_plain(row.data) for row in page.rows] if page is not None else []
        if page is None or not items or not all(map(is_envelope, items)):
            return
        reader = EnvelopeCipher(self.session_id, self.codec.keyring.secrets)
        erased, link, records = self.make_erased_record(page.record), NO_LINK, list[bytes]()
        for seq, envelope in enumerate(items, start=erased.next_seq):
            assert envelope is not None  # noqa: S101 - checked above
            item, written_at = reader.decrypt(envelope)
            data = self.codec.encrypt_record(
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
