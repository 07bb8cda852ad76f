"""Bearer tokens of an OpenID Connect issuer."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from standfast.base.errors import InvalidInput, MissingExtra
from standfast.base.ids import validate_name

try:
    import jwt
    from jwt.exceptions import ExpiredSignatureError, PyJWTError
except ImportError as missing:
    raise MissingExtra("server", "OpenID Connect") from missing

from standfast.server.auth.credentials import RoleMissing, TokenExpired, get_bearer_token, parse_role
from standfast.server.auth.issuer import ALGORITHMS, IssuerKeys
from standfast.server.auth.principals import Principal, Role, Unauthenticated


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
