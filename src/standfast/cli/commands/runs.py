"""``runs``: list, show, follow, resume, cancel, fork, delete, prune and rekey durable runs."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, get_args

import msgspec
import typer

from standfast.base.errors import InvalidInput
from standfast.cli.commands import _store
from standfast.cli.commands._agent_loader import ModelOption, open_agent
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import (
    AsJson,
    CommandPrinter,
    escape,
    escape_lines,
    format_count,
    format_time,
    print_json,
    print_utf8,
)
from standfast.cli.commands._prompt import Yes, confirm
from standfast.cli.commands._run_view import (
    RunView,
    get_exit_code,
    outcome_to_dict,
    print_failure,
    print_progress_hint,
    to_json_value,
    watch_run,
)
from standfast.cli.commands._store import (
    DEFAULT_STORE,
    StoreUrl,
    describe_lock,
    find_run,
    open_runtime,
    require_encryption_keys,
    require_existing_store,
    require_store,
)
from standfast.runtime.types import Event, PruneReport, RunInfo, RunStatus

app = typer.Typer(no_args_is_help=True, add_completion=False)

AGE_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's id, or a unique prefix of it.", autocompletion=_store.complete_runs),
]


def run_to_dict(info: RunInfo) -> dict[str, Any]:
    reason = describe_lock() if info.locked else None if info.reason is None else info.reason.message
    return {**asdict(info), "id": info.run_id, "reason": reason, "updated": format_time(info.updated_at)}


@app.command("list")
@command
async def list_(
    status: Annotated[
        RunStatus | None, typer.Option(metavar="STATUS", help=f"Only runs that are {', '.join(get_args(RunStatus))}.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Only runs of this session.", autocompletion=_store.complete_sessions),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only runs in sessions of this owner.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first.

    standfast runs list --status waiting
    """
    output = CommandPrinter(as_json)
    with output.show_status("reading"):
        async with open_runtime(require_existing_store(store)) as rt:
            found = await rt.runs(status=status, session_id=session, owner=owner, limit=limit, newest_first=True)
    columns = ("id", "status", "agent", "session_id", "steps", "updated", "reason")
    output.print_table(columns, map(run_to_dict, found), empty="no runs")


