"""What several kinds of credentials need: the header that carries them, their errors, and the names of roles."""

from collections.abc import Mapping

from standfast.base.errors import InvalidInput, StandfastError
from standfast.server.auth.principals import Role, Unauthenticated

MAX_CREDENTIAL_LENGTH = 16_384


class TokenExpired(Unauthenticated):
    """The credential was valid and has expired: get a new one."""

    code = "token-expired"


class KeyRevoked(Unauthenticated):
    """The API key was revoked."""

    code = "key-revoked"


class RoleMissing(Unauthenticated):
    """The token is valid, and none of its claims gives its subject a role here."""

    code = "role-missing"


class IssuerUnavailable(StandfastError):
    """The keys of the issuer of the token cannot be fetched: the token is neither accepted nor refused. Try again."""

    code = "issuer-unavailable"


def get_bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of the header ``Authorization: Bearer TOKEN``, or ``None`` without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    if len(token) > MAX_CREDENTIAL_LENGTH:
        raise Unauthenticated(f"the credential has more than {MAX_CREDENTIAL_LENGTH} characters")
    return token.strip() or None


def parse_role(name: object) -> Role:
    """Return the role of this name, or raise :class:`InvalidInput`."""
    if isinstance(name, Role):
        return name
    found = Role.__members__.get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput(f"unknown role {name!r}; the roles are {', '.join(role.name.lower() for role in Role)}")
    return found
