"""``run`` and ``chat``: let an agent work, with everything kept in the store."""

import asyncio
import shlex
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.markup import escape

from holdfast.agents.agent import Agent
from holdfast.base.ids import new_id
from holdfast.cli import completing
from holdfast.cli.failing import command
from holdfast.cli.following import Screen, asked, complain, exit_code, told, watched
from holdfast.cli.keyboard import Left, ask, on_interrupt
from holdfast.cli.loading import AgentName, ModelName, chosen_agent
from holdfast.cli.opening import DEFAULT_STORE, StoreUrl
from holdfast.cli.output import AsJson, Output
from holdfast.runtime.contract import RunOutcome
from holdfast.runtime.handle import RunHandle
from holdfast.runtime.runtime import Runtime

SessionName = Annotated[
    str | None, typer.Option("--session", help="The conversation to go on with.", autocompletion=completing.sessions)
]


@command
async def run(
    text: Annotated[str, typer.Argument(metavar="INPUT", help="What to say to it; - reads standard input.")],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", envvar="HOLDFAST_AGENT", help="module:attribute or a file.")
    ] = None,
    session: SessionName = None,
    model: ModelName = None,
    key: Annotated[str | None, typer.Option(help="Started once however often it is asked for with this key.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let an agent answer one input. Exit code 3 when it waits for an approval.

    holdfast run "Refund order 7" --agent app:support --session user-7
    """
    said = typer.get_text_stream("stdin").read() if text == "-" else text
    async with chosen_agent(agent, model) as chosen, Runtime.open(store, agents=[chosen]) as rt:
        started = await rt.start(chosen.name, said, session_id=session, key=key)
        outcome = await watched(started, None if as_json else Screen())
    if as_json:
        Output(True).value(told(outcome), "")
    else:
        complain(outcome)
    return exit_code(outcome)


@command
async def chat(
    agent: AgentName = None,
    session: SessionName = None,
    model: ModelName = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Talk to an agent. Ctrl-C stops its turn and keeps the conversation; at the prompt it ends, as Ctrl-D does.

    holdfast chat app.py:support --session user-7

    holdfast chat --model local
    """
    name = session or new_id("chat")
    screen = Screen()
    async with chosen_agent(agent, model) as chosen, Runtime.open(store, agents=[chosen]) as rt:
        screen.line(f"[bold]{escape(chosen.name)}[/] [dim](model: {model_of(chosen)}; conversation: {escape(name)})[/]")
        conversation = Conversation(rt, name, screen)
        with suppress(EOFError, Left):
            while True:
                said = await ask("\n> ")
                if said.strip() and await conversation.settled():
                    await conversation.turn(await rt.start(chosen.name, said, session_id=name))
    again = " ".join(["holdfast chat", *([shlex.quote(agent)] if agent else []), "--session", shlex.quote(name)])
    screen.line(f"\n[dim]Go on with: {escape(again)}[/]")


def model_of(agent: Agent[Any]) -> str:
    if agent.model is None:
        return "default"
    return escape(agent.model if isinstance(agent.model, str) else type(agent.model).__name__)


class Conversation:
    """A session at the terminal: its turns, and the questions in them."""

    def __init__(self, rt: Runtime, session_id: str, screen: Screen) -> None:
        self.rt, self.session_id, self.screen = rt, session_id, screen

    async def settled(self) -> bool:
        """Put the questions left open again; False when they stay open, for then no other turn can begin."""
        for info in await self.rt.runs(status="waiting", session_id=self.session_id):
            run = await self.rt.run(info.run_id)
            outcome = await self.answered(run, await run.wait())
            complain(outcome)
            if outcome.status == "waiting":
                self.screen.line("[yellow]This has to be decided before the conversation can go on.[/]")
                return False
        return True

    async def turn(self, run: RunHandle) -> None:
        complain(await self.answered(run, await self.watched(run)))

    async def answered(self, run: RunHandle, outcome: RunOutcome) -> RunOutcome:
        """Ask the person whatever the run wants to know, until it ends or they leave it waiting."""
        while outcome.status == "waiting" and outcome.approvals:
            seen = (await run.info()).steps
            decided = [await asked(self.rt, approval, self.screen) for approval in outcome.approvals]
            if not any(decided):
                return outcome
            outcome = await self.watched(run, after=seen)
        return outcome

    async def watched(self, run: RunHandle, *, after: int = 0) -> RunOutcome:
        """Show the run; meanwhile Ctrl-C cancels it, which keeps what was done."""
        stops = set[asyncio.Task[None]]()
        with on_interrupt(lambda: stops.add(asyncio.ensure_future(self.rt.cancel(run.id, mode="immediate")))):
            outcome = await watched(run, self.screen, after=after)
            await asyncio.gather(*stops, return_exceptions=True)
        return outcome
