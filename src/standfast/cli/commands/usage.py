"""``usage``: requests and tokens of the runs in a store, added up."""

from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
import typer

from standfast.base.errors import NotFound
from standfast.base.usage import Usage
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_runtime, require_existing_store
from standfast.cli.commands.runs import parse_age
from standfast.models.prices import compute_cost
from standfast.runs.core.conversion import from_usage_record
from standfast.runs.core.state import UsageRecord
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import Event, RunInfo

COLUMNS = ("requests", "input_tokens", "output_tokens", "total_tokens", "cost")
PAGE = 200


@command
async def usage(
    by: Annotated[Literal["owner", "session", "model", "day"], typer.Option(help="What each row stands for.")] = "day",
    since: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only responses of this period: 30d, 12h, 90m.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Add up the requests, tokens and US dollars of all runs that are still in the store. Days are those of UTC.

    The cost needs the extra `prices`, and leaves out models whose price is not known.

    It reads the events of the runs, so it takes longer the more there are; --since limits that.

    standfast usage --by model --since 30d
    """
    oldest = None if since is None else datetime.now(UTC) - parse_age(since)
    output = CommandPrinter(as_json)
    totals: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    with output.show_status("reading"):
        async with open_runtime(require_existing_store(store)) as rt:
            owners = dict[str, str]()
            async for info, event in read_responses(rt, oldest):
                used = event.data.get("usage") or {}
                key = await find_key(rt, by, info, event, owners)
                counts = {
                    "requests": used.get("requests", 0),
                    "input_tokens": used.get("input", 0),
                    "output_tokens": used.get("output", 0),
                    "total_tokens": used.get("total", 0),
                    "cost": compute_cost(event.data.get("model"), read_usage(event)) or 0,
                }
                for name, count in counts.items():
                    totals[key][name] += count
    rows: list[dict[str, Any]] = [{by: key, **{name: totals[key][name] for name in COLUMNS}} for key in sorted(totals)]
    if not as_json:
        rows = [{**row, "cost": f"${row['cost']:.4f}"} for row in rows]
    output.print_table((by, *COLUMNS), rows, empty="no model has responded yet")


async def read_responses(rt: Runtime, oldest: datetime | None) -> AsyncIterator[tuple[RunInfo, Event]]:
    """Yield every response of a model with its run, the newest runs first."""
    since, last = 0.0 if oldest is None else oldest.timestamp(), None
    while page := await rt.runs(limit=PAGE, after=last, newest_first=True):
        for info in page:
            if info.locked or info.updated_at < since or not info.steps:
                continue
            async for event in (await rt.run(info.run_id)).events():
                if event.type == "model.answered" and event.at >= since:
                    yield info, event
                if event.seq is not None and event.seq >= info.steps:
                    break
        last = page[-1]


def read_usage(event: Event) -> Usage:
    """Return the tokens of a response."""
    return from_usage_record(msgspec.convert(event.data.get("usage") or {}, UsageRecord))


async def find_key(rt: Runtime, by: str, info: RunInfo, event: Event, owners: dict[str, str]) -> str:
    """Return the row that a response belongs to."""
    if by == "day":
        return str((datetime.fromtimestamp(0, UTC) + timedelta(seconds=event.at)).date())
    if by == "model":
        return str(event.data.get("model") or "unknown")
    session = info.session_id or "(no session)"
    if by == "session" or info.session_id is None:
        return session
    if session not in owners:
        owners[session] = await find_owner(rt.store, session)
    return owners[session]


async def find_owner(store: Any, session_id: str) -> str:
    try:
        return (await store.describe(session_id)).owner or "(no owner)"
    except NotFound:
        return "(deleted)"
