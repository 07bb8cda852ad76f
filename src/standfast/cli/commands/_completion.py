"""Ids that the shell offers when Tab is pressed: those in the store that the command would use."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from standfast.cli.commands._store import DEFAULT_STORE, open_existing_store, require_existing_store
from standfast.runtime.runtime import Runtime

Completion = tuple[str, str]
"""An id, and a word about it for shells that show one."""

MAX_COMPLETIONS = 100
TIMEOUT = 2.0
"""Seconds after which a store that is slow to answer offers nothing: somebody waits at the prompt."""


def complete_sessions(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_session_ids)


def complete_runs(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_run_ids)


def complete_approvals(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_approval_ids)


def complete(
    ctx: typer.Context, incomplete: str, find: Callable[[str, str], Coroutine[Any, Any, list[Completion]]]
) -> list[Completion]:
    """What can be found and begins so. A store that is not there, or does not answer, is no reason for words."""
    store = ctx.params.get("store") or os.environ.get("STANDFAST_STORE") or DEFAULT_STORE
    try:
        found = asyncio.run(asyncio.wait_for(find(store, incomplete), TIMEOUT))
    except Exception:  # noqa: BLE001 - the prompt is no place for them
        return []
    return [(name, about) for name, about in found if name.startswith(incomplete)]


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