@app.command()
@command
async def show(run_id: RunId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show a run: its status, what it waits for, and its result.

    standfast runs show run_123
    """
    async with open_runtime(require_existing_store(store)) as rt:
        handle = await find_run(rt, run_id)
        info = await handle.info()
        outcome = None if info.locked or info.status in ("queued", "running") else await handle.wait()
    output = CommandPrinter(as_json)
    facts = run_to_dict(info) | ({} if outcome is None else outcome_to_dict(outcome))
    output.print_fields(facts, ("id", "status", "agent", "session_id", "key", "parent", "steps", "updated", "reason"))
    if as_json:
        return
    if outcome is None:
        print_progress_hint(info.status, info.run_id, store)
        return
    if outcome.final_output is not None:
        output.console.print(f"\n{escape_lines(to_json_value(outcome.final_output))}")
    print_failure(outcome, store)


@app.command()
@command
async def events(
    run_id: RunId,
    after: Annotated[int, typer.Option(help="Only events after this sequence number.")] = 0,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Print the events of a run and follow it until it ends or waits.

    standfast runs events run_123 --json
    """
    console = CommandPrinter(as_json).console
    async with open_runtime(require_existing_store(store)) as rt:
        handle = await find_run(rt, run_id)
        async for event in handle.events(after=after):
            if as_json:
                print_utf8(msgspec.json.encode(asdict(event)))
            elif not event.live:
                console.print(format_event(event))


def format_event(event: Event) -> str:
    data = msgspec.json.encode(event.data).decode()
    shortened = data if len(data) <= 200 else f"{data[:200]}…"
    return f"[dim]{event.seq:>5}  {format_time(event.at)}[/]  [bold]{escape(event.type)}[/]  {escape(shortened)}"


@app.command()
@command
async def resume(
    run_id: RunId,
    agent: Annotated[str, typer.Option("--agent", "-a", envvar="STANDFAST_AGENT", help="module:attribute or a file.")],
    model: ModelOption = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Refuse pending calls to tools that no longer exist.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Resume a run in this process. Exit code 3 if it waits for approval.

    standfast runs resume run_123 --agent app:support
    """
    async with open_runtime(require_existing_store(store)) as rt:
        before = await (await find_run(rt, run_id)).info()
        run_id = before.run_id
    async with open_agent(agent, model) as chosen, open_runtime(store, agents=[chosen]) as rt:
        run = await rt.resume(run_id, accept_changes=accept_changes)
        seen = 0 if before.status == "completed" else before.steps
        outcome = await watch_run(run, None if as_json else RunView(), after=seen)
    if as_json:
        print_json(outcome_to_dict(outcome))
    else:
        print_failure(outcome, store, agent=agent)
    return get_exit_code(outcome)


@app.command()
@command
async def cancel(
    run_id: RunId,
    now: Annotated[bool, typer.Option("--now", help="Stop immediately instead of after the current turn.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Cancel a run. Its progress is kept, and it can be resumed.

    standfast runs cancel run_123 --now
    """
    async with open_runtime(require_existing_store(store)) as rt:
        run = await find_run(rt, run_id)
        await run.cancel(mode="immediate" if now else "after_turn")
        info = await run.info()
    CommandPrinter(as_json).print_result(run_to_dict(info), f"{escape(info.run_id)} {format_cancellation(info)}")


def format_cancellation(info: RunInfo) -> str:
    return "is cancelled" if info.status == "cancelled" else f"is {info.status}; cancellation was requested"


@app.command()
@command
async def fork(
    run_id: RunId,
    at: Annotated[
        int | None, typer.Option(help="The sequence number of the last event to share (see `events`).")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a run that shares the first events of another. Resume it to continue.

    standfast runs fork run_123 --at 4
    """
    async with open_runtime(require_existing_store(store)) as rt:
        run_id = (await find_run(rt, run_id)).id
        made = await rt.fork(run_id, at=at)
        info = await made.info()
    CommandPrinter(as_json).print_result(run_to_dict(info), f"{escape(made.id)} is a fork of {escape(run_id)}")


@app.command()
@command
async def delete(run_id: RunId, yes: Yes = False, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Delete a run that has ended, with its events and approvals. Its session keeps its items.

    standfast runs delete run_123 --yes
    """
    async with open_runtime(require_existing_store(store)) as rt:
        info = await (await find_run(rt, run_id)).info()
        run_id = info.run_id
        confirm(f"Delete {run_id} with its {info.steps} events?", yes=yes)
        await rt.delete(run_id)
    CommandPrinter(as_json).print_result({"id": run_id, "deleted": True}, f"{escape(run_id)} is deleted")


@app.command()
@command
async def prune(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Delete runs that ended earlier: 30d, 12h, 90m."),
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Keep at most this many ended runs.")] = None,
    yes: Yes = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Delete ended runs by age and number. Runs that have not ended are never touched.

    standfast runs prune --older-than 30d --keep 1000 --yes
    """
    age = None if older_than is None else parse_age(older_than)
    if age is None and keep is None:
        raise InvalidInput("say which runs to delete: --older-than, --keep or both")
    async with open_runtime(require_existing_store(store)) as rt:
        confirm("Delete the runs that are older or more than that?", yes=yes)
        report = await rt.prune(older_than=age, keep=keep)
    CommandPrinter(as_json).print_result(asdict(report), format_report(report))


@app.command()
@command
async def rekey(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Encrypt runs, approvals and workspaces again with the first key in STANDFAST_ENCRYPTION_KEY; the others decrypt.

    It can be interrupted and repeated. For sessions, see `standfast sessions rekey`.

    standfast runs rekey
    """
    require_encryption_keys()
    async with open_runtime(require_existing_store(require_store(store))) as rt:
        report = await rt.rekey()
    text = (
        f"encrypted again: {format_count(len(report.runs), 'run')}, {format_count(report.approvals, 'approval')},"
        f" {format_count(len(report.workspaces), 'workspace')}"
    )
    failures = [f"[red]{escape(name)}: {escape(reason)}[/]" for name, reason in report.failed.items()]
    CommandPrinter(as_json).print_result(asdict(report), "\n".join([text, *failures]))
    return FAILED if report.failed else 0


def parse_age(text: str) -> timedelta:
    number, unit = text[:-1], AGE_UNITS.get(text[-1:])
    if unit is None or not number.isdecimal():
        raise InvalidInput(f"{text!r} is not an age: use a number with s, m, h or d, such as 30d")
    return timedelta(**{unit: int(number)})


def format_report(report: PruneReport) -> str:
    shared = f"; {len(report.shared)} are kept for their forks" if report.shared else ""
    return f"{len(report.deleted)} runs deleted, {report.kept} kept{shared}"
