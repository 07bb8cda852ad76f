"""One request: its principal, its decoded parameters, the checked objects that its path names, pages of a listing."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.websockets import WebSocket

from standfast.base.errors import InvalidInput, NotFound, OutsideScope, StandfastError
from standfast.history.stored_session import StoredSession
from standfast.runtime.handle import RunHandle
from standfast.runtime.queries import RunQueries
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import Approval, RunInfo
from standfast.server.auth.principals import IssuerUnavailable, Principal, Unauthenticated
from standfast.server.endpoints import Endpoint, Forbidden, Rule
from standfast.server.problems import BodyTooLarge, BodyTooSlow, RequestError, UnknownMediaType
from standfast.server.service import Service
from standfast.server.types import Page, Upload
from standfast.store.records import Head

MIN_BODY_RATE = 1000.0
"""Bytes per second that a body must have on average, so that a client cannot hold a connection by single bytes."""
_ETAG = re.compile(r'"([0-9]{1,18})-([0-9]{1,18})"')
T = TypeVar("T")


class Hidden(NotFound):
    """The principal may not see the object. The response is the same as for an object that does not exist."""


class Exchange:
    """A request, its principal and what its path names. Handlers get it and return the result."""

    run: RunHandle
    run_info: RunInfo
    session_id: str
    approval: Approval
    owner: str | None = None
    """The owner of the session that the path names, or of the session of the run or approval that it names."""
    tape: int | None = None
    """The tape of that session, which a later session with its id does not have."""

    def __init__(self, service: Service, endpoint: Endpoint, request: Request | WebSocket) -> None:
        self.service, self.endpoint, self.request = service, endpoint, request
        self.runtime: Runtime = service.runtime
        self.reads: RunQueries = service.runtime
        """The runs that the principal may see; a database that separates owners returns no others."""
        self.path = {name: unquote(value) for name, value in request.path_params.items()}
        self._principal: Principal | None = None
        self.body: Any = None
        self.query: Any = None
        self.headers: dict[str, str] = {}
        """Headers of the response."""

    @property
    def principal(self) -> Principal:
        if self._principal is None:
            raise Unauthenticated("send an API key or token: Authorization: Bearer ...")
        return self._principal

    @property
    def rule(self) -> Rule:
        assert self.endpoint.rule is not None  # noqa: S101 - endpoints without a rule load nothing
        return self.endpoint.rule

    @property
    def owner_filter(self) -> str | None:
        """The only owner whose data a listing may contain, or ``None`` for all owners."""
        return self.rule.get_owner_filter(self.principal)

    @property
    def expected_head(self) -> Head | None:
        """The head in ``If-Match``."""
        value = self.request.headers.get("if-match")
        if value is None or not self.endpoint.is_conditional:
            return None
        match = _ETAG.fullmatch(value.strip())
        if match is None:
            raise InvalidInput(f'If-Match must be the ETag of the session, for example "7-12", not {value!r}')
        return Head(int(match[1]), int(match[2]))

    @property
    def wants_events(self) -> bool:
        """Whether the client accepts events only."""
        accepted = self.request.headers.get("accept", "").partition(";")[0].strip().lower()
        return self.endpoint.can_stream and accepted == "text/event-stream"

    def set_etag(self, head: Head) -> None:
        """Send the head as the ETag of the response."""
        self.headers["etag"] = f'"{head.version}-{head.length}"'

    @property
    def idempotency_key(self) -> str | None:
        """The ``Idempotency-Key``, in the name space of the principal's owner: another owner's key is another key."""
        key = self.request.headers.get("idempotency-key")
        return None if key is None else f"{quote(self.principal.owner, safe='')}/{key}"

    # --- access -------------------------------------------------------------------------------------

    async def authenticate(self) -> None:
        headers = {name.lower(): value for name, value in self.request.headers.items()}
        if isinstance(self.request, WebSocket):
            add_offered_token(headers)
        problem: StandfastError | None = None
        for authenticator in self.service.authenticators:
            try:
                self._principal = await authenticator.authenticate(headers)
            except (Unauthenticated, IssuerUnavailable) as error:
                problem = problem or error  # it may be a credential of another kind
            if self._principal is not None:
                return
        if problem is not None:
            raise problem

    @property
    def access_interval(self) -> float:
        """Seconds until a stream looks again whether its client has access; not all at once if many were opened so."""
        return self.service.limits.heartbeat * random.uniform(0.5, 1.0)

    async def keeps_access(self) -> bool:
        """Authenticate and authorise once more; return False if the credential or the access has ended."""
        former, self._principal = self._principal, None
        try:
            await self.authenticate()
            await self.authorize()
        except (Unauthenticated, Forbidden, NotFound, OutsideScope):
            return False
        except StandfastError:  # neither is known at the moment
            self._principal = former
        return True

    async def authorize(self) -> None:
        """Load what the path names. What the principal may not see does not exist for it."""
        rule = self.endpoint.rule
        if rule is None:
            return
        if self.principal.role < min(rule.own, rule.foreign):
            raise Forbidden(f"{self.endpoint.name} needs the role {rule.own.name.lower()}")
        self.reads = await self.service.scope_to(self.owner_filter)
        if "run_id" in self.path:
            await self._load_run(self.path["run_id"])
        if "approval_id" in self.path:
            await self._load_approval(self.path["approval_id"])
        if "session_id" in self.path:
            self.session_id = self.path["session_id"]
            if self.endpoint.creates_session:
                await self.require_access_or_absence(self.session_id)
            else:
                await self._require_access("session", self.session_id, self.session_id)
                if self.reads is not self.runtime:
                    await self.reads.store.describe(self.session_id)

    async def _load_run(self, run_id: str) -> None:
        self.run, self.run_info = await self.runtime.run_with_info(run_id)
        await self._require_access("run", run_id, self.run_info.session_id)
        if self.reads is not self.runtime:
            self.run, self.run_info = await self.reads.run_with_info(run_id)

    async def _load_approval(self, approval_id: str) -> None:
        self.approval = await self.runtime.approval(approval_id)
        await self._require_access("approval", approval_id, self.approval.session_id)
        if self.reads is not self.runtime:
            self.approval = await self.reads.approval(approval_id)

    async def require_access_or_absence(self, session_id: str) -> str:
        """Check the access to a session that may not exist yet, and return its owner, or whose it would be."""
        backend = self.runtime.store.backend
        record = await backend.get_session(session_id)
        if record is not None and not self.rule.allows(self.principal, record.owner):
            raise Hidden("session", session_id)
        may_adopt = record is not None or self.rule.allows(self.principal, None)
        # Whose these runs were is not known any more, and who takes the id gets them.
        if not may_adopt and await backend.list_runs(status=None, session_id=session_id, limit=1, after=0):
            raise Hidden("session", session_id, hint="; runs of a deleted one have its id")
        return self.principal.owner if record is None or record.owner is None else record.owner

    async def _require_access(self, what: str, name: str, session_id: str | None) -> None:
        record = None if session_id is None else await self.runtime.store.backend.get_session(session_id)
        if what == "session" and record is None:
            raise NotFound(what, name)
        self.owner, self.tape = (None, None) if record is None else (record.owner, record.tape)
        if not self.rule.allows(self.principal, self.owner):
            raise Hidden(what, name)

    @property
    def session(self) -> StoredSession:
        session = self.reads.session(self.session_id, owner=self.principal.owner)
        session.claims = self.owner_filter is not None
        return session

    # --- content ------------------------------------------------------------------------------------

    async def decode(self) -> None:
        """Decode the query and the body; raise :class:`RequestError` if they do not fit."""
        self.query = self._decode_query()
        if self.endpoint.body not in (None, bytes, Upload):
            self.body = decode_json(await self.read_json(), self.endpoint.body)

    def _decode_query(self) -> Any:
        params, kind = self.request.query_params, self.endpoint.query
        if kind is None:
            if params:
                raise InvalidInput(f"unknown parameter {next(iter(params))!r}: {self.endpoint.path} has none")
            return None
        lists = {field.name for field in msgspec.structs.fields(kind) if "list" in str(field.type)}
        values = {name: params.getlist(name) if name in lists else params[name] for name in params}
        try:
            return msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as problem:
            raise InvalidInput(f"in the query: {problem}") from None

    async def read_json(self) -> bytes:
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a page of another site cannot send this type without asking first
            raise UnknownMediaType(f"send application/json, not {kind or 'nothing'}")
        return b"".join([part async for part in self.read_parts(self.service.limits.body_bytes)])

    async def read_parts(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the body; raise :class:`BodyTooLarge` before it exceeds ``limit`` bytes."""
        length = self.request.headers.get("content-length", "0")
        too_large = BodyTooLarge(f"the body has more than {limit:,} bytes")
        if length.isdigit() and int(length) > limit:
            raise too_large
        size, pause, began = 0, self.service.limits.body_pause, time.monotonic()
        assert isinstance(self.request, Request)  # noqa: S101 - a WebSocket has no body
        parts = aiter(self.request.stream())
        try:
            while True:
                async with asyncio.timeout(pause):
                    part = await anext(parts, None)
                if part is None:
                    return
                size += len(part)
                if time.monotonic() - began > pause + size / MIN_BODY_RATE:
                    raise TimeoutError
                if size > limit:
                    raise too_large
                yield part
        except TimeoutError:
            raise BodyTooSlow("the rest of the body did not come") from None
        except ClientDisconnect:
            raise RequestError("the client went away before the body was complete") from None


