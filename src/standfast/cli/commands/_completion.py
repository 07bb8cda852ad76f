"""Shell completion of ids, read from the store that the command would use."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from standfast.cli.commands._store import DEFAULT_STORE, open_existing_store, require_existing_store
from standfast.runtime.runtime import Runtime

Completion = tuple[str, str]
"""An id and a description, which some shells show."""

MAX_COMPLETIONS = 100
TIMEOUT = 2.0
"""Seconds after which a slow store yields no completions: the user waits at the prompt."""


def complete_sessions(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_session_ids)


def complete_runs(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_run_ids)


def complete_approvals(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_approval_ids)


def complete(
    ctx: typer.Context, incomplete: str, find: Callable[[str, str], Coroutine[Any, Any, list[Completion]]]
) -> list[Completion]:
    """Return the ids that start with ``incomplete``; nothing if the store is missing or does not answer."""
    store = ctx.params.get("store") or os.environ.get("STANDFAST_STORE") or DEFAULT_STORE
    try:
        ids = asyncio.run(asyncio.wait_for(find(store, incomplete), TIMEOUT))
    except Exception:  # noqa: BLE001 - must not disturb the prompt
        return []
    return [(name, description) for name, description in ids if name.startswith(incomplete)]


async def find_session_ids(store: str, prefix: str) -> list[Completion]:
    async with open_existing_store(store) as opened:
        found = await opened.sessions(query=prefix or None, limit=MAX_COMPLETIONS)
    return [(info.session_id, f"{info.head.length} items") for info in found]


async def find_run_ids(store: str, prefix: str) -> list[Completion]:
    from standfast.cli.commands.runs import list_latest_runs

    async with Runtime.open(require_existing_store(store)) as rt:
        return [(info.run_id, f"{info.status}, {info.agent}") for info in await list_latest_runs(rt, MAX_COMPLETIONS)]


async def find_approval_ids(store: str, prefix: str) -> list[Completion]:
    async with Runtime.open(require_existing_store(store)) as rt:
        return [(one.id, f"{one.status}, {one.tool}") for one in await rt.approvals()]
