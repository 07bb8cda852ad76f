"""``run`` and ``chat``: let an agent work, with everything kept in the store."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer
from rich.markup import escape

from holdfast.base.ids import new_id
from holdfast.cli.following import Screen, answered, complain, exit_code, told, watched
from holdfast.cli.loading import AgentName, ModelName, chosen_agent
from holdfast.cli.opening import DEFAULT_STORE, StoreUrl
from holdfast.cli.output import AsJson, Output, command
from holdfast.runtime.handle import RunHandle
from holdfast.runtime.runtime import Runtime

SessionName = Annotated[str | None, typer.Option("--session", help="The conversation to go on with.")]


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
    chosen = chosen_agent(agent, model)
    said = typer.get_text_stream("stdin").read() if text == "-" else text
    async with Runtime.open(store, agents=[chosen]) as rt:
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
    """Talk to an agent. Ctrl-C stops its turn and keeps the conversation; Ctrl-D ends.

    holdfast chat app.py:support --session user-7

    holdfast chat --model local
    """
    chosen = chosen_agent(agent, model)
    name = session or new_id("chat")
    screen = Screen()
    used = chosen.model if isinstance(chosen.model, str) else type(chosen.model).__name__ if chosen.model else "default"
    screen.line(f"[bold]{escape(chosen.name)}[/] [dim](model: {escape(used)}; conversation: {escape(name)})[/]")
    async with Runtime.open(store, agents=[chosen]) as rt:
        while (said := await next_line()) is not None:
            if not said.strip():
                continue
            started = await rt.start(chosen.name, said, session_id=name)
            async with stoppable(rt, started):
                outcome = await watched(started, screen)
            outcome = await answered(rt, started, screen, outcome)
            complain(outcome)
    screen.line(f"[dim]Go on with: holdfast chat {escape(agent or '')} --session {escape(name)}[/]")


async def next_line() -> str | None:
    try:
        return await asyncio.to_thread(input, "\n> ")
    except EOFError:
        print()
        return None


@asynccontextmanager
async def stoppable(rt: Runtime, run: RunHandle) -> AsyncIterator[None]:
    """Meanwhile Ctrl-C cancels the run, which keeps what was done."""
    loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def stop() -> None:
        stops.add(asyncio.ensure_future(rt.cancel(run.id, mode="immediate")))

    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
        await asyncio.gather(*stops, return_exceptions=True)
