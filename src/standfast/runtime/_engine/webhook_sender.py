"""Send the deliveries of webhooks: signed, repeated after failures, each by one runtime at a time."""

import asyncio
import base64
import hashlib
import hmac
import socket
from contextlib import suppress
from importlib.util import find_spec
from urllib.parse import urlsplit, urlunsplit

from msgspec import MsgspecError
from msgspec.structs import replace

from standfast.base.errors import Conflict, StandfastError
from standfast.base.log import get_logger
from standfast.base.network import Address, is_own, is_public, parse_address, unwrap_address
from standfast.lifecycle.scope import Scope
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.webhook_outbox import (
    DUE_KIND,
    LOG_KIND,
    WEBHOOK_KIND,
    StoredWebhook,
    WebhookTarget,
    build_due_op,
    build_log_op,
    decode_delivery,
    format_time,
    iterate_documents,
    iterate_webhooks,
)
from standfast.runtime.types import WebhookDelivery
from standfast.store.operations import DeleteDocument
from standfast.store.records import DocumentRecord

POLL_SECONDS = 5.0
TIMEOUT_SECONDS = 10.0
CLAIM_SECONDS = 60.0
"""Seconds after which a delivery is sent again if the runtime that was sending it has died."""
RETRY_SECONDS = (5, 30, 300, 1800, 7200, 18_000, 36_000, 36_000)
"""The delays between attempts: 28 hours in all."""
MAX_AT_ONCE, MAX_PER_WEBHOOK = 16, 4
KEPT_PER_WEBHOOK = 100
SECRET_PREFIX = "whsec_"  # noqa: S105 - of the format

_log = get_logger(__name__)


class WebhookSender:
    """Sends what is due. A delivery is claimed by setting the time of its next attempt before it is sent.

    A receiver that does not answer occupies a part of the places only, so that it does not delay the others.
    """

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._woken = asyncio.Event()
        self._sending: dict[str, str] = {}
        """The webhook of each delivery that is being sent, by the key of its document."""

    def wake(self) -> None:
        """Look for deliveries now, because this runtime has added some."""
        self._woken.set()

    async def run(self) -> None:
        """Send deliveries until cancelled, if the library for it is installed."""
        if find_spec("httpx2") is None:
            return
        async with Scope() as scope:
            while True:
                self._woken.clear()
                try:
                    await self._start_due(scope)
                except (StandfastError, MsgspecError) as problem:
                    _log.warning("webhooks could not be sent, retrying: %s", problem)
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._woken.wait()

    async def _start_due(self, scope: Scope) -> None:
        """Start to send the deliveries that are due and have a place."""
        backend = self._ctx.backend
        before = f"{format_time(await backend.get_time())}~"  # keys have an id after the time
        webhooks: dict[str, StoredWebhook] | None = None
        async for document in iterate_documents(backend, DUE_KIND, before=before):
            if len(self._sending) >= MAX_AT_ONCE:
                return
            if webhooks is None:
                webhooks = {webhook.id: webhook async for _, webhook in iterate_webhooks(backend)}
            delivery = decode_delivery(document)
            sending = list(self._sending.values()).count(delivery.webhook_id)
            if document.key not in self._sending and sending < MAX_PER_WEBHOOK:
                self._sending[document.key] = delivery.webhook_id
                scope.start(
                    self._attempt_safely(document, delivery, webhooks.get(delivery.webhook_id)),
                    name=f"standfast webhook {delivery.webhook_id}",
                )

    async def _attempt_safely(
        self, document: DocumentRecord, delivery: WebhookDelivery, webhook: StoredWebhook | None
    ) -> None:
        try:
            if await self._attempt(document, delivery, webhook):
                self.wake()  # there is a place again
        except (StandfastError, MsgspecError) as problem:
            _log.warning("webhook %s: a delivery is sent again later: %s", delivery.webhook_id, problem)
        finally:
            del self._sending[document.key]

    async def _attempt(
        self, document: DocumentRecord, delivery: WebhookDelivery, webhook: StoredWebhook | None
    ) -> bool:
        """Attempt a delivery once; return whether that changed it."""
        backend = self._ctx.backend
        remove = DeleteDocument(kind=DUE_KIND, key=document.key, expected=document.revision)
        if webhook is None:  # it was deleted
            with suppress(Conflict):
                await backend.commit(remove)
            return True
        target = webhook.open_target(self._ctx.cipher)
        if target is None:
            return False  # for a runtime with the key
        now = await backend.get_time()
        claimed = replace(
            delivery, attempts=delivery.attempts + 1, next_at=now + CLAIM_SECONDS, response_status=None, problem=None
        )
        claim = build_due_op(claimed)
        try:
            await backend.commit(remove, claim)
        except Conflict:
            return True  # another runtime sends it
        status, problem = await send(target, claimed, int(now), private=webhook.private)
        is_delivered = status is not None and 200 <= status < 300
        result = replace(claimed, response_status=status, problem=problem)
        release = DeleteDocument(kind=DUE_KIND, key=claim.key, expected=1)
        with suppress(Conflict):
            if is_delivered or claimed.attempts > len(RETRY_SECONDS):
                ended = replace(result, next_at=None, status="delivered" if is_delivered else "failed")
                await backend.commit(release, build_log_op(ended))
                await self._prune_log(webhook.id)
            else:
                next_at = await backend.get_time() + RETRY_SECONDS[claimed.attempts - 1]
                await backend.commit(release, build_due_op(replace(result, next_at=next_at)))
                _log.info("webhook %s: attempt %d failed: %s", webhook.id, claimed.attempts, problem)
        return True

    async def _prune_log(self, webhook_id: str) -> None:
        """Delete all but the latest deliveries from the log of a webhook, and everything if it was deleted."""
        backend, bounds = self._ctx.backend, {"after": f"{webhook_id} ", "before": f"{webhook_id}!"}
        if await backend.get_document(WEBHOOK_KIND, webhook_id) is None:
            old = [document async for document in iterate_documents(backend, LOG_KIND, **bounds)]
        else:
            old = (await backend.list_documents(LOG_KIND, limit=2 * KEPT_PER_WEBHOOK, reverse=True, **bounds))[
                KEPT_PER_WEBHOOK:
            ]
        if old:
            await backend.commit(*(DeleteDocument(kind=LOG_KIND, key=document.key) for document in old))


