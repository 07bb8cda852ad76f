"""``owners``: let PostgreSQL keep the data of owners apart."""

from typing import Any

import typer

from standfast.base.errors import Unsupported
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_existing_store, require_store
from standfast.history.store import Store

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
@command
async def status(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show whether row-level security is on.

    standfast owners status --store postgresql://app@db/app
    """
    async with open_existing_store(require_store(store)) as opened:
        protected = await require_postgresql(opened).has_row_security()
    text = "protected by row-level security" if protected else "not protected: see standfast owners protect"
    CommandPrinter(as_json).print_result({"protected": protected}, text)


@app.command()
@command
async def protect(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Switch row-level security on, so that a store that is scoped to an owner sees nothing of others.

    It waits until no transaction uses the tables. Running programs are not interrupted.

    standfast owners protect --store postgresql://app@db/app
    """
    async with open_existing_store(require_store(store)) as opened:
        await require_postgresql(opened).enable_row_security()
    CommandPrinter(as_json).print_result({"protected": True}, "protected by row-level security")


@app.command()
@command
async def unprotect(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Switch row-level security off. Stores that are scoped to an owner fail from then on.

    standfast owners unprotect --store postgresql://app@db/app
    """
    async with open_existing_store(require_store(store)) as opened:
        await require_postgresql(opened).disable_row_security()
    CommandPrinter(as_json).print_result({"protected": False}, "not protected by row-level security")


def require_postgresql(store: Store) -> Any:
    """Return the backend of a store in an SQL database; the backend refuses others than PostgreSQL."""
    if not hasattr(store.backend, "has_row_security"):
        raise Unsupported("only PostgreSQL can keep the rows of owners apart")
    return store.backend
