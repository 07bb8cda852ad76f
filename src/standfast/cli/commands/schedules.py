"""``schedules``: runs that start at given times."""

from typing import Annotated, Any

import msgspec
import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_time
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_runtime, require_existing_store
from standfast.cli.commands.runs import parse_age
from standfast.runtime.types import Schedule

app = typer.Typer(no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


@app.command("set")
@command
async def set_(
    name: Name,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of the agent.")],
    input: Annotated[str, typer.Argument(metavar="INPUT", help="The input of each run.")],
    cron: Annotated[str | None, typer.Option(help="When: minute, hour, day, month and day of the week.")] = None,
    every: Annotated[str | None, typer.Option(metavar="AGE", help="Or an interval: 90s, 12h, 7d.")] = None,
    timezone: Annotated[str, typer.Option(help="The time zone of --cron, such as Europe/Berlin.")] = "UTC",
    session: Annotated[str | None, typer.Option(help="The session that all its runs share.")] = None,
    owner: Annotated[str | None, typer.Option(help="The owner of the sessions of its runs.")] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Start a run although the last one has not ended.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a schedule, or replace the one with this name. A process that executes the agent starts the runs.

    standfast schedules set nightly reporter "Write the report." --cron "0 3 * * *" --timezone Europe/Berlin
    """
    seconds = None if every is None else parse_age(every).total_seconds()
    async with open_runtime(store) as runtime:
        made = await runtime.schedules.set(
            name,
            agent,
            input,
            cron=cron,
            every=seconds,
            timezone=timezone,
            session_id=session,
            owner=owner,
            overlap=overlap,
        )
    print_schedule(made, as_json)


@app.command("list")
@command
async def list_(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List all schedules, with their next time and their last run.

    standfast schedules list --json
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        found = await runtime.schedules.list()
    columns = ("name", "agent", "when", "next", "last_run", "problem")
    CommandPrinter(as_json).print_table(columns, [to_row(one) for one in found], empty="no schedules")


@app.command()
@command
async def pause(name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Start no more runs until `schedules resume`.

    standfast schedules pause nightly
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        print_schedule(await runtime.schedules.pause(name), as_json)


@app.command()
@command
async def resume(name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Continue a paused schedule with its next time.

    standfast schedules resume nightly
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        print_schedule(await runtime.schedules.resume(name), as_json)


@app.command()
@command
async def delete(name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Delete a schedule. Its runs stay.

    standfast schedules delete nightly
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        await runtime.schedules.delete(name)
    CommandPrinter(as_json).print_result({"deleted": name}, f"deleted {escape(name)}")


def print_schedule(schedule: Schedule, as_json: bool) -> None:
    row = to_row(schedule)
    text = f"{escape(schedule.name)}: {escape(schedule.agent)}, {row['when']}, next {row['next']}"
    CommandPrinter(as_json).print_result(row, text)


def to_row(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of a schedule with those of a listing."""
    when = schedule.cron if schedule.every is None else f"every {schedule.every:g} s"
    if schedule.cron is not None:
        when = f"{when} {schedule.timezone}"
    if schedule.locked:
        when = "encrypted"
    problem = schedule.problem.message if schedule.problem is not None else None
    if problem is None and schedule.skipped:
        problem = f"skipped {schedule.skipped}: the last run has not ended"
    fields: dict[str, Any] = msgspec.to_builtins(schedule)
    return fields | {
        "when": when,
        "next": "paused" if schedule.is_paused else format_time(schedule.next_at),
        "last_run": schedule.last_run_id,
        "problem": problem,
    }
