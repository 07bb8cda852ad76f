"""``keys``: create, list and revoke the API keys of a store."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_time
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_admin
from standfast.cli.commands.runs import parse_age
from standfast.history.store import open_store
from standfast.server.auth.keys import ApiKey

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
@command
async def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for, such as laptop or nightly-report.")],
    owner: Annotated[str, typer.Option("--owner", help="The owner of the sessions that the key may use.")],
    role: Annotated[str, typer.Option("--role", help="viewer, user, approver, operator or admin.")] = "user",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="AGE", help="Let the key expire after this time: 90d, 12h, 30m.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a key and print its secret, which is not stored and cannot be shown again.

    standfast keys create laptop --owner ann --role approver --expires 90d
    """
    expires_at = None if expires is None else time.time() + parse_age(expires).total_seconds()
    async with open_admin(store, open_store) as admin:
        made = await admin.create_key(name, role=role, owner=owner, expires_at=expires_at)
    text = (
        f"{escape(made.secret)}\n\nkey {made.key.id}: {escape(made.key.name)}, {made.key.role} of "
        f"{escape(made.key.owner)}. Keep the secret: it is shown this once."
    )
    CommandPrinter(as_json).print_result({"secret": made.secret, **key_to_dict(made.key)}, text)


@app.command("list")
@command
async def list_(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List all keys, including expired and revoked ones, without their secrets.

    standfast keys list --json
    """
    async with open_admin(store) as admin:
        keys = await admin.keys()
    now = time.time()
    rows = [{**key_to_dict(key), **describe_times(key, now)} for key in keys]
    columns = ("id", "name", "role", "owner", "status", "created", "expires", "last_used")
    CommandPrinter(as_json).print_table(columns, rows, empty="no keys")


@app.command()
@command
async def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The id that `keys list` shows.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Revoke a key. Servers refuse it within seconds.

    standfast keys revoke 01k9x0c8m2
    """
    async with open_admin(store) as admin:
        revoked = await admin.revoke_key(key)
    CommandPrinter(as_json).print_result(key_to_dict(revoked), f"revoked {revoked.id}: {escape(revoked.name)}")


def key_to_dict(key: ApiKey) -> dict[str, Any]:
    return msgspec.structs.asdict(key)


def describe_times(key: ApiKey, now: float) -> Mapping[str, str]:
    status = "active"
    if key.revoked_at is not None:
        status = "revoked"
    elif key.expires_at is not None and key.expires_at <= now:
        status = "expired"
    return {
        "status": status,
        "created": format_time(key.created_at),
        "expires": format_time(key.expires_at),
        "last_used": format_time(key.last_used_at),
    }
