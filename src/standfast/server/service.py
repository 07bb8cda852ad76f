"""What all requests of one server share."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import HTTPConnection

from standfast.base.errors import StandfastError
from standfast.base.log import get_logger
from standfast.runtime.queries import RunQueries
from standfast.runtime.runtime import Runtime
from standfast.server.auth.audit import Audit
from standfast.server.auth.principals import Authenticator, Principal
from standfast.server.cells import CellRegister
from standfast.server.endpoints import WEBSOCKET
from standfast.server.metrics import ServerMetrics
from standfast.server.open_streams import StreamRegister
from standfast.server.rate_limits import RateLimiter

if TYPE_CHECKING:
    from standfast.server.answers import SessionStats
    from standfast.server.calls.call import Call, CallSource
    from standfast.workers.pool import SessionPool
    from standfast.workers.python_sessions import PythonSessions
    from standfast.workers.session import SandboxReport

_log = get_logger(__name__)
SECURITY_CHECK_INTERVAL = 10.0
"""Seconds after which the server checks again whether the database separates owners."""
MAX_CACHED = 1000
MAX_SIZES = 4000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request and one principal may use."""

    body_bytes: int = 4_000_000
    """The most bytes of a JSON body."""
    body_pause: float = 30.0
    """Seconds between two parts of a body, after which the request is refused."""
    upload_bytes: int = 100_000_000
    """The most bytes of an uploaded file."""
    page_size: int = 500
    """The most entries of one page of a listing."""
    requests_per_second: float = 200.0
    """Requests per second of one principal, or of one address that is not authenticated, on average."""
    open_cells: int = 16
    """The most cells of one owner that run or wait at a time, in one process."""
    cell_seconds: float = 3600.0
    """The longest timeout of a cell."""
    ended_cell_bytes: int = 64_000_000
    """The most bytes kept of ended cells: code, messages and results. The last cell is always kept."""
    open_streams: int = 2000
    """The most open event streams of one owner, in one process."""
    heartbeat: float = 15.0
    """Seconds between two comments in an event stream without events."""


class DrainSignal(asyncio.Event):
    """An event that also calls ``on_set`` when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.on_set: Callable[[], None] = lambda: None

    def set(self) -> None:
        super().set()
        self.on_set()


@dataclass(eq=False)
class Service:
    """The runtime, who may use it, the limits, and whether the server is about to stop."""

    runtime: Runtime
    authenticators: tuple[Authenticator, ...]
    limits: Limits = field(default_factory=Limits)
    pools: "tuple[SessionPool, ...]" = ()
    python: "SessionPool | PythonSessions | None" = None
    """Where people run cells in the workspaces of sessions; without it they cannot."""
    started_at: float = field(default_factory=time.time)
    draining: "DrainSignal" = field(default_factory=lambda: DrainSignal())
    """Set when the server stops: nothing new is started, and streams end with a hint to reconnect."""
    call_sources: "Mapping[str, CallSource]" = field(default_factory=dict)
    """The realtime agents that can be called, by name."""
    calls: "dict[str, Call]" = field(default_factory=dict)
    """The calls under way in this process."""
    cells: CellRegister = field(init=False)
    """The cells that people run in this process."""
    streams: StreamRegister = field(init=False)
    """The open event streams of this process."""
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    audit: Audit = field(init=False)
    rate_limiter: RateLimiter = field(init=False)
    denial_limiter: RateLimiter = field(init=False)
    session_sizes: "dict[tuple[str, float, int], SessionStats]" = field(default_factory=dict)
    """By id, creation and version: a listing that is asked for again and again reads only what has changed."""
    _sandboxes: "dict[int, asyncio.Future[SandboxReport]]" = field(default_factory=dict)
    _skipped_denials: Counter[str] = field(default_factory=Counter)
    _scopes: dict[str, RunQueries] = field(default_factory=dict)
    _is_protected: bool = False
    _checked_at: float = -math.inf

    def __post_init__(self) -> None:
        self.rate_limiter = RateLimiter(self.limits.requests_per_second)
        self.denial_limiter = RateLimiter(1.0)
        self.audit = Audit(self.runtime.store)
        self.cells = CellRegister(self.limits.ended_cell_bytes)
        self.streams = StreamRegister(heartbeat=self.limits.heartbeat, limit=self.limits.open_streams)
        self.draining.on_set = self.streams.stop

    async def scope_to(self, owner: str | None) -> RunQueries:
        """Return the data of an owner, separated by the database if it can do that. ``None`` stands for all owners."""
        if owner is None:
            return self.runtime
        if time.monotonic() >= self._checked_at + SECURITY_CHECK_INTERVAL:
            self._is_protected, self._checked_at = await self.runtime.has_row_security(), time.monotonic()
            self._scopes.clear()
        if not self._is_protected:
            return self.runtime
        if owner not in self._scopes:
            if len(self._scopes) >= MAX_CACHED:
                self._scopes.clear()
            self._scopes[owner] = self.runtime.scoped(owner)
        return self._scopes[owner]

    async def probe_sandbox(self, pool: "SessionPool") -> "SandboxReport":
        """Return which sandbox the workers of a pool get here. Workers are started once to find out."""
        from standfast.workers.session import probe_sandbox

        if id(pool) not in self._sandboxes:
            self._sandboxes[id(pool)] = asyncio.ensure_future(probe_sandbox(pool.config.session))
        return await asyncio.shield(self._sandboxes[id(pool)])

    async def close(self) -> None:
        """End all streams, calls and cells, and return when no cell runs."""
        self.draining.set()
        await self.cells.wait()

    async def record_denial(
        self, error: Exception, request: HTTPConnection, principal: Principal | None = None
    ) -> None:
        """Count a denied request, and write it to the audit log."""
        code = getattr(error, "code", "")
        self.metrics.denied.labels(code).inc()
        facts = {
            "address": request.client.host if request.client else "",
            "method": request.scope.get("method", WEBSOCKET),
            "path": request.scope["path"],
            "code": code,
        }
        try:
            await self.record_audit("denied", principal, facts)
        except StandfastError as problem:
            _log.warning("a denied request could not be recorded: %s", problem)

    async def record_audit(self, action: str, principal: Principal | None, facts: dict[str, Any]) -> None:
        """Write to the audit log.

        Of many denied requests of one sender, one a second is written, with the number of those that were skipped
        before it.
        """
        if action == "denied":
            sender = principal.subject if principal else str(facts.get("address"))
            if self.denial_limiter.take(sender):
                if len(self._skipped_denials) < MAX_CACHED or sender in self._skipped_denials:
                    self._skipped_denials[sender] += 1
                return
            if skipped := self._skipped_denials.pop(sender, 0):
                facts = facts | {"skipped": skipped}
        await self.audit.append(action, principal, facts)
