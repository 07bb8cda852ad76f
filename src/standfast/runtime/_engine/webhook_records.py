"""The stored form of webhooks and their deliveries.

A webhook is a document whose address and secret are encrypted if the runtime has a key. A delivery that is not over is
a document whose key begins with the time of its next attempt. One that is over is a document in the log of its webhook.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from standfast.base.errors import WrongKey
from standfast.runtime._engine.run_cipher import MAGIC, RunCipher
from standfast.runtime.errors import RunTampered
from standfast.runtime.types import Webhook, WebhookDelivery
from standfast.store.backend import Backend
from standfast.store.operations import PutDocument
from standfast.store.records import DocumentRecord

WEBHOOK_KIND = "webhook"
DUE_KIND = "webhook-due"
LOG_KIND = "webhook-log"
_PAGE_SIZE = 200


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
