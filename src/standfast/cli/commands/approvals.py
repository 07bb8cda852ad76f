"""``approvals``: list, show and decide pending approvals."""

import asyncio
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Annotated, Any, get_args

import msgspec
import typer
from rich.console import Console

from standfast.agents.errors import UncertainCall
from standfast.base.errors import InvalidInput
from standfast.cli.commands import _store
from standfast.cli.commands._agent_loader import open_agent
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, print_json, print_utf8
from standfast.cli.commands._run_view import (
    NOT_DONE_MESSAGE,
    DecidedBy,
    RunView,
    approval_to_dict,
    edit_arguments,
    get_exit_code,
    get_login_name,
    outcome_to_dict,
    print_failure,
    prompt_approval,
    watch_run,
)
from standfast.cli.commands._store import (
    DEFAULT_STORE,
    StoreUrl,
    find_approval,
    format_store_option,
    is_server,
    require_existing_store,
)
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import Approval, ApprovalStatus

app = typer.Typer(no_args_is_help=True, add_completion=False)

ApprovalId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The approval's id, or a unique prefix of it.",
        autocompletion=_store.complete_approvals,
    ),
]
AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent", "-a", help="Resume the run in this process with this agent. Default: a running program resumes it."
    ),
]


UNCERTAIN_REMEDY = (
    "find out, then use `standfast approvals done` or `not-done`. To have it made again: `approve --again`"
)


@asynccontextmanager
async def open_runtime(store: str, agent: str | None) -> AsyncIterator[Runtime]:
    """Open a runtime on the store; it executes runs of ``agent`` if one is named."""
    async with AsyncExitStack() as stack:
        url = require_existing_store(store)
        agents = [await stack.enter_async_context(open_agent(agent))] if agent else []
        yield await stack.enter_async_context(_store.open_runtime(url, agents=agents))


@app.command("list")
@command
async def list_(
    status: Annotated[
        ApprovalStatus,
        typer.Option(metavar="STATUS", help=f"Only approvals that are {', '.join(get_args(ApprovalStatus))}."),
    ] = "pending",
    every: Annotated[bool, typer.Option("--all", help="Approvals of any status.")] = False,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Only approvals of this session.", autocompletion=_store.complete_sessions),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Only approvals of this run.", autocompletion=_store.complete_runs)
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only approvals in sessions of this owner.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List approvals, by default the pending ones.

    standfast approvals list --json
    """
    async with _store.open_runtime(require_existing_store(store)) as rt:
        found = await rt.approvals(
            status=None if every else status, session_id=session, run_id=run, owner=owner, limit=limit
        )
    note = ["note"] if any(approval.kind == "uncertain" or approval.locked for approval in found) else []
    columns = ("id", "tool", "arguments", *note, "session_id", "requested", *(["status"] if every else []))
    CommandPrinter(as_json).print_table(columns, map(approval_to_dict, found), empty="no pending approvals")
    if not as_json and len(found) == limit:
        typer.echo(f"The first {limit}; --limit shows more.", err=True)


@app.command()
@command
async def show(approval_id: ApprovalId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Show an approval with its exact arguments and its decision.

    standfast approvals show approval_123
    """
    async with _store.open_runtime(require_existing_store(store)) as rt:
        approval = await find_approval(rt, approval_id)
    names = ("id", "status", "kind", "note", "tool", "arguments", "digest", "idempotency_key", "agent", "session_id",
             "run", "requested", "decided_by", "message", "edited", "output")  # fmt: skip
    CommandPrinter(as_json).print_fields(approval_to_dict(approval), names)


