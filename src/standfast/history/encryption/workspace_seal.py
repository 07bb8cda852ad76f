"""Authenticated encryption of the workspace that a saved run carries, with the keys of encrypted sessions."""

import os

from standfast.base.errors import WrongKey
from standfast.history.encryption.keys import CIPHER_IDS, KEY_ID_SIZE, NONCE_SIZE, DecryptionFailed, Keyring

_CIPHER_ID = CIPHER_IDS["aes-gcm"]
_PURPOSE = b"workspace"
_DATA_START = KEY_ID_SIZE + NONCE_SIZE


def find_seal(session: object) -> "WorkspaceSeal | None":
    """Return a seal with the keys of an encrypted session, or of the encrypted session that ``session`` wraps."""
    while session is not None:
        keyring = getattr(getattr(session, "codec", None), "keyring", None)
        if isinstance(keyring, Keyring):
            return WorkspaceSeal(keyring)
        session = getattr(session, "inner", None)
    return None


class WorkspaceSeal:
    """Encrypts with the first key and decrypts with all of them."""

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring

    def encrypt(self, data: bytes, place: bytes) -> bytes:
        key, nonce = self.keyring.primary, os.urandom(NONCE_SIZE)
        return key.id + nonce + key.get_cipher(_CIPHER_ID, _PURPOSE).encrypt(nonce, data, key.id + place)

    def decrypt(self, data: bytes, place: bytes) -> bytes:
        """Return the plaintext; raise :class:`WrongKey`, or ValueError if it was cut, altered or moved."""
        key_id, nonce = data[:KEY_ID_SIZE], data[KEY_ID_SIZE:_DATA_START]
        key = self.keyring.find(key_id)
        if key is None:
            raise WrongKey(f"the workspace was encrypted with the key {key_id.hex()}, not with one of {self.keyring}")
        try:
            return key.decrypt(
                _CIPHER_ID, _PURPOSE, nonce=nonce, data=data[_DATA_START:], associated_data=key_id + place
            )
        except DecryptionFailed:
            raise ValueError("was cut, altered, or belongs to another run") from None