async def send(
    target: WebhookTarget, delivery: WebhookDelivery, timestamp: int, *, private: bool
) -> tuple[int | None, str | None]:
    """Send a delivery once; return the status of the answer, and what went wrong. Redirects are not followed."""
    import httpx2

    url = urlsplit(target.url)
    host, body = url.hostname or "", delivery.body.encode()
    headers = {
        "host": url.netloc,
        "content-type": "application/json",
        "user-agent": "standfast",
        "webhook-id": delivery.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(target.secret, delivery.id, timestamp, body),
    }
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            address = await resolve(host, url.port or (443 if url.scheme == "https" else 80), private=private)
            literal = f"[{address}]" if address.version == 6 else str(address)
            port = "" if url.port is None else f":{url.port}"
            # Connect to the address that was checked: a second look-up of the name might give another one.
            pinned = urlunsplit((url.scheme, literal + port, url.path or "/", url.query, ""))
            verify = httpx2.create_ssl_context() if url.scheme == "https" else False
            async with (
                httpx2.AsyncClient(
                    follow_redirects=False, trust_env=False, timeout=TIMEOUT_SECONDS, verify=verify
                ) as client,
                client.stream(
                    "POST", pinned, content=body, headers=headers, extensions={"sni_hostname": host}
                ) as answer,
            ):
                status = int(answer.status_code)
                return status, None if 200 <= status < 300 else f"the server answered {status}"
    except TimeoutError:
        return None, f"no answer within {TIMEOUT_SECONDS:g} seconds"
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"[:300]


async def resolve(host: str, port: int, *, private: bool) -> Address:
    """Return an address of the host, or raise :class:`OSError` if it has none that may be connected to."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for _, _, _, _, place in found:
        address = parse_address(str(place[0]).partition("%")[0])
        if address is not None and (private or (is_public(unwrap_address(address)) and not is_own(address))):
            return address
    raise OSError(f"{host} is not an address of the Internet; the webhook was made without private=True")


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a delivery as Standard Webhooks defines it."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    mac = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(mac).decode()}"
