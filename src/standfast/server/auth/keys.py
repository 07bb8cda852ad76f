"""API keys: secrets that stand for an owner and a role, until they expire or are revoked.

A key is written ``sf_ID_SECRET``. The secret has 256 random bits, and the store keeps its SHA-256. A slow password hash
would protect nothing more: it makes guessing words expensive, and 2**256 secrets cannot be guessed at any speed. It
would cost every request the time that it is designed to take.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence

import msgspec

from standfast.base.errors import DocumentMoved, InvalidInput, NotFound, StandfastError
from standfast.base.ids import new_id, validate_name
from standfast.base.log import get_logger
from standfast.base.time import Clock, system_clock
from standfast.history.store import Store
from standfast.server.auth.audit import Audit
from standfast.server.auth.principals import (
    KeyRevoked,
    Principal,
    Role,
    TokenExpired,
    Unauthenticated,
    get_bearer_token,
    parse_role,
)
from standfast.store.operations import PutDocument
from standfast.store.records import DocumentRecord

KIND, USES_KIND = "api-key", "api-key-use"
# The last use is a document of its own, so that writing it never conflicts with a revocation.
USE_INTERVAL = 60.0
"""Seconds between two writes of the time at which a key was last used."""
CACHE_SECONDS = 3.0
"""Seconds for which a process relies on what it has read about a key, and within which a revocation reaches it."""
_MAX_CACHED = 4096
_PAGE_SIZE = 500
_SECRET = re.compile(r"sf_([0-9a-z]{1,32})_([0-9a-z]{52})")
_log = get_logger(__name__)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. Times are seconds since 1970."""

    id: str
    """The public part of the key."""
    name: str
    """What the key is for."""
    role: str
    """The role of its principal."""
    owner: str
    """The owner of the sessions that it may use."""
    created_at: float
    """When it was created."""
    created_by: str
    """The subject that created it."""
    expires_at: float | None = None
    """When it expires; ``None`` is never."""
    revoked_at: float | None = None
    """When it was revoked, if it was."""
    revoked_by: str | None = None
    """The subject that revoked it."""
    last_used_at: float | None = None
    """When it was last used, to the minute."""


class NewApiKey(msgspec.Struct, frozen=True):
    """A key and its secret, which is shown this once."""

    key: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"NewApiKey({self.key!r}, secret=...)"


class StoredKey(msgspec.Struct, frozen=True):
    """What the store keeps of a key."""

    key: ApiKey
    digest: str


class CachedKey(msgspec.Struct, frozen=True):
    """What was found under an id, possibly nothing, and when."""

    stored: StoredKey | None
    at: float