def add_offered_token(headers: dict[str, str]) -> None:
    """Take the token of a WebSocket from the protocols that it offers: a page cannot set other headers.

    A page opens it with ``new WebSocket(url, ["standfast", `bearer.${token}`])``.
    """
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith("bearer."):
            headers.setdefault("authorization", f"Bearer {offered.strip().removeprefix('bearer.')}")


def decode_json(data: bytes, kind: Any) -> Any:
    """Decode a request's JSON strictly; raise :class:`InvalidInput` with the path of what does not fit."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as problem:
        raise InvalidInput(f"in the body: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise RequestError(f"the body is not JSON: {problem}") from None


def validate_page_size(exchange: Exchange, limit: int) -> int:
    """Return the size of a page, or raise :class:`InvalidInput`."""
    largest = exchange.service.limits.page_size
    if not 1 <= limit <= largest:
        raise InvalidInput(f"limit must be from 1 to {largest}, not {limit}")
    return limit


def choose_owner(exchange: Exchange, requested: str | None) -> str | None:
    """Return the owner to list: the requested one if the principal may see it, else its own."""
    allowed = exchange.owner_filter
    if allowed is not None and requested not in (None, allowed):
        raise Forbidden(f"{exchange.endpoint.name} of other owners needs the role {exchange.rule.foreign.name.lower()}")
    return requested if allowed is None else allowed


def make_page(found: Sequence[T], size: int, get_cursor: Callable[[T], str]) -> Page[T]:
    """Return a page; ``found`` has one entry more than fits if there is another page."""
    kept = list(found[:size])
    return Page(kept, get_cursor(kept[-1]) if len(found) > size else None)
