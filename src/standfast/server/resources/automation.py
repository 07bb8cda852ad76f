"""``/schedules`` and ``/webhooks``: runs that start by themselves, and servers that are told of events."""

from standfast.runtime.types import NewWebhook, Schedule, Webhook, WebhookDelivery
from standfast.server.access import MANAGE, OPERATE
from standfast.server.endpoints import EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import NewSchedule, WebhookRequest

endpoints = EndpointTable()


@endpoints.add("GET", "/schedules", OPERATE, result=list[Schedule])
async def list_schedules(exchange: Exchange) -> list[Schedule]:
    """List all schedules by name."""
    return await exchange.runtime.schedules.list()


@endpoints.add("PUT", "/schedules/{name}", OPERATE, body=NewSchedule, result=Schedule)
async def set_schedule(exchange: Exchange) -> Schedule:
    """Create a schedule, or replace the one with this name."""
    name, new = exchange.path["name"], exchange.body
    schedule = await exchange.runtime.schedules.set(
        name,
        new.agent,
        new.input,
        cron=new.cron,
        every=new.every,
        timezone=new.timezone,
        session_id=new.session_id,
        owner=new.owner,
        max_turns=new.max_turns,
        overlap=new.overlap,
    )
    facts = {"schedule": name, "agent": new.agent, "owner": new.owner}
    await exchange.service.record_audit("schedule set", exchange.principal, facts)
    return schedule


@endpoints.add("GET", "/schedules/{name}", OPERATE, result=Schedule)
async def get_schedule(exchange: Exchange) -> Schedule:
    """Show a schedule, its next time and its last run."""
    return await exchange.runtime.schedules.get(exchange.path["name"])


@endpoints.add("POST", "/schedules/{name}/pause", OPERATE, result=Schedule)
async def pause_schedule(exchange: Exchange) -> Schedule:
    """Start no more runs until the schedule is resumed."""
    paused = await exchange.runtime.schedules.pause(exchange.path["name"])
    await exchange.service.record_audit("schedule paused", exchange.principal, {"schedule": paused.name})
    return paused


@endpoints.add("POST", "/schedules/{name}/resume", OPERATE, result=Schedule)
async def resume_schedule(exchange: Exchange) -> Schedule:
    """Continue a paused schedule with its next time."""
    resumed = await exchange.runtime.schedules.resume(exchange.path["name"])
    await exchange.service.record_audit("schedule resumed", exchange.principal, {"schedule": resumed.name})
    return resumed


@endpoints.add("DELETE", "/schedules/{name}", OPERATE)
async def delete_schedule(exchange: Exchange) -> None:
    """Delete a schedule. Its runs stay."""
    name = exchange.path["name"]
    await exchange.runtime.schedules.delete(name)
    await exchange.service.record_audit("schedule deleted", exchange.principal, {"schedule": name})


@endpoints.add("GET", "/webhooks", MANAGE, result=list[Webhook])
async def list_webhooks(exchange: Exchange) -> list[Webhook]:
    """List all webhooks, without their secrets."""
    return await exchange.runtime.webhooks.list()


@endpoints.add("POST", "/webhooks", MANAGE, body=WebhookRequest, result=NewWebhook, status=201)
async def create_webhook(exchange: Exchange) -> NewWebhook:
    """Create a webhook. Its secret is in this answer and nowhere else."""
    new = exchange.body
    made = await exchange.runtime.webhooks.create(new.url, events=new.events, private=new.private, secret=new.secret)
    await exchange.service.record_audit("webhook created", exchange.principal, {"webhook": made.webhook.id})
    return made


@endpoints.add("DELETE", "/webhooks/{webhook_id}", MANAGE)
async def delete_webhook(exchange: Exchange) -> None:
    """Delete a webhook with its deliveries."""
    webhook_id = exchange.path["webhook_id"]
    await exchange.runtime.webhooks.delete(webhook_id)
    await exchange.service.record_audit("webhook deleted", exchange.principal, {"webhook": webhook_id})


@endpoints.add("GET", "/webhooks/{webhook_id}/deliveries", MANAGE, result=list[WebhookDelivery])
async def list_deliveries(exchange: Exchange) -> list[WebhookDelivery]:
    """List the deliveries of a webhook, latest first: those to be sent, and the last hundred that are over."""
    return list(await exchange.runtime.webhooks.deliveries(exchange.path["webhook_id"]))


@endpoints.add("POST", "/webhooks/{webhook_id}/test", MANAGE, result=WebhookDelivery, status=202)
async def send_test_event(exchange: Exchange) -> WebhookDelivery:
    """Send an event of type `test`."""
    return await exchange.runtime.webhooks.send_test(exchange.path["webhook_id"])


@endpoints.add(
    "POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/resend", MANAGE, result=WebhookDelivery, status=202
)
async def resend_delivery(exchange: Exchange) -> WebhookDelivery:
    """Send a delivery again that is over."""
    return await exchange.runtime.webhooks.resend(exchange.path["webhook_id"], exchange.path["delivery_id"])