class ApiKeys:
    """The API keys of a store, and the :class:`Authenticator` for ``Authorization: Bearer sf_...``.

    A revocation has effect at once in this process, and within :data:`CACHE_SECONDS` in every other. Each change is in
    the audit log, in the same commit.
    """

    def __init__(self, store: Store, *, clock: Clock = system_clock) -> None:
        self.backend = store.backend
        self.audit = Audit(store, clock=clock)
        self.clock = clock
        self._cache: dict[str, CachedKey] = {}
        self._uses_noted: dict[str, float] = {}

    async def create(
        self, name: str, *, role: Role | str, owner: str, expires: float | None = None, by: str = "program"
    ) -> NewApiKey:
        """Create a key. ``expires`` is a time in seconds since 1970, ``by`` is the subject that requested the key."""
        now = self.clock()
        if expires is not None and not now < expires < float("inf"):
            raise InvalidInput("expires must be a time in the future")
        key = ApiKey(
            id=new_id("key").removeprefix("key_"),
            name=validate_name("name of a key", name),
            role=parse_role(role).name.lower(),
            owner=validate_name("owner", owner),
            created_at=now,
            created_by=validate_name("by", by),
            expires_at=expires,
        )
        secret = f"sf_{key.id}_{make_random_text()}"
        await self.write(StoredKey(key, compute_digest(secret)), expected=0, action="key created", by=by)
        return NewApiKey(key, secret)

    async def list(self) -> Sequence[ApiKey]:
        """List all keys, also those that have expired or were revoked, in the order of their creation."""
        uses = {use.key: use.at for use in await self.read_all(USES_KIND)}
        keys = [decode_key(document).key for document in await self.read_all(KIND)]
        return [msgspec.structs.replace(key, last_used_at=uses.get(key.id)) for key in keys]

    async def read_all(self, kind: str) -> Sequence[DocumentRecord]:
        """Return all documents of a kind."""
        documents = await self.backend.list_documents(kind, limit=_PAGE_SIZE)
        while page := await self.backend.list_documents(
            kind, limit=_PAGE_SIZE, after=documents[-1].key if documents else ""
        ):
            documents += page
        return documents

    async def revoke(self, key_id: str, *, by: str = "program") -> ApiKey:
        """Revoke a key, and return it. A key that was revoked before stays as it is. Raise :class:`NotFound`."""
        validate_name("by", by)
        while True:
            document = await self.backend.get_document(KIND, validate_name("id of a key", key_id))
            if document is None:
                raise NotFound("API key", key_id)
            stored = decode_key(document)
            if stored.key.revoked_at is not None:
                return stored.key
            revoked = msgspec.structs.replace(stored.key, revoked_at=self.clock(), revoked_by=by)
            try:
                await self.write(
                    StoredKey(revoked, stored.digest), expected=document.revision, action="key revoked", by=by
                )
            except DocumentMoved:
                continue
            return revoked

    async def write(self, stored: StoredKey, *, expected: int, action: str, by: str) -> None:
        """Write a key with its entry in the audit log, unless it was changed meanwhile."""
        key = stored.key
        details = {"key_id": key.id, "name": key.name, "role": key.role, "owner": key.owner}
        noted, _ = self.audit.make_operation(action, by, details)
        data = msgspec.json.encode(stored)
        await self.backend.commit(PutDocument(kind=KIND, key=key.id, data=data, expected=expected), noted)
        self._cache.pop(key.id, None)

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Return the principal of the key in ``headers``, ``None`` without one that begins with ``sf_``."""
        secret = get_bearer_token(headers)
        if secret is None or not secret.startswith("sf_"):
            return None
        parsed = _SECRET.fullmatch(secret)
        stored = None if parsed is None else await self.find(parsed[1])
        # Compared in the same way if there is no such key, so that the time of an answer says nothing about ids.
        expected = stored.digest if stored is not None else "0" * 64
        if not hmac.compare_digest(compute_digest(secret), expected) or stored is None:
            raise Unauthenticated("unknown API key")
        key = stored.key
        if key.revoked_at is not None:
            raise KeyRevoked(f"the API key {key.id} was revoked")
        if key.expires_at is not None and key.expires_at <= self.clock():
            raise TokenExpired(f"the API key {key.id} has expired")
        await self.note_use(key.id)
        return Principal(subject=f"key:{key.id}", role=parse_role(key.role), owner=key.owner, method="key")

    async def find(self, key_id: str) -> StoredKey | None:
        """Return what the store has about a key, or had at most :data:`CACHE_SECONDS` ago."""
        now = self.clock()
        cached = self._cache.get(key_id)
        if cached is None or not 0 <= now - cached.at < CACHE_SECONDS:
            document = await self.backend.get_document(KIND, key_id)
            cached = CachedKey(None if document is None else decode_key(document), now)
            if len(self._cache) >= _MAX_CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key_id] = cached
        return cached.stored

    async def note_use(self, key_id: str) -> None:
        """Write the time of this use, unless another was written within the last minute. A failure is only logged."""
        now = self.clock()
        if 0 <= now - self._uses_noted.get(key_id, -USE_INTERVAL) < USE_INTERVAL:
            return
        self._uses_noted[key_id] = now
        try:
            noted = await self.backend.get_document(USES_KIND, key_id)
            if noted is None or not 0 <= now - noted.at < USE_INTERVAL:
                revision = noted.revision if noted is not None else 0
                await self.backend.commit(PutDocument(kind=USES_KIND, key=key_id, data=b"", expected=revision))
        except DocumentMoved:
            pass  # Another process has just written a use.
        except StandfastError as problem:
            _log.warning("the use of the API key %s was not noted: %s", key_id, problem)


def decode_key(document: DocumentRecord) -> StoredKey:
    return msgspec.json.decode(document.data, type=StoredKey)


def compute_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def make_random_text() -> str:
    """Return 256 random bits as 52 letters and digits, which a double click selects as a whole."""
    return base64.b32encode(secrets.token_bytes(32)).decode().rstrip("=").lower()
