"""Bearer tokens of an OpenID Connect issuer, and its public keys: fetched, checked, kept, and fetched again."""

import asyncio
import http.client
import ipaddress
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from standfast.base.errors import InvalidInput, MissingExtra
from standfast.base.ids import validate_name
from standfast.base.log import get_logger
from standfast.base.network import get_url_opener
from standfast.server.auth.principals import (
    IssuerUnavailable,
    Principal,
    Role,
    RoleMissing,
    TokenExpired,
    Unauthenticated,
    get_bearer_token,
    parse_role,
)

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


try:
    import jwt
    from jwt.exceptions import ExpiredSignatureError, PyJWTError
except ImportError as missing:
    raise MissingExtra("server", "OpenID Connect") from missing


class Oidc:
    """Accepts JSON Web Tokens that ``issuer`` has signed for ``audience``.

    The owner is the value of ``owner_claim``. The role is the highest that ``roles`` gives to a value of
    ``role_claim``, which may be a path such as ``realm_access.roles``, and the claim a text or a list of texts;
    without ``roles``, its values are the names of roles. Tokens without such a value have ``default_role``, or are
    refused with :class:`RoleMissing` if that is not set. Clocks may differ by ``leeway`` seconds.

    Keys are those of the issuer's discovery document. A token with an unknown key id makes them be fetched again, at
    most every ten seconds.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        *,
        owner_claim: str = "sub",
        role_claim: str = "roles",
        roles: Mapping[str, Role | str] | None = None,
        default_role: Role | str | None = None,
        leeway: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not audience:
            raise InvalidInput("audience must name this server, as the issuer does in the claim aud of its tokens")
        self.issuer = issuer
        self.audience = audience if isinstance(audience, str) else list(audience)
        self.owner_claim, self.role_claim, self.leeway = owner_claim, role_claim, leeway
        by_name: Mapping[str, Role | str] = {role.name.lower(): role for role in Role}
        self.roles = {value: parse_role(role) for value, role in (by_name if roles is None else roles).items()}
        self.default_role = None if default_role is None else parse_role(default_role)
        self.keys = IssuerKeys(issuer, monotonic=monotonic)

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Return the principal of the token in ``headers``, ``None`` without a token that claims to be of this issuer.

        Raise :class:`TokenExpired`, :class:`Unauthenticated`, or :class:`IssuerUnavailable` if the token cannot be
        checked at the moment.
        """
        token = get_bearer_token(headers)
        if token is None or token.count(".") != 2:
            return None
        try:
            parts = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise Unauthenticated("the token cannot be read") from None
        if parts["payload"].get("iss") != self.issuer:
            return None
        claims = await self.verify(token, parts["header"])
        return Principal(
            subject=f"oidc:{claims['sub']}", role=self.find_role(claims), owner=self.find_owner(claims), method="oidc"
        )

    async def verify(self, token: str, header: Mapping[str, Any]) -> dict[str, Any]:
        """Return the claims of a token that is valid."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        # Before any key is looked up: what is not signed with a private key must not cause a request.
        if algorithm not in ALGORITHMS or "crit" in header or not isinstance(key_id, str | None):
            raise Unauthenticated("the token is not signed in a way that is accepted here")
        key = await self.keys.find(key_id)
        if key is None:
            raise Unauthenticated("the issuer has no key with the id of the token")
        if key.algorithm_name != algorithm:
            raise Unauthenticated("the token is signed in another way than its key is meant for")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self.audience,
                issuer=self.issuer,
                leeway=self.leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except ExpiredSignatureError:
            raise TokenExpired("the token has expired") from None
        except (PyJWTError, ValueError, TypeError, OverflowError) as problem:
            raise Unauthenticated(f"the token is not valid here: {problem}") from None
        check_name("sub", claims.get("sub"))
        return claims

    def find_owner(self, claims: Mapping[str, Any]) -> str:
        """Return the owner that the claims of a token name."""
        if self.owner_claim == "email" and claims.get("email_verified", True) is not True:
            raise Unauthenticated("the issuer has not verified the e-mail address")
        return check_name(self.owner_claim, get_claim(claims, self.owner_claim))

    def find_role(self, claims: Mapping[str, Any]) -> Role:
        """Return the highest role that the claims of a token give."""
        value = get_claim(claims, self.role_claim)
        values = value if isinstance(value, list) else [value]
        found = [self.roles[name] for name in values if isinstance(name, str) and name in self.roles]
        role = max(found, default=self.default_role)
        if role is None:
            raise RoleMissing(f"the claim {self.role_claim} gives no role here")
        return role


def get_claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, or by a path of names with dots. ``None`` if it is not there."""
    if path in claims:  # names such as https://example.com/role contain dots
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def check_name(claim: str, value: object) -> str:
    try:
        return validate_name(f"the claim {claim}", value)
    except InvalidInput as problem:
        raise Unauthenticated(str(problem)) from None
