"""``run`` and ``chat``: run an agent on one input or interactively, with its history in the store."""

import asyncio
import os
import shlex
import signal
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any

import msgspec
import typer

from standfast.agents.agent import Agent
from standfast.base.errors import StandfastError
from standfast.base.ids import new_id
from standfast.base.text import make_visible
from standfast.cli.commands import _store
from standfast.cli.commands._agent_loader import AgentOption, ModelOption, choose_model, open_agent
from standfast.cli.commands._errors import WAITING, command, format_error
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_count, print_utf8
from standfast.cli.commands._prompt import PromptInterrupted, ask, handle_interrupt
from standfast.cli.commands._run_view import (
    RunView,
    get_exit_code,
    outcome_to_dict,
    print_failure,
    prompt_approval,
    watch_run,
)
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, format_store_option, open_runtime
from standfast.runtime.errors import SessionBusy
from standfast.runtime.handle import RunHandle
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import RunInfo, RunOutcome, RunStatus
from standfast.tool_calls.loop_watch import get_running_tool

HELP = """\
  /undo          remove the last turn from the session
  /fork \\[NAME]   continue in a copy of the session
  /model NAME    continue with another model
  /sessions      list the latest sessions
  exit, quit     leave; so does Ctrl-D. Ctrl-C cancels a turn"""

ACTIVE_STATUSES: tuple[RunStatus, ...] = ("running", "waiting", "queued")
LEASE_SECONDS = 10.0
"""Seconds until the turn of a dead process can be resumed. Short, because a user waits for it."""

SessionOption = Annotated[
    str | None,
    typer.Option("--session", help="The session to continue.", autocompletion=_store.complete_sessions),
]


