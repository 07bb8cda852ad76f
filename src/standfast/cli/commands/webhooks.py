"""``webhooks``: servers that are notified when runs stop and approvals change."""

from typing import Annotated

import msgspec
import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_time
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_runtime, require_existing_store

app = typer.Typer(no_args_is_help=True, add_completion=False)

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The id that `webhooks list` shows.")]


@app.command()
@command
async def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent: https://...")],
    event: Annotated[
        list[str] | None, typer.Option(help="An event such as run.failed, several times for several; by default all.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Allow http, and a server in this machine's network.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a webhook and print the secret that signs its requests, which cannot be shown again.

    standfast webhooks create https://example.com/hook --event run.failed --event approval.requested
    """
    async with open_runtime(store) as runtime:
        made = await runtime.webhooks.create(url, events=event or None, private=private)
    text = f"{escape(made.secret)}\n\nwebhook {made.webhook.id}. Keep the secret: it is shown this once."
    CommandPrinter(as_json).print_result({"secret": made.secret, **msgspec.to_builtins(made.webhook)}, text)


@app.command("list")
@command
async def list_(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List all webhooks, without their secrets.

    standfast webhooks list --json
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        found = await runtime.webhooks.list()
    rows = [
        {**msgspec.to_builtins(one), "url": one.url or "encrypted", "events": ", ".join(one.events)} for one in found
    ]
    CommandPrinter(as_json).print_table(("id", "url", "events"), rows, empty="no webhooks")


@app.command()
@command
async def deliveries(webhook: WebhookId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the deliveries of a webhook, latest first.

    standfast webhooks deliveries webhook_01k9x0c8m2
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        found = await runtime.webhooks.deliveries(webhook)
    rows = [
        {**msgspec.to_builtins(one), "created": format_time(one.created_at), "next": format_time(one.next_at)}
        for one in found
    ]
    columns = ("id", "event", "status", "attempts", "created", "next", "problem")
    CommandPrinter(as_json).print_table(columns, rows, empty="no deliveries")


@app.command("test")
@command
async def send_test(webhook: WebhookId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Send an event of type test. A process that executes agents sends it.

    standfast webhooks test webhook_01k9x0c8m2
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        sent = await runtime.webhooks.send_test(webhook)
    text = f"{sent.id} will be sent: see `standfast webhooks deliveries {escape(webhook)}`"
    CommandPrinter(as_json).print_result(msgspec.to_builtins(sent), text)


@app.command()
@command
async def resend(
    webhook: WebhookId,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="The id that `webhooks deliveries` shows.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Send a delivery again that has failed, or was delivered.

    standfast webhooks resend webhook_01k9x0c8m2 msg_01k9x0c8m2
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        sent = await runtime.webhooks.resend(webhook, delivery)
    CommandPrinter(as_json).print_result(msgspec.to_builtins(sent), f"{sent.id} will be sent again")


@app.command()
@command
async def delete(webhook: WebhookId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Delete a webhook with its deliveries.

    standfast webhooks delete webhook_01k9x0c8m2
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        await runtime.webhooks.delete(webhook)
    CommandPrinter(as_json).print_result({"deleted": webhook}, f"deleted {escape(webhook)}")
