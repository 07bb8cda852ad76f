"""Who sends a request: the principal that a credential stands for, and its role."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

import msgspec

from standfast.base.errors import StandfastError


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
