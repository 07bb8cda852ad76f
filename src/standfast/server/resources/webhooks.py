"""``/webhooks``: servers that are notified when runs stop and approvals change."""

from standfast.runtime.types import NewWebhook, Webhook, WebhookDelivery
from standfast.server.endpoints import MANAGE, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import WebhookRequest

endpoints = EndpointTable()


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
