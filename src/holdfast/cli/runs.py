"""Durable runs: what there are, what happened in them, and what should."""

from collections import deque
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from holdfast.cli import completing
from holdfast.cli.failing import command
from holdfast.cli.following import Screen, complain, exit_code, plain, told, watched
from holdfast.cli.loading import ModelName, chosen_agent
from holdfast.cli.opening import DEFAULT_STORE, StoreUrl, checked
from holdfast.cli.output import AsJson, Output, moment, print_json, print_utf8
from holdfast.runtime.contract import Event, RunInfo
from holdfast.runtime.records import Status
from holdfast.runtime.runtime import Runtime

app = typer.Typer(no_args_is_help=True)

PAGE = 500

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=completing.runs)]


def described(info: RunInfo) -> dict[str, Any]:
    reason = None if info.reason is None else info.reason.message
    return {**asdict(info), "id": info.run_id, "reason": reason, "updated": moment(info.updated_at)}


@app.command("list")
@command
async def list_(
    status: Annotated[Status | None, typer.Option(help="Only those with this status.")] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Only those of this conversation.", autocompletion=completing.sessions),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first.

    holdfast runs list --status waiting
    """
    output = Output(as_json)
    with output.busy("reading"):
        async with Runtime.open(checked(store), agents=[]) as rt:
            found = await latest(rt, limit, status=status, session_id=session)
    columns = ("id", "status", "agent", "session_id", "steps", "updated", "reason")
    output.table(columns, map(described, found), empty="no runs")


async def latest(rt: Runtime, limit: int, **which: Any) -> list[RunInfo]:
    """The newest runs, newest first. A store lists them from the oldest on."""
    found: deque[RunInfo] = deque(maxlen=limit)
    page: list[RunInfo] = await rt.runs(**which, limit=PAGE)
    while page:
        found.extend(page)
        page = await rt.runs(**which, limit=PAGE, after=page[-1]) if len(page) == PAGE else []
    return list(reversed(found))


@app.command()
@command
async def show(run_id: RunId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show a run: its status, what it waits for, and what came of it.

    holdfast runs show run_123
    """
    async with Runtime.open(checked(store), agents=[]) as rt:
        handle = await rt.run(run_id)
        info = await handle.info()
        outcome = await handle.wait() if info.status not in ("queued", "running") else None
    output = Output(as_json)
    facts = described(info) | ({} if outcome is None else told(outcome))
    output.facts(facts, ("id", "status", "agent", "session_id", "key", "parent", "steps", "updated", "reason"))
    if as_json or outcome is None:
        return
    if outcome.final_output is not None:
        output.console.print(f"\n{escape(str(plain(outcome.final_output)))}")
    complain(outcome, store)


@app.command()
@command
async def events(
    run_id: RunId,
    after: Annotated[int, typer.Option(help="Only those behind this number.")] = 0,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Print what happened in a run, then what happens, until it ends or waits.

    holdfast runs events run_123 --json
    """
    console = Output(as_json).console
    async with Runtime.open(checked(store), agents=[]) as rt:
        handle = await rt.run(run_id)
        async for event in handle.events(after=after):
            if as_json:
                print_utf8(msgspec.json.encode(asdict(event)))
            elif not event.live:
                console.print(line_of(event))


def line_of(event: Event) -> str:
    data = msgspec.json.encode(event.data).decode()
    cut = data if len(data) <= 200 else f"{data[:200]}…"
    return f"[dim]{event.seq:>5}  {moment(event.at)}[/]  [bold]{escape(event.type)}[/]  {escape(cut)}"


@app.command()
@command
async def resume(
    run_id: RunId,
    agent: Annotated[str, typer.Option("--agent", "-a", envvar="HOLDFAST_AGENT", help="module:attribute or a file.")],
    model: ModelName = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Have calls refused whose tools the agent no longer has.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let a run go on here. Exit code 3 when it waits for an approval.

    holdfast runs resume run_123 --agent app:support
    """
    async with Runtime.open(checked(store), agents=[]) as rt:
        before = await (await rt.run(run_id)).info()
    async with chosen_agent(agent, model) as chosen, Runtime.open(store, agents=[chosen]) as rt:
        run = await rt.resume(run_id, accept_changes=accept_changes)
        seen = 0 if before.status == "completed" else before.steps
        outcome = await watched(run, None if as_json else Screen(), after=seen)
    if as_json:
        print_json(told(outcome))
    else:
        complain(outcome, store, agent=agent)
    return exit_code(outcome)


@app.command()
@command
async def cancel(
    run_id: RunId,
    now: Annotated[bool, typer.Option("--now", help="Do not let it finish its turn.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Stop a run. What was done is kept, and it can be resumed.

    holdfast runs cancel run_123 --now
    """
    async with Runtime.open(checked(store), agents=[]) as rt:
        await rt.cancel(run_id, mode="immediate" if now else "after_turn")
        info = await (await rt.run(run_id)).info()
    Output(as_json).value(described(info), f"{escape(run_id)} {stopped(info)}")


def stopped(info: RunInfo) -> str:
    return "is cancelled" if info.status == "cancelled" else f"is {info.status} and was asked to stop"


@app.command()
@command
async def fork(
    run_id: RunId,
    at: Annotated[int | None, typer.Option(help="The last event that the new run shares (see `events`).")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Begin a new run that shares the beginning of another. Resume it to let it go on.

    holdfast runs fork run_123 --at 4
    """
    async with Runtime.open(checked(store), agents=[]) as rt:
        made = await rt.fork(run_id, at=at)
        info = await made.info()
    Output(as_json).value(described(info), f"{escape(made.id)} shares the beginning of {escape(run_id)}")
