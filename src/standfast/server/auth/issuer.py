"""The public keys of an OpenID Connect issuer: fetched, checked, kept, and fetched again when they change."""

import asyncio
import http.client
import ipaddress
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from standfast.base.errors import InvalidInput
from standfast.base.log import get_logger
from standfast.base.network import get_url_opener
from standfast.server.auth.credentials import IssuerUnavailable

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public and a private key. With a shared secret, everyone who can check a token could make one."""
MAX_RESPONSE_BYTES = 512 * 1024
FETCH_TIMEOUT = 5.0
REFRESH_SECONDS = 300.0
"""Age at which keys are fetched again, so that those that the issuer has withdrawn stop being accepted."""
MAX_KEY_AGE = 3600.0
"""Age up to which keys are used while the issuer cannot be reached."""
COOLDOWN_SECONDS = 10.0
"""Seconds between two attempts, so that tokens with invented key ids do not become requests to the issuer."""
_MIN_RSA_BITS = 2048
_MAX_KEYS = 100
_log = get_logger(__name__)


class IssuerKeys:
    """The signing keys of one issuer, by their ids. Times are those of ``monotonic``."""

    def __init__(self, issuer: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.issuer = validate_issuer(issuer)
        self.monotonic = monotonic
        self.keys: dict[str | None, PyJWK] = {}
        self.fetched_at: float | None = None
        self.attempted_at: float | None = None
        self.lock = asyncio.Lock()

    async def find(self, key_id: str | None) -> PyJWK | None:
        """Return the key with this id, ``None`` if the issuer has no such key.

        A token without a key id is accepted if the issuer has one key only. Raise :class:`IssuerUnavailable` if
        there are no keys that are young enough.
        """
        if self.is_older_than(REFRESH_SECONDS) or self.pick(key_id) is None:
            async with self.lock:  # those that waited find the keys that the first one fetched
                if self.is_older_than(REFRESH_SECONDS) or self.pick(key_id) is None:
                    await self.refresh()
        if self.is_older_than(MAX_KEY_AGE):
            raise IssuerUnavailable(f"{self.issuer} cannot be asked for its keys")
        return self.pick(key_id)

    def pick(self, key_id: str | None) -> PyJWK | None:
        if key_id is None and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        return self.keys.get(key_id)

    def is_older_than(self, seconds: float) -> bool:
        return self.fetched_at is None or self.monotonic() - self.fetched_at >= seconds

    async def refresh(self) -> None:
        """Fetch the keys, unless that was attempted just now. After a failure the former keys stay."""
        now = self.monotonic()
        if self.attempted_at is not None and now - self.attempted_at < COOLDOWN_SECONDS:
            return
        self.attempted_at = now
        try:
            self.keys = await asyncio.to_thread(self.fetch_keys)
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as problem:
            _log.warning("the keys of %s could not be fetched: %s", self.issuer, problem)
        else:
            self.fetched_at = now

    def fetch_keys(self) -> dict[str | None, PyJWK]:
        document = fetch_json(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != self.issuer:
            raise ValueError(f"its discovery document is that of {document.get('issuer')!r}")
        address = document.get("jwks_uri")
        if not isinstance(address, str) or not is_allowed_address(address):
            raise ValueError(f"its jwks_uri is no https address: {address!r}")
        entries = fetch_json(address).get("keys")
        if not isinstance(entries, list) or len(entries) > _MAX_KEYS:
            raise ValueError("its key set is not a list of keys")
        keys = {entry.get("kid"): key for entry in entries if (key := parse_key(entry)) is not None}
        if not keys:
            raise ValueError("its key set has no key for signatures")
        return keys


def parse_key(entry: Any) -> PyJWK | None:
    """Return a public key for signatures, ``None`` for any other entry of a key set."""
    if not isinstance(entry, Mapping) or entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    if entry.get("use", "sig") != "sig" or not isinstance(entry.get("kid"), str | None) or "d" in entry:
        return None
    try:
        key = PyJWK(dict(entry))
    except (PyJWTError, ValueError, TypeError):
        return None
    weak = getattr(key.key, "key_size", _MIN_RSA_BITS) < _MIN_RSA_BITS and entry["kty"] == "RSA"
    return key if not weak and key.algorithm_name in ALGORITHMS else None


def fetch_json(address: str) -> dict[str, Any]:
    """Fetch a JSON object: no redirects, not too big, and not too slow."""
    deadline = time.monotonic() + FETCH_TIMEOUT
    request = urllib.request.Request(address, headers={"Accept": "application/json"})  # noqa: S310 - checked by callers
    try:
        with get_url_opener().open(request, timeout=FETCH_TIMEOUT) as response:
            parts: list[bytes] = []
            while part := response.read1(65536):
                parts.append(part)
                if sum(map(len, parts)) > MAX_RESPONSE_BYTES:
                    raise ValueError(f"{address} has more than {MAX_RESPONSE_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise ValueError(f"{address} takes more than {FETCH_TIMEOUT} s")
    except urllib.error.HTTPError as refusal:
        refusal.close()
        raise ValueError(f"{address} answers {refusal.code}") from None
    value = msgspec.json.decode(b"".join(parts))
    if not isinstance(value, dict):
        raise ValueError(f"{address} has no JSON object")
    return value


def validate_issuer(issuer: str) -> str:
    if not isinstance(issuer, str) or not is_allowed_address(issuer) or urlsplit(issuer).query:
        raise InvalidInput(f"an issuer is an https:// address (http:// on this machine only), not {issuer!r}")
    return issuer


def is_allowed_address(address: str) -> bool:
    """Return whether an address can be trusted to be the issuer's: by TLS, or because it is this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.username is not None or parts.fragment:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
