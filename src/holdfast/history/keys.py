"""Encryption keys: from the secrets that a user keeps to what encrypts records and signs views."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Protocol

from holdfast.base.errors import InvalidInput, MissingExtra

CIPHERS = {"aes-gcm": 1, "chacha20-poly1305": 2}
"""What a cipher is called, and the number by which stored bytes name it."""

SHORTEST_SECRET = 16
KEY_ID_SIZE = 8
NONCE_SIZE = 12
TAG_SIZE = 16
_MOST_BOXES = 256


class Box(Protocol):
    """An authenticating cipher with its key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class Damaged(ValueError):
    """The bytes do not authenticate."""


class Key:
    """What is derived from one secret. ``id`` is public; it names the key and tells nothing about it."""

    def __init__(self, secret: str) -> None:
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise MissingExtra("encrypt", "encrypting a history") from None
        self.root = derived(secret.encode(), b"root", 32)
        self.id = derived(self.root, b"key id", KEY_ID_SIZE)
        self.boxes: dict[tuple[int, bytes], Box] = {}
        self.mac_secrets: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"<Key {self.id.hex()}>"

    def box(self, cipher: int, purpose: bytes) -> Box:
        """The cipher for one purpose. No two purposes or ciphers share a key."""
        found = self.boxes.get((cipher, purpose))
        if found is None:
            if len(self.boxes) >= _MOST_BOXES:
                self.boxes.clear()
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

            kind = AESGCM if cipher == CIPHERS["aes-gcm"] else ChaCha20Poly1305
            found = self.boxes[cipher, purpose] = kind(derived(self.root, b"box %d " % cipher + purpose, 32))
        return found

    def opened(self, cipher: int, purpose: bytes, *, nonce: bytes, data: bytes, known: bytes) -> bytes:
        """The plaintext, or :class:`Damaged` when the bytes or what is known about them were changed."""
        from cryptography.exceptions import InvalidTag

        try:
            return self.box(cipher, purpose).decrypt(nonce, data, known)
        except (InvalidTag, ValueError):
            raise Damaged from None

    def mac(self, purpose: bytes, message: bytes) -> bytes:
        secret = self.mac_secrets.get(purpose)
        if secret is None:
            secret = self.mac_secrets[purpose] = derived(self.root, b"mac " + purpose, 32)
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
            if len(secret) < SHORTEST_SECRET:
                raise InvalidInput(
                    f"an encryption key needs at least {SHORTEST_SECRET} characters, this one has {len(secret)};"
                    " secrets.token_urlsafe(32) makes a good one"
                )
        self.keys = [Key(secret) for secret in secrets]
        self.by_id = {key.id: key for key in self.keys}

    @property
    def first(self) -> Key:
        return self.keys[0]

    @property
    def oldest(self) -> Key:
        return self.keys[-1]

    def find(self, key_id: bytes) -> Key | None:
        return self.by_id.get(key_id)

    def __str__(self) -> str:
        return ", ".join(key.id.hex() for key in self.keys)


def derived(secret: bytes, purpose: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=length, salt=b"holdfast history 1", info=purpose).derive(secret)


def checked_cipher(name: object) -> int:
    if not isinstance(name, str) or name not in CIPHERS:
        raise InvalidInput(f"cipher must be one of {', '.join(CIPHERS)}, not {name!r}")
    return CIPHERS[name]


def checked_ttl(ttl: object) -> float | None:
    """Seconds above zero, or ``None`` for items that never expire."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl < float("inf"):
        raise InvalidInput(f"ttl must be a number of seconds above 0, or None, not {ttl!r}")
    return float(ttl)
