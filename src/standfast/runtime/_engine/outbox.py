"""The outbox: adds the deliveries of webhooks to the commits in which runs stop and approvals change."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from standfast.base.ids import new_id
from standfast.base.time import Clock, system_clock
from standfast.runtime._engine.records import STOPPED_STATUSES, RunStopped, decode_header_data
from standfast.runtime._engine.webhook_records import StoredWebhook, build_due_op, iterate_webhooks
from standfast.runtime.types import Approval, WebhookDelivery
from standfast.store.backend import Backend
from standfast.store.operations import AppendJournal, Op, SaveApproval, SaveRun

REFRESH_SECONDS = 15.0
"""Seconds after which webhooks that other processes have made are noticed."""
EVENTS = (
    *(f"run.{status}" for status in STOPPED_STATUSES),
    "approval.requested",
    "approval.decided",
)
TEST_EVENT = "test"
_STOP_KIND = RunStopped.__struct_config__.tag


class WebhookOutbox:
    """Knows the webhooks, and which events a commit contains."""

    def __init__(self, backend: Backend, *, is_encrypted: bool) -> None:
        self._backend, self._is_encrypted = backend, is_encrypted
        self._webhooks: list[StoredWebhook] = []
        self._read_at = -REFRESH_SECONDS
        self._lock = asyncio.Lock()
        self.clock: Clock = system_clock
        """The store's time."""
        self.on_added: Callable[[], None] = lambda: None
        """Called when a commit has added deliveries."""

    def forget(self) -> None:
        """Read the webhooks again before the next event, because this runtime has changed them."""
        self._read_at = -REFRESH_SECONDS

    async def build_ops(self, ops: Sequence[Op]) -> list[Op]:
        """Return the operations that add the deliveries of what these operations do."""
        events = self._find_events(ops)
        if not events:
            return []
        await self._refresh()
        return [
            build_due_op(make_delivery(webhook.id, event, data, at=self.clock()))
            for event, data in events
            for webhook in self._webhooks
            if event in webhook.events
        ]

    def _find_events(self, ops: Sequence[Op]) -> list[tuple[str, dict[str, Any]]]:
        if not any(type(op) is SaveApproval or (type(op) is SaveRun and op.status in STOPPED_STATUSES) for op in ops):
            return []
        stopped = {
            op.run_id
            for op in ops
            if isinstance(op, AppendJournal) and any(kind == _STOP_KIND for kind, _ in op.entries)
        }
        events: list[tuple[str, dict[str, Any]]] = []
        for op in ops:
            if isinstance(op, SaveRun) and op.status in STOPPED_STATUSES and op.run_id in stopped:
                events.append((f"run.{op.status}", self._describe_run(op)))
            elif isinstance(op, SaveApproval) and not op.run_id.startswith("session:"):
                event = "approval.requested" if op.status == "pending" else "approval.decided"
                if op.expected == 0 or event == "approval.decided":
                    events.append((event, self._describe_approval(op)))
        return events

    def _describe_run(self, op: SaveRun) -> dict[str, Any]:
        facts: dict[str, Any] = {"run_id": op.run_id, "session_id": op.session_id, "status": op.status}
        if not self._is_encrypted:
            header = decode_header_data(op.data)
            facts |= {"agent": header.agent, "reason": header.problem.code if header.problem else None}
        return facts

    def _describe_approval(self, op: SaveApproval) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "approval_id": op.approval_id,
            "run_id": op.run_id,
            "session_id": op.session_id,
            "status": op.status,
            "expires_at": op.expires_at,
        }
        if not self._is_encrypted:
            approval = msgspec.json.decode(op.data, type=Approval)
            facts |= {"kind": approval.kind, "agent": approval.agent, "tool": approval.tool}
        return facts

    async def _refresh(self) -> None:
        async with self._lock:
            if time.monotonic() - self._read_at >= REFRESH_SECONDS:
                read_at = time.monotonic()
                self._webhooks = [webhook async for _, webhook in iterate_webhooks(self._backend)]
                self._read_at = read_at


def make_delivery(webhook_id: str, event: str, data: dict[str, Any], *, at: float) -> WebhookDelivery:
    """Return a delivery that is due now. Its body says what happened and to what, and nothing of the content."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = msgspec.json.encode({"type": event, "timestamp": moment, "data": data}).decode()
    return WebhookDelivery(id=new_id("msg"), webhook_id=webhook_id, event=event, body=body, created_at=at, next_at=at)
