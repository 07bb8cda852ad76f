"""Who sends a request: the principal that a credential stands for, and its role.

All kinds of credentials share the header that carries them, their errors, and the names of roles.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

import msgspec

from standfast.base.errors import InvalidInput, StandfastError

MAX_CREDENTIAL_LENGTH = 16_384


class Role(IntEnum):
    """What a principal may do; each role includes the ones before it.

    A *viewer* reads what belongs to its owner, and a *user* also starts and changes it. An *approver* also reads the
    runs of all owners and decides their approvals. An *operator* may do everything with the data of all owners. An
    *admin* also manages keys and owners, and reads the audit log.
    """

    VIEWER = 1
    USER = 2
    APPROVER = 3
    OPERATOR = 4
    ADMIN = 5


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request. ``subject`` names it in decisions and in the audit log.

    ``owner`` is the owner of the sessions that it creates, and the only one whose data a viewer or a user can see.
    ``method`` says how it was authenticated: ``key``, ``token`` or ``oidc``.
    """

    subject: str
    """Who it is, in decisions and in the audit log."""
    role: Role
    """What it may do."""
    owner: str
    """The owner of the sessions that it creates."""
    method: str
    """How it was authenticated: ``key``, ``token`` or ``oidc``."""


class Unauthenticated(StandfastError):
    """The credential is missing, unknown, revoked or expired."""

    code = "unauthenticated"


class Authenticator(Protocol):
    """Finds the principal of a request."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Return the principal of the credential in ``headers``, whose names are in lower case.

        Return ``None`` if there is no credential of this kind. Raise :class:`Unauthenticated` if there is one that is
        not valid.
        """
        ...


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
