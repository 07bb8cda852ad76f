"""Webhooks: requests to a server of yours when a run stops or an approval is requested or decided."""

import base64
import binascii
import secrets
from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import urlsplit

import msgspec

from standfast.base.errors import InvalidInput, MissingExtra, NotFound
from standfast.base.ids import new_id, validate_name
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.webhook_outbox import (
    DUE_KIND,
    EVENTS,
    LOG_KIND,
    TEST_EVENT,
    WEBHOOK_KIND,
    StoredWebhook,
    WebhookTarget,
    build_due_op,
    build_webhook_op,
    decode_delivery,
    encode_target,
    iterate_documents,
    iterate_webhooks,
    make_delivery,
)
from standfast.runtime._engine.webhook_sender import SECRET_PREFIX
from standfast.runtime.types import NewWebhook, Webhook, WebhookDelivery
from standfast.store.operations import DeleteDocument

MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_WEBHOOKS = 100


class Webhooks:
    """The webhooks of a store, as ``runtime.webhooks``.

    An event is stored in the same commit as the change that it is about, and sent until a server answers with a status
    from 200 to 299, up to nine times in 28 hours. It arrives at least once; ``webhook-id`` is the same each time.
    Events say what happened and to what, and nothing of what was said. Runtimes with agents send them, and need the
    extra ``webhooks``; one that was opened before a webhook was made elsewhere notices it within 15 seconds.
    """

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx

    async def create(
        self, url: str, *, events: Sequence[str] | None = None, private: bool = False, secret: str | None = None
    ) -> NewWebhook:
        """Create a webhook for these events, by default for all: ``run.waiting``, ``run.blocked``, ``run.completed``,
        ``run.failed``, ``run.cancelled``, ``approval.requested`` and ``approval.decided``.

        Requests are signed as Standard Webhooks (standardwebhooks.com) defines it, with a secret that this method
        returns and no other does. ``private`` allows a server in a network that is not the Internet, and ``http``.
        """
        if find_spec("httpx2") is None:
            raise MissingExtra("webhooks", "a webhook")
        unknown = sorted(set(events or ()) - set(EVENTS))
        if unknown or (events is not None and not events):
            raise InvalidInput(f"unknown events {', '.join(unknown) or 'none'}; expected some of {', '.join(EVENTS)}")
        if len(await self.list()) >= MAX_WEBHOOKS:
            raise InvalidInput(f"a store has at most {MAX_WEBHOOKS} webhooks: delete one first")
        target = WebhookTarget(_validate_url(url, private=private), _validate_secret(secret))
        webhook_id = new_id("webhook")
        webhook = StoredWebhook(
            id=webhook_id,
            events=tuple(events or EVENTS),
            created_at=await self._ctx.backend.get_time(),
            private=private,
            target=encode_target(webhook_id, target, self._ctx.cipher),
        )
        await self._ctx.backend.commit(build_webhook_op(webhook, expected=0))
        self._on_changed()
        return NewWebhook(webhook=webhook.describe(self._ctx.cipher), secret=target.secret)

    async def list(self) -> list[Webhook]:
        """Return all webhooks, oldest first, without their secrets."""
        return [webhook.describe(self._ctx.cipher) async for _, webhook in iterate_webhooks(self._ctx.backend)]

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries. What is not sent by then is not sent any more."""
        backend = self._ctx.backend
        await self._check_exists(webhook_id)
        await backend.commit(DeleteDocument(kind=WEBHOOK_KIND, key=webhook_id))
        self._on_changed()
        async for document in iterate_documents(backend, LOG_KIND, after=f"{webhook_id} ", before=f"{webhook_id}!"):
            await backend.commit(DeleteDocument(kind=LOG_KIND, key=document.key))
        # Not left to the sender: the next attempt may be due in hours, and until then it has the error of the last.
        async for document in iterate_documents(backend, DUE_KIND):
            if decode_delivery(document).webhook_id == webhook_id:
                await backend.commit(DeleteDocument(kind=DUE_KIND, key=document.key))

    async def deliveries(self, webhook_id: str) -> Sequence[WebhookDelivery]:
        """Return the deliveries of a webhook, latest first: those to be sent, and the last hundred that are over."""
        await self._check_exists(webhook_id)
        backend = self._ctx.backend
        due = [decode_delivery(one) async for one in iterate_documents(backend, DUE_KIND)]
        over = [
            decode_delivery(one)
            async for one in iterate_documents(backend, LOG_KIND, after=f"{webhook_id} ", before=f"{webhook_id}!")
        ]
        found = [one for one in due if one.webhook_id == webhook_id] + over
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    async def resend(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Send a delivery again, with its ``webhook-id``, beginning now."""
        now = await self._ctx.backend.get_time()
        for delivery in await self.deliveries(webhook_id):
            if delivery.id == delivery_id and delivery.status != "pending":
                again = msgspec.structs.replace(
                    delivery, status="pending", attempts=0, next_at=now, response_status=None, problem=None
                )
                return await self._add(again)
        raise NotFound("delivery", delivery_id, hint="; only deliveries that are over can be sent again")

    async def send_test(self, webhook_id: str) -> WebhookDelivery:
        """Send an event of type ``test``, to see whether its server accepts it."""
        await self._check_exists(webhook_id)
        now = await self._ctx.backend.get_time()
        return await self._add(make_delivery(webhook_id, TEST_EVENT, {}, at=now))

    def _on_changed(self) -> None:
        if self._ctx.outbox is not None:
            self._ctx.outbox.forget()
            self._ctx.outbox.on_added()

    async def _add(self, delivery: WebhookDelivery) -> WebhookDelivery:
        await self._ctx.backend.commit(build_due_op(delivery))
        self._on_changed()
        return delivery

    async def _check_exists(self, webhook_id: str) -> None:
        if await self._ctx.backend.get_document(WEBHOOK_KIND, validate_name("webhook", webhook_id)) is None:
            raise NotFound("webhook", webhook_id)


def _validate_url(url: str, *, private: bool) -> str:
    allowed = ("https", "http") if private else ("https",)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in allowed and bool(parts.hostname) and parts.port != 0 and url.isascii()
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid or not url.isprintable() or " " in url or parts.username is not None or len(url) > 2000:
        raise InvalidInput(
            f"{url!r} is not an address for a webhook; expected https://HOST/PATH without a user name"
            + ("" if private else ", or private=True for http://")
        )
    return url


def _validate_secret(secret: str | None) -> str:
    if secret is None:
        return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError, AttributeError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise InvalidInput(f"a secret is {SECRET_PREFIX} and {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base64")
    return secret
