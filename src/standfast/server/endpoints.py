"""Endpoints as data. Routes, the OpenAPI document and the tests of access are made from the same table.

The rule of an endpoint says which role it needs for the data of the principal's owner, and for that of other owners.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from standfast.base.errors import StandfastError
from standfast.server.auth.principals import Principal, Role

WEBSOCKET = "WEBSOCKET"
"""The method of endpoints that are WebSockets."""
Handler: TypeAlias = Callable[[Any], Awaitable[Any]]


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


@dataclass(frozen=True)
class Endpoint:
    """One operation of the API.

    ``rule`` is ``None`` for the few endpoints that need no credential. Paths with ``{session_id}``, ``{run_id}``,
    ``{approval_id}`` or ``{workspace}`` are loaded and checked against the rule before ``handle`` is called. ``body``
    is the type of the request's JSON, or :class:`bytes` for anything else, ``query`` that of its parameters,
    ``result`` that of the answer.
    """

    method: str
    path: str
    handle: Handler
    rule: Rule | None
    body: Any = None
    query: Any = None
    result: Any = None
    status: int = 200
    media_type: str = "application/json"
    is_conditional: bool = False
    """Whether ``If-Match`` is understood."""
    creates_session: bool = False
    """Whether the session of the path may be missing: it is created, for the owner of the principal."""
    has_key: bool = False
    """Whether ``Idempotency-Key`` is understood."""
    can_stream: bool = False
    """Whether ``Accept: text/event-stream`` gets the events of what was made instead of the answer."""

    @property
    def name(self) -> str:
        return self.handle.__name__

    @property
    def summary(self) -> str:
        return inspect.cleandoc(self.handle.__doc__ or "").partition("\n")[0]

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.handle.__doc__ or "").partition("\n")[2].strip()


class EndpointTable(list[Endpoint]):
    """The endpoints of one resource, in the order of their declarations."""

    def add(self, method: str, path: str, rule: Rule | None, **options: Any) -> Callable[[Handler], Handler]:
        """Return a decorator that adds the function as the handler of an endpoint."""

        def register(handle: Handler) -> Handler:
            self.append(Endpoint(method, path, handle, rule, **options))
            return handle

        return register
