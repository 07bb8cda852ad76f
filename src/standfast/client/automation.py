"""The schedules and webhooks of a server, with the methods of those of a runtime."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from standfast.base.items import Item
from standfast.client.connection import Connection, make_path
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runtime.types import NewWebhook, Schedule, Webhook, WebhookDelivery


class RemoteSchedules:
    """The schedules of a server, see :class:`Schedules`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set(
        self,
        name: str,
        agent: str,
        input: str | list[Item],
        *,
        cron: str | None = None,
        every: timedelta | float | None = None,
        timezone: str = "UTC",
        session_id: str | None = None,
        owner: str | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        overlap: bool = False,
    ) -> Schedule:
        """Create a schedule, or replace the one with this name."""
        body = {
            "agent": agent,
            "input": input,
            "cron": cron,
            "every": every.total_seconds() if isinstance(every, timedelta) else every,
            "timezone": timezone,
            "session_id": session_id,
            "owner": owner,
            "max_turns": max_turns,
            "overlap": overlap,
        }
        return await self._request("PUT", make_path("schedules", name), body=body)

    async def get(self, name: str) -> Schedule:
        """Return the schedule with this name, or raise :class:`NotFound`."""
        return await self._request("GET", make_path("schedules", name))

    async def pause(self, name: str) -> Schedule:
        """Start no runs until :meth:`resume`."""
        return await self._request("POST", make_path("schedules", name, "pause"))

    async def resume(self, name: str) -> Schedule:
        """Continue a paused schedule with its next time."""
        return await self._request("POST", make_path("schedules", name, "resume"))

    async def delete(self, name: str) -> None:
        """Delete a schedule. Its runs stay."""
        await self._connection.request("DELETE", make_path("schedules", name))

    async def list(self) -> list[Schedule]:
        """Return all schedules by name."""
        return cast("list[Schedule]", await self._connection.request("GET", "/schedules", list[Schedule]))

    async def _request(self, method: str, path: str, **options: Any) -> Schedule:
        return cast(Schedule, await self._connection.request(method, path, Schedule, **options))


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
