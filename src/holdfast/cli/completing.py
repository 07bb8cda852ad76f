"""Ids that the shell offers when Tab is pressed: those in the store that the command would use."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from holdfast.cli.opening import DEFAULT_STORE, checked, existing
from holdfast.runtime.runtime import Runtime

Offer = tuple[str, str]
"""An id, and a word about it for shells that show one."""

MOST = 100
PATIENCE = 2.0
"""Seconds after which a store that is slow to answer offers nothing: somebody waits at the prompt."""


def sessions(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return offered(ctx, incomplete, session_ids)


def runs(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return offered(ctx, incomplete, run_ids)


def approvals(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return offered(ctx, incomplete, approval_ids)


def offered(
    ctx: typer.Context, incomplete: str, find: Callable[[str, str], Coroutine[Any, Any, list[Offer]]]
) -> list[Offer]:
    """What can be found and begins so. A store that is not there, or does not answer, is no reason for words."""
    store = ctx.params.get("store") or os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE
    try:
        found = asyncio.run(asyncio.wait_for(find(store, incomplete), PATIENCE))
    except Exception:  # noqa: BLE001 - the prompt is no place for them
        return []
    return [(name, about) for name, about in found if name.startswith(incomplete)]


async def session_ids(store: str, begin: str) -> list[Offer]:
    async with existing(store) as opened:
        found = await opened.sessions(query=begin or None, limit=MOST)
    return [(info.session_id, f"{info.head.length} items") for info in found]


async def run_ids(store: str, begin: str) -> list[Offer]:
    from holdfast.cli.runs import latest

    async with Runtime.open(checked(store)) as rt:
        return [(info.run_id, f"{info.status}, {info.agent}") for info in await latest(rt, MOST)]


async def approval_ids(store: str, begin: str) -> list[Offer]:
    async with Runtime.open(checked(store)) as rt:
        return [(one.id, f"{one.status}, {one.tool}") for one in await rt.approvals()]
