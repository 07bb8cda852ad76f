"""What all requests of one server share."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from standfast.runtime.runtime import Runtime
from standfast.server.auth.audit import Audit
from standfast.server.auth.principals import Authenticator, Principal
from standfast.server.cells import CellRegister
from standfast.server.metrics import ServerMetrics
from standfast.server.rate_limits import RateLimiter

if TYPE_CHECKING:
    from standfast.server.calls.call import Call, CallSource
    from standfast.workers.pool import SessionPool
    from standfast.workers.python_sessions import PythonSessions


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request and one principal may use."""

    body_bytes: int = 4_000_000
    """Of a JSON body."""
    body_pause: float = 30.0
    """Seconds between two parts of a body, after which the request is refused."""
    upload_bytes: int = 100_000_000
    """Of an uploaded file."""
    page_size: int = 500
    """The most entries of one page of a listing."""
    requests_per_second: float = 200.0
    """Of one principal, or of one address that is not authenticated, on average over a few seconds."""
    open_cells: int = 16
    """The most cells of one owner that run or wait at a time, in one process."""
    cell_seconds: float = 3600.0
    """The longest timeout of a cell."""
    heartbeat: float = 15.0
    """Seconds between two comments in an event stream without events."""


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
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: nothing new is started, and streams end with a hint to reconnect."""
    call_sources: "Mapping[str, CallSource]" = field(default_factory=dict)
    """The realtime agents that can be called, by name."""
    calls: "dict[str, Call]" = field(default_factory=dict)
    """The calls under way in this process."""
    cells: CellRegister = field(default_factory=CellRegister)
    """The cells that people run in this process."""
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    audit: Audit = field(init=False)
    rate_limiter: RateLimiter = field(init=False)
    denial_limiter: RateLimiter = field(init=False)

    def __post_init__(self) -> None:
        self.rate_limiter = RateLimiter(self.limits.requests_per_second)
        self.denial_limiter = RateLimiter(1.0)
        self.audit = Audit(self.runtime.store)

    async def close(self) -> None:
        """End all streams, calls and cells, and return when no cell runs."""
        self.draining.set()
        await self.cells.wait()

    async def record_audit(self, action: str, principal: Principal | None, facts: dict[str, Any]) -> None:
        """Write to the audit log; denied requests of one sender at most once a second, the others are counted."""
        if action == "denied" and self.denial_limiter.take(
            principal.subject if principal else str(facts.get("address"))
        ):
            return
        await self.audit.record(action, principal, facts)
