"""The stored form of webhooks, and the outbox: it adds their deliveries to the commits that are reasons for them.

A webhook is a document whose address and secret are encrypted if the runtime has a key. A delivery that is not over is
a document whose key begins with the time of its next attempt. One that is over is a document in the log of its webhook.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from standfast.base.errors import WrongKey
from standfast.base.ids import new_id
from standfast.base.time import Clock, system_clock
from standfast.runtime._engine.records import STOPPED_STATUSES, RunStopped, decode_header_data
from standfast.runtime._engine.run_cipher import MAGIC, RunCipher
from standfast.runtime.errors import RunTampered
from standfast.runtime.types import Approval, Webhook, WebhookDelivery
from standfast.store.backend import Backend
from standfast.store.operations import AppendJournal, Op, PutDocument, SaveApproval, SaveRun
from standfast.store.records import DocumentRecord

WEBHOOK_KIND = "webhook"
DUE_KIND = "webhook-due"
LOG_KIND = "webhook-log"
_PAGE_SIZE = 200
REFRESH_SECONDS = 15.0
"""Seconds after which webhooks that other processes have made are noticed."""
TEST_EVENT = "test"
_STOP_KIND = RunStopped.__struct_config__.tag


class WebhookTarget(msgspec.Struct, frozen=True):
    """Where the deliveries of a webhook go, and the secret that signs them."""

    url: str
    secret: str


class StoredWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is stored; ``target`` is an encoded :class:`WebhookTarget`, which may be encrypted."""

    id: str
    events: tuple[str, ...]
    created_at: float
    private: bool
    target: bytes

    def open_target(self, cipher: RunCipher | None) -> WebhookTarget | None:
        """Return the target, or ``None`` if this runtime cannot read it."""
        data = self.target
        try:
            if cipher is not None:
                data = cipher.decrypt(data, *_locate(self.id))
            return None if data.startswith(MAGIC) else msgspec.json.decode(data, type=WebhookTarget)
        except (WrongKey, RunTampered):
            return None

    def describe(self, cipher: RunCipher | None) -> Webhook:
        target = self.open_target(cipher)
        return Webhook(
            id=self.id,
            url=None if target is None else target.url,
            events=list(self.events),
            private=self.private,
            created_at=self.created_at,
        )


def encode_target(webhook_id: str, target: WebhookTarget, cipher: RunCipher | None) -> bytes:
    data = msgspec.json.encode(target)
    return data if cipher is None else cipher.encrypt(data, *_locate(webhook_id))


def build_webhook_op(webhook: StoredWebhook, *, expected: int) -> PutDocument:
    return PutDocument(kind=WEBHOOK_KIND, key=webhook.id, data=msgspec.json.encode(webhook), expected=expected)


async def iterate_webhooks(backend: Backend) -> AsyncIterator[tuple[DocumentRecord, StoredWebhook]]:
    async for document in iterate_documents(backend, WEBHOOK_KIND):
        yield document, msgspec.json.decode(document.data, type=StoredWebhook)


async def iterate_documents(backend: Backend, kind: str, **bounds: Any) -> AsyncIterator[DocumentRecord]:
    after = bounds.pop("after", "")
    while page := await backend.list_documents(kind, limit=_PAGE_SIZE, after=after, **bounds):
        for document in page:
            yield document
        after = page[-1].key


def build_due_op(delivery: WebhookDelivery) -> PutDocument:
    """Return the operation that stores a delivery whose next attempt is at ``next_at``."""
    # The first attempt is due at once, also if the clock of this process is ahead of the store's.
    due = (delivery.next_at or 0.0) if delivery.attempts else 0.0
    key = f"{format_time(due)} {delivery.id}"
    return PutDocument(kind=DUE_KIND, key=key, data=msgspec.json.encode(delivery), expected=0)


def build_log_op(delivery: WebhookDelivery) -> PutDocument:
    key = f"{delivery.webhook_id} {format_time(delivery.created_at)} {delivery.id}"
    return PutDocument(kind=LOG_KIND, key=key, data=msgspec.json.encode(delivery))


def decode_delivery(document: DocumentRecord) -> WebhookDelivery:
    return msgspec.json.decode(document.data, type=WebhookDelivery)


def format_time(at: float) -> str:
    """Return a time as text that sorts like the number."""
    return f"{int(at * 1_000_000):017d}"


def _locate(webhook_id: str) -> tuple[str, tuple[str, str]]:
    return f"webhook:{webhook_id}", ("webhook", webhook_id)


EVENTS = (
    *(f"run.{status}" for status in STOPPED_STATUSES),
    "approval.requested",
    "approval.decided",
)


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