@command
async def run(
    text: Annotated[str, typer.Argument(metavar="INPUT", help="The input; - reads it from standard input.")],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", envvar="STANDFAST_AGENT", help="module:attribute or a file.")
    ] = None,
    session: SessionOption = None,
    model: ModelOption = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key returns the same run.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Run an agent on one input. Exit code 3 if it waits for approval, 4 if another run holds the session.

    standfast run "Refund order 7" --agent app:support --session user-7
    """
    message = typer.get_text_stream("stdin").read() if text == "-" else text
    async with open_agent(agent, model) as chosen, open_runtime(store, agents=[chosen], lease=LEASE_SECONDS) as rt:
        started = await rt.start(chosen.name, message, session_id=session, key=key, on_busy="reject")
        outcome = await watch_run(started, None if as_json else RunView())
    if as_json:
        CommandPrinter(True).print_result(outcome_to_dict(outcome), "")
    else:
        print_failure(outcome, store, agent=agent or chosen.name)
    return get_exit_code(outcome)


@command
async def chat(
    agent: AgentOption = None,
    session: SessionOption = None,
    model: ModelOption = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Read one turn per line of standard input and print each outcome as a line of JSON."
        ),
    ] = False,
) -> int:
    """Chat with an agent. Ctrl-C cancels the turn and keeps the session; at the prompt it quits, like Ctrl-D.

    /help lists the commands of the chat: /undo, /fork, /model, /sessions, exit.

    standfast chat app.py:support --session user-7

    standfast chat --model local
    """
    name = session or new_id("chat")
    view = RunView()
    async with AsyncExitStack() as stack:
        chosen = await stack.enter_async_context(open_agent(agent, model))
        conversation = ChatSession(name, view, store, agent=agent or chosen.name)
        wanted: str | None = ""
        while wanted is not None:
            if wanted:
                try:
                    chosen, model = await choose_model(chosen, wanted, stack), wanted
                except StandfastError as error:
                    view.print_line(f"[red]{escape(format_error(error))}[/]")
            async with open_runtime(store, agents=[chosen], lease=LEASE_SECONDS) as rt:
                if as_json:
                    return await chat_json_lines(rt, chosen.name, name)
                view.print_line(
                    f"[bold]{escape(chosen.name)}[/] [dim](model: {get_model_name(chosen)}; session: "
                    f"{escape(conversation.session_id)}; /help)[/]"
                )
                wanted = await conversation.talk(rt, chosen.name)
    options = ["--session", conversation.session_id, *(["--model", model] if model else [])]
    options += format_store_option(store)
    command_line = shlex.join(["standfast", "chat", *([agent] if agent else []), *options])
    view.print_line(f"\n[dim]Continue with: {escape(command_line)}[/]")
    return 0


async def chat_json_lines(rt: Runtime, agent: str, session_id: str) -> int:
    """Read turns and print outcomes until the input ends or a turn waits for approval."""
    code = 0
    with suppress(EOFError, PromptInterrupted):
        while code != WAITING:
            if text := (await ask("")).strip():
                outcome = await watch_run(await rt.start(agent, text, session_id=session_id, on_busy="reject"), None)
                print_utf8(msgspec.json.encode({"session_id": session_id, **outcome_to_dict(outcome)}))
                code = get_exit_code(outcome)
    return code


def get_model_name(agent: Agent[Any]) -> str:
    if agent.model is None:
        return "default"
    return escape(agent.model if isinstance(agent.model, str) else type(agent.model).__name__)


class ChatSession:
    """A session at the terminal: its turns and their approvals."""

    rt: Runtime

    def __init__(self, session_id: str, view: RunView, store: str, *, agent: str) -> None:
        self.session_id, self.view, self.store, self.agent = session_id, view, store, agent

    async def talk(self, rt: Runtime, agent: str) -> str | None:
        """Read and answer until the user leaves, or names another model, which is returned."""
        self.rt = rt
        with suppress(EOFError, PromptInterrupted):
            await self.finish_earlier_turns()
            while True:
                text = await ask("\n> ")
                word, _, rest = text.strip().partition(" ")
                if text.strip() in ("exit", "quit", "/exit", "/quit"):
                    return None
                if word == "/model" and rest:
                    return rest.strip()
                if text.startswith("/"):
                    self.view.print_line(await self.run_command(word, rest.strip()))
                elif text.strip():
                    await self.run_turn(agent, text)
        return None

    async def run_command(self, word: str, argument: str) -> str:
        """Carry out a command of the chat and return what to print."""
        session = self.rt.session(self.session_id)
        match word:
            case "/undo":
                return await self.undo_turn()
            case "/fork":
                child = await session.fork(session_id=argument or None)
                self.session_id = child.session_id
                return f"continuing in {escape(child.session_id)}; the other session is unchanged"
            case "/sessions":
                found = await self.rt.store.sessions(limit=10)
                rows = [f"  {escape(one.session_id)}  [dim]{format_count(one.head.length, 'item')}[/]" for one in found]
                return "\n".join(rows) or "no sessions yet"
            case "/help":
                return HELP
        return f"there is no command {escape(word)}: /help lists them. A space before it sends it to the agent"

    async def undo_turn(self) -> str:
        """Remove the last turn from the session: the last message of the user and all that follows it."""
        if any([await self.list_runs(status) for status in ACTIVE_STATUSES]):
            return "a turn has not ended: answer its question first"
        session = self.rt.session(self.session_id)
        items = await session.get_items()
        starts = [place for place, item in enumerate(items) if item.get("role") == "user"]
        if not starts:
            return "there is nothing to undo"
        await session.rewind(starts[-1])
        return f"undone: {format_count(len(items) - starts[-1], 'item')} removed. Effects of tool calls remain"

    async def run_turn(self, agent: str, text: str) -> None:
        """Run a turn after all earlier turns have ended, including those of dead processes and of other programs."""
        while await self.finish_earlier_turns():
            try:
                run = await self.rt.start(agent, text, session_id=self.session_id, on_busy="reject")
            except SessionBusy:
                continue  # another program started a run first
            print_failure(await self.handle_approvals(run, await self.watch_run(run)), self.store, agent=self.agent)
            return

    async def finish_earlier_turns(self) -> bool:
        """Wait for earlier turns to end and prompt for their pending approvals.

        Return False if one stays pending: no other turn can start then.
        """
        for info in [info for status in ACTIVE_STATUSES for info in await self.list_runs(status)]:
            if info.status != "waiting":
                self.view.print_line(
                    "[dim]An earlier turn has not ended: waiting for it, or resuming it if its process died.[/]"
                )
            run = await self.rt.run(info.run_id)
            outcome = await self.handle_approvals(run, await self.watch_run(run, after=info.steps))
            print_failure(outcome, self.store, agent=self.agent)
            if outcome.status == "waiting":
                self.view.print_line("[yellow]This must be decided before the conversation can continue.[/]")
                return False
        return True

    async def list_runs(self, status: RunStatus) -> list[RunInfo]:
        return await self.rt.runs(status=status, session_id=self.session_id)

    async def handle_approvals(self, run: RunHandle, outcome: RunOutcome) -> RunOutcome:
        """Prompt for the approvals of a run until it ends or the user leaves one pending."""
        while outcome.status == "waiting" and outcome.approvals:
            seen = (await run.info()).steps
            decided = [await prompt_approval(self.rt, approval, self.view) for approval in outcome.approvals]
            if not any(decided):
                return outcome
            outcome = await self.watch_run(run, after=seen)
        return outcome

    async def watch_run(self, run: RunHandle, *, after: int = 0) -> RunOutcome:
        """Print the run. Ctrl-C cancels it and keeps its progress."""
        stops = set[asyncio.Task[None]]()
        with handle_interrupt(lambda: stops.add(asyncio.ensure_future(self.rt.cancel(run.id, mode="immediate")))):
            with suppress(ValueError):  # not in the main thread
                # The loop is woken all the same. This one is called even while a tool blocks the loop.
                signal.signal(signal.SIGINT, lambda *_: self.print_open_calls())
            try:
                return await watch_run(run, self.view, after=after)
            finally:
                await asyncio.gather(*stops, return_exceptions=True)

    def print_open_calls(self) -> None:
        # A tool that blocks the loop may have started before its call could be printed.
        running = get_running_tool()
        if names := ", ".join(sorted({*self.view.open_calls.values(), *([running] if running else [])})):
            os.write(2, f"\n[cancelling: {make_visible(names)} has not returned yet]\n".encode())
