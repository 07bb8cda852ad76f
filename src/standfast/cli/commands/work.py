"""``work``: a process that executes runs and nothing else."""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from typing import Annotated

import typer

from standfast.base.errors import InvalidInput
from standfast.base.log import get_logger
from standfast.cli.commands._agent_loader import ModelOption, load_agents
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, is_server, open_runtime


@command
async def work(
    agents: Annotated[
        list[str],
        typer.Argument(metavar="AGENT", help="module:attribute, a file, or a file:attribute; one or more."),
    ],
    model: ModelOption = None,
    lease: Annotated[
        float,
        typer.Option(min=0.5, help="Seconds after which other processes take over the runs of this one if it dies."),
    ] = 30.0,
    max_runs: Annotated[
        int | None, typer.Option(min=1, help="Runs that this process executes at once; others wait for a free one.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Execute the runs of these agents until SIGTERM or Ctrl-C: new ones, decided ones, and those of dead processes.

    Start as many of these processes as you like on one store. Programs start runs and decide approvals in the same
    store, with a runtime of their own, a server, or `standfast approvals`.

    standfast work app.py --store postgresql://app@db/app
    """
    if is_server(store):
        raise InvalidInput("a server has its own agents: name the store that it uses, with --store")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    get_logger("standfast.takeovers").setLevel(logging.INFO)
    output, stopped = CommandPrinter(as_json), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        loaded = await load_agents(agents, stack, model)
        runtime = await stack.enter_async_context(open_runtime(store, agents=loaded, lease=lease, max_runs=max_runs))
        names = sorted(runtime.agents)
        output.print_result(
            {"agents": names, "store": store}, f"executing runs of {escape(', '.join(names))}; Ctrl-C stops"
        )
        await stopped.wait()
        if not as_json and (count := runtime.count_executing()):
            output.console.print(f"releasing {count} run(s) after their current step")
