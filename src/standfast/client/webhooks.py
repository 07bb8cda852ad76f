"""The webhooks of a server, with the methods of those of a runtime."""

from collections.abc import Sequence
from typing import cast

from standfast.client.connection import Connection, make_path
from standfast.runtime.types import NewWebhook, Webhook, WebhookDelivery


class RemoteWebhooks:
    """The webhooks of a server, see :class:`Webhooks`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self, url: str, *, events: Sequence[str] | None = None, private: bool = False, secret: str | None = None
    ) -> NewWebhook:
        """Create a webhook. Its secret is in the answer and nowhere else."""
        body = {"url": url, "events": events, "private": private, "secret": secret}
        return cast(NewWebhook, await self._connection.request("POST", "/webhooks", NewWebhook, body=body))

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        await self._connection.request("DELETE", make_path("webhooks", webhook_id))

    async def deliveries(self, webhook_id: str) -> Sequence[WebhookDelivery]:
        """Return the deliveries of a webhook, latest first."""
        path = make_path("webhooks", webhook_id, "deliveries")
        return cast(Sequence[WebhookDelivery], await self._connection.request("GET", path, list[WebhookDelivery]))

    async def send_test(self, webhook_id: str) -> WebhookDelivery:
        """Send an event of type ``test``."""
        return await self._send(make_path("webhooks", webhook_id, "test"))

    async def resend(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Send a delivery again that is over."""
        return await self._send(make_path("webhooks", webhook_id, "deliveries", delivery_id, "resend"))

    async def list(self) -> list[Webhook]:
        """Return all webhooks, without their secrets."""
        return cast("list[Webhook]", await self._connection.request("GET", "/webhooks", list[Webhook]))

    async def _send(self, path: str) -> WebhookDelivery:
        return cast(WebhookDelivery, await self._connection.request("POST", path, WebhookDelivery))
