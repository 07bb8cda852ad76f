"""Encryption keys, which are derived from the secrets of the user, and the expiry of encrypted items."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Protocol

from standfast.base.errors import InvalidInput, MissingExtra
from standfast.base.item_pairs import group_into_units
from standfast.base.log import get_logger
from standfast.base.validation import is_number
from standfast.history.codec import DecodedRecord

CIPHER_IDS = {"aes-gcm": 1, "chacha20-poly1305": 2}
"""The names of the ciphers, and the numbers that identify them in stored records."""

_log = get_logger(__name__)

MIN_SECRET_LENGTH = 16
KEY_ID_SIZE = 8
NONCE_SIZE = 12
TAG_SIZE = 16
_MAX_CIPHERS = 256


class AeadCipher(Protocol):
    """An AEAD cipher with its key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class DecryptionFailed(ValueError):
    """The authentication tag does not match."""


class EncryptionKey:
    """The keys that are derived from one secret. ``id`` is public and reveals nothing about the secret."""

    def __init__(self, secret: str) -> None:
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise MissingExtra("encrypt", "encrypting a history") from None
        self.root_key = derive_key(secret.encode(), b"root", 32)
        self.id = derive_key(self.root_key, b"key id", KEY_ID_SIZE)
        self.ciphers: dict[tuple[int, bytes], AeadCipher] = {}
        self.mac_keys: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"<EncryptionKey {self.id.hex()}>"

    def get_cipher(self, cipher_id: int, purpose: bytes) -> AeadCipher:
        """Return the cipher for one purpose. No two purposes or ciphers share a key."""
        cipher = self.ciphers.get((cipher_id, purpose))
        if cipher is None:
            if len(self.ciphers) >= _MAX_CIPHERS:
                self.ciphers.clear()
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

            kind = AESGCM if cipher_id == CIPHER_IDS["aes-gcm"] else ChaCha20Poly1305
            cipher = self.ciphers[cipher_id, purpose] = kind(
                derive_key(self.root_key, b"box %d " % cipher_id + purpose, 32)
            )
        return cipher

    def decrypt(self, cipher_id: int, purpose: bytes, *, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """Return the plaintext, or raise :class:`DecryptionFailed` if ``data`` or ``associated_data`` was changed."""
        from cryptography.exceptions import InvalidTag

        try:
            return self.get_cipher(cipher_id, purpose).decrypt(nonce, data, associated_data)
        except (InvalidTag, ValueError):
            raise DecryptionFailed from None

    def compute_mac(self, purpose: bytes, message: bytes) -> bytes:
        secret = self.mac_keys.get(purpose)
        if secret is None:
            secret = self.mac_keys[purpose] = derive_key(self.root_key, b"mac " + purpose, 32)
        return hmac.digest(secret, message, hashlib.sha256)


class Keyring:
    """The keys of a history: the first one encrypts, all of them decrypt.

    With ``allow_short`` a secret that can be guessed is accepted with a warning: histories were encrypted with it.
    """

    def __init__(self, encryption_key: str | Sequence[str], *, allow_short: bool = False) -> None:
        secrets = [encryption_key] if isinstance(encryption_key, str) else encryption_key
        if isinstance(secrets, (bytes, bytearray)) or not isinstance(secrets, Sequence) or not secrets:
            raise InvalidInput("encryption_key must be a string or a non-empty list of strings, newest first")
        for secret in secrets:
            if not isinstance(secret, str):
                raise InvalidInput(f"an encryption key must be a string, not {type(secret).__name__}")
            if len(secret) >= MIN_SECRET_LENGTH:
                continue
            problem = (
                f"an encryption key must have at least {MIN_SECRET_LENGTH} characters, got {len(secret)};"
                " create one with secrets.token_urlsafe(32)"
            )
            if not allow_short or not secret:
                raise InvalidInput(problem)
            _log.warning("%s. This one can be guessed by anyone who can read the store", problem)
        self.secrets = tuple(secrets)
        self.keys = [EncryptionKey(secret) for secret in secrets]
        self.by_id = {key.id: key for key in self.keys}

    @property
    def primary(self) -> EncryptionKey:
        return self.keys[0]

    @property
    def oldest(self) -> EncryptionKey:
        return self.keys[-1]

    def find(self, key_id: bytes) -> EncryptionKey | None:
        return self.by_id.get(key_id)

    def __str__(self) -> str:
        return ", ".join(key.id.hex() for key in self.keys)


def derive_key(secret: bytes, purpose: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    # The salt contains the former name of the product and must never change: with any other salt the same secret
    # gives other keys, and no stored history could be decrypted.
    return HKDF(algorithm=SHA256(), length=length, salt=b"holdfast history 1", info=purpose).derive(secret)


def validate_cipher(name: object) -> int:
    if not isinstance(name, str) or name not in CIPHER_IDS:
        raise InvalidInput(f"unknown cipher {name!r}; expected {' or '.join(CIPHER_IDS)}")
    return CIPHER_IDS[name]


def validate_ttl(ttl: object) -> float | None:
    """Return ``ttl`` if it is a positive number of seconds, or ``None`` for items that never expire."""
    if ttl is None:
        return None
    if not is_number(ttl) or ttl <= 0:
        raise InvalidInput(f"ttl must be a finite number of seconds > 0 or None, got {ttl!r}")
    return float(ttl)


def drop_expired(entries: Sequence[DecodedRecord], *, now: float, ttl: float) -> list[DecodedRecord]:
    """Return the records that are younger than ``ttl`` seconds.

    Items that belong together, such as a call, its output and the reasoning before them, expire together, when the
    youngest of them does.
    """
    expired_before = now - ttl
    current = []
    for unit in group_into_units([entry.item for entry in entries]):
        if any((entries[index].written_at or 0) > expired_before for index in unit):
            current += [entries[index] for index in unit]
    return current