@app.command()
@command
async def approve(
    approval_id: ApprovalId,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the arguments first.")] = False,
    arguments: Annotated[str | None, typer.Option(help="Replacement arguments, as JSON.")] = None,
    always: Annotated[
        bool, typer.Option("--always", help="Apply this answer to all later calls of this tool in the session.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Repeat a call that may have taken effect already.")] = False,
    message: Annotated[str | None, typer.Option("-m", "--message", help="A note for the record.")] = None,
    by: DecidedBy = None,
    agent: AgentOption = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Approve a tool call. If it may have taken effect already, it is made again only with --again.

    standfast approvals approve approval_123 --arguments '{"amount": 5}' --agent app:support
    """
    if edit and arguments is not None:
        raise InvalidInput("use either --edit or --arguments, not both")
    if (edit or arguments is not None) and agent is None and not is_server(store):
        raise InvalidInput("edited arguments are validated by the tool: name its agent with --agent")
    async with open_runtime(store, agent) as rt:
        approval = await find_approval(rt, approval_id)
        if approval.kind == "uncertain" and approval.status == "pending" and not again:
            raise UncertainCall(approval.tool, approval.call_id, remedy=UNCERTAIN_REMEDY)
        edited = edit_arguments(approval) if edit else None if arguments is None else parse_arguments(arguments)
        options = {"arguments": edited, "always": always, "message": message, "by": by or get_login_name()}
        verdict = "again" if again else "approve"
        return await submit_decision(rt, approval, verdict, agent, store, as_json, **options)


@app.command()
@command
async def reject(
    approval_id: ApprovalId,
    message: Annotated[str | None, typer.Option("-m", "--message", help="The reason; it is sent to the model.")] = None,
    always: Annotated[
        bool, typer.Option("--always", help="Apply this answer to all later calls of this tool in the session.")
    ] = False,
    by: DecidedBy = None,
    agent: AgentOption = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Reject a tool call.

    standfast approvals reject approval_123 -m "too expensive"
    """
    async with open_runtime(store, agent) as rt:
        approval = await find_approval(rt, approval_id)
        options = {"always": always, "message": message, "by": by or get_login_name()}
        return await submit_decision(rt, approval, "reject", agent, store, as_json, **options)


@app.command()
@command
async def done(
    approval_id: ApprovalId,
    output: Annotated[str, typer.Option(help="The output of the call.")],
    by: DecidedBy = None,
    agent: AgentOption = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Record that an uncertain call did take effect, with its output.

    standfast approvals done approval_123 --output "paid, receipt 9"
    """
    async with open_runtime(store, agent) as rt:
        approval = await find_approval(rt, approval_id)
        return await submit_decision(
            rt, approval, "done", agent, store, as_json, output=output, by=by or get_login_name()
        )


@app.command("not-done")
@command
async def not_done(
    approval_id: ApprovalId,
    message: Annotated[str, typer.Option("-m", "--message", help="The message for the model.")] = NOT_DONE_MESSAGE,
    by: DecidedBy = None,
    agent: AgentOption = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Record that an uncertain call did not take effect. It is not made again.

    standfast approvals not-done approval_123
    """
    async with open_runtime(store, agent) as rt:
        approval = await find_approval(rt, approval_id)
        if approval.kind != "uncertain":
            raise InvalidInput("not-done is only for a call that may have happened: use reject")
        options = {"message": message, "by": by or get_login_name()}
        return await submit_decision(rt, approval, "reject", agent, store, as_json, **options)


async def submit_decision(
    rt: Runtime, approval: Approval, decision: Any, agent: str | None, store: str, as_json: bool, **options: Any
) -> int:
    run = await rt.run(approval.run_id)
    steps = (await run.info()).steps
    await rt.decide(approval.id, decision, **options)
    if agent is None:
        decided = await rt.approval(approval.id)
        CommandPrinter(as_json).print_result(approval_to_dict(decided), f"{escape(approval.id)} is {decided.status}")
        if not as_json:
            console = Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)
            console.print("[dim]  a running program with the agent resumes the run; otherwise:[/]")
            command_line = shlex.join(
                ["standfast", "runs", "resume", approval.run_id, "--agent", "AGENT", *format_store_option(store)]
            )
            console.print(f"[dim]  {escape(command_line)}[/]")
        return 0
    outcome = await watch_run(run, None if as_json else RunView(), after=steps)
    if as_json:
        print_json(outcome_to_dict(outcome))
    else:
        print_failure(outcome, store, agent=agent)
    return get_exit_code(outcome)


def parse_arguments(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"--arguments is not JSON: {error}") from None


@app.command()
@command
async def watch(
    every: Annotated[float, typer.Option(min=0.05, help="Polling interval in seconds.")] = 1.0,
    agent: AgentOption = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Wait for approvals and prompt for each. Ctrl-C quits.

    With --json each new approval is printed as one line, without a prompt.

    standfast approvals watch --agent app:support
    """
    view, seen = RunView(), set[str]()
    if not as_json:
        view.print_line("[dim]waiting for approvals; Ctrl-C quits[/]")
    async with open_runtime(store, agent) as rt, aclosing(poll_pending(rt, every)) as pending:
        async for approval in pending:
            if approval.id in seen:
                continue
            seen.add(approval.id)
            if as_json:
                print_utf8(msgspec.json.encode(approval_to_dict(approval)))
            elif approval.locked:
                view.print_line(f"[yellow]?[/] {escape(approval.id)} is {_store.describe_lock()}")
            else:
                await resolve_approval(rt, approval, view, store, agent=agent)


async def resolve_approval(rt: Runtime, approval: Approval, view: RunView, store: str, *, agent: str | None) -> None:
    """Prompt for a decision and print it; follow the run if this process executes it."""
    run = await rt.run(approval.run_id)
    steps = (await run.info()).steps
    if await prompt_approval(rt, approval, view, editable=agent is not None):
        decided = await rt.approval(approval.id)
        view.print_line(f"[dim]  {escape(decided.status)} by {escape(str(decided.decided_by))}[/]")
        if agent is not None:
            print_failure(await watch_run(run, view, after=steps), store, agent=agent)


async def poll_pending(rt: Runtime, interval: float) -> Any:
    while True:
        for approval in await rt.approvals(status="pending"):
            if approval.expires_at is None or approval.expires_at > time.time():
                yield approval
        await asyncio.sleep(interval)
