"""The rules of access: the role that an endpoint needs for the data of the principal's owner, and of other owners."""

import msgspec

from standfast.base.errors import StandfastError
from standfast.server.auth.principals import Principal, Role


class Rule(msgspec.Struct, frozen=True):
    """The roles that an endpoint needs: for what belongs to the principal's owner, and for everything else."""

    own: Role
    foreign: Role

    def allows(self, principal: Principal, owner: str | None) -> bool:
        """Return whether the principal may use what belongs to ``owner``; ``None`` stands for no owner."""
        return principal.role >= (self.own if owner == principal.owner else self.foreign)

    def get_owner_filter(self, principal: Principal) -> str | None:
        """Return the only owner whose data a listing may contain, or ``None`` for all owners."""
        return None if principal.role >= self.foreign else principal.owner


READ = Rule(Role.VIEWER, Role.OPERATOR)
READ_RUNS = Rule(Role.VIEWER, Role.APPROVER)
"""To decide about a call, an approver has to see its run."""
WRITE = Rule(Role.USER, Role.OPERATOR)
DECIDE = Rule(Role.APPROVER, Role.APPROVER)
"""A user does not approve the calls of their own runs."""
OPERATE = Rule(Role.OPERATOR, Role.OPERATOR)
MANAGE = Rule(Role.ADMIN, Role.ADMIN)


class Forbidden(StandfastError):
    """The role of the principal does not allow the request. Nothing was changed."""

    code = "forbidden"
