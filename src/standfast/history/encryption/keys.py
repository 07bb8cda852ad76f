"""Encryption keys: from the secrets that a user keeps to what encrypts records and signs views."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Protocol

from standfast.base.errors import InvalidInput, MissingExtra
from standfast.base.pairing import group_into_units
from standfast.history.codec import DecodedRecord

CIPHER_IDS = {"aes-gcm": 1, "chacha20-poly1305": 2}
"""What a cipher is called, and the number by which stored bytes name it."""

MIN_SECRET_LENGTH = 16
KEY_ID_SIZE = 8
NONCE_SIZE = 12
TAG_SIZE = 16
_MAX_CIPHERS = 256


class AeadCipher(Protocol):
    """An authenticating cipher with its key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class DecryptionFailed(ValueError):
    """The bytes do not authenticate."""


class EncryptionKey:
    """What is derived from one secret. ``id`` is public; it names the key and tells nothing about it."""

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
        return f"<Key {self.id.hex()}>"

    def get_cipher(self, cipher_id: int, purpose: bytes) -> AeadCipher:
        """The cipher for one purpose. No two purposes or ciphers share a key."""
        found = self.ciphers.get((cipher_id, purpose))
        if found is None:
            if len(self.ciphers) >= _MAX_CIPHERS:
                self.ciphers.clear()
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

            kind = AESGCM if cipher_id == CIPHER_IDS["aes-gcm"] else ChaCha20Poly1305
            found = self.ciphers[cipher_id, purpose] = kind(
                derive_key(self.root_key, b"box %d " % cipher_id + purpose, 32)
            )
        return found

    def decrypt(self, cipher_id: int, purpose: bytes, *, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        """The plaintext, or :class:`Damaged` when the bytes or what is known about them were changed."""
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
    """The keys of a history: the first one encrypts, every one of them decrypts."""

    def __init__(self, encryption_key: str | Sequence[str]) -> None:
        secrets = [encryption_key] if isinstance(encryption_key, str) else encryption_key
        if isinstance(secrets, (bytes, bytearray)) or not isinstance(secrets, Sequence) or not secrets:
            raise InvalidInput("encryption_key must be a string or a non-empty list of strings, the newest first")
        for secret in secrets:
            if not isinstance(secret, str):
                raise InvalidInput(f"an encryption key must be a string, not {type(secret).__name__}")
            if len(secret) < MIN_SECRET_LENGTH:
                raise InvalidInput(
                    f"an encryption key needs at least {MIN_SECRET_LENGTH} characters, this one has {len(secret)};"
                    " secrets.token_urlsafe(32) makes a good one"
                )
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

    return HKDF(algorithm=SHA256(), length=length, salt=b"holdfast history 1", info=purpose).derive(secret)


def validate_cipher(name: object) -> int:
    if not isinstance(name, str) or name not in CIPHER_IDS:
        raise InvalidInput(f"cipher must be one of {', '.join(CIPHER_IDS)}, not {name!r}")
    return CIPHER_IDS[name]


def validate_ttl(ttl: object) -> float | None:
    """Seconds above zero, or ``None`` for items that never expire."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl < float("inf"):
        raise InvalidInput(f"ttl must be a number of seconds above 0, or None, not {ttl!r}")
    return float(ttl)


def drop_expired(entries: Sequence[DecodedRecord], *, now: float, ttl: float) -> list[DecodedRecord]:
    """Those that are younger than ``ttl`` seconds.

    What belongs together, such as a call and its output and the reasoning before them, is as old as the youngest
    of it: it is shown whole or not at all.
    """
    oldest = now - ttl
    kept = []
    for unit in group_into_units([entry.item for entry in entries]):
        if any((entries[index].written_at or 0) > oldest for index in unit):
            kept += [entries[index] for index in unit]
    return kept
