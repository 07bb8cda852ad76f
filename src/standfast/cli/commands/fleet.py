"""``fleet``: the runtimes, queues and nodes of many machines, and processes that Ray starts on them."""

import asyncio
from typing import Annotated

import msgspec
import typer

from standfast.base.errors import InvalidInput
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape
from standfast.cli.commands._store import (
    DEFAULT_STORE,
    STORE_VARIABLE,
    StoreUrl,
    is_server,
    open_runtime,
    require_existing_store,
)
from standfast.cli.commands.serve import list_hosts
from standfast.fleet import cluster, replicas
from standfast.fleet.status import FleetStatus, read_status

app = typer.Typer(no_args_is_help=True, add_completion=False)

Address = Annotated[
    str | None,
    typer.Option("--address", envvar="RAY_ADDRESS", help="The Ray cluster, by default that of this machine."),
]


@app.command()
@command
async def status(
    address: Address = None,
    nodes: Annotated[bool, typer.Option(help="Ask the Ray cluster for its nodes.")] = True,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show the queues in which runs wait, the runtimes that execute them, and the nodes with their workers.

    standfast fleet status --store postgresql://app@db/app --no-nodes
    """
    output = CommandPrinter(as_json)
    async with open_runtime(require_existing_store(store)) as runtime:
        found = await read_status(runtime, address=address, nodes=nodes)
    if as_json:
        totals = {"queued": found.queued, "oldest_wait": found.oldest_wait}
        output.print_result({**msgspec.to_builtins(found), **totals}, "")
        return
    print_status(output, found)


def print_status(output: CommandPrinter, found: FleetStatus) -> None:
    """Print a table for each part."""
    output.print_table(
        ("queue", "ready", "behind", "oldest_wait", "is_served"),
        [
            {
                "queue": queue.agent or queue.queue,
                "ready": queue.ready,
                "behind": queue.behind,
                "oldest_wait": f"{queue.oldest_wait:.0f} s",
                "is_served": queue.is_served,
            }
            for queue in found.queues
        ],
        empty="no run waits for a runtime",
    )
    output.print_table(
        ("runtime", "host", "process", "executing", "max_runs", "is_alive"),
        [{"runtime": one.runtime_id, **msgspec.to_builtins(one)} for one in found.runtimes],
        empty="no runtime has announced itself",
    )
    output.print_table(
        ("node", "address", "is_alive", "conversations", "capacity", "idle", "sandbox", "problem"),
        [{"node": one.node_id[:12], **msgspec.to_builtins(one)} for one in found.nodes],
        empty=found.problem or "the nodes were not asked for",
    )


@app.command()
@command
async def up(
    agents: Annotated[list[str], typer.Argument(metavar="AGENT", help="module:attribute, or a file on each node.")],
    count: Annotated[int, typer.Option("--replicas", min=1, help="How many processes.")] = 1,
    max_runs: Annotated[int | None, typer.Option(min=1, help="Runs that each executes at once.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Start servers on this port of each node instead of executing runs only."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address on which each server listens.")] = "127.0.0.1",
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", help="A name under which clients reach the servers.")
    ] = None,
    address: Address = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Start processes on the nodes of a Ray cluster that execute the runs of these agents; Ray replaces lost ones.

    standfast fleet up shop.agents:support --replicas 4 --max-runs 20 --store postgresql://app@db/app

    standfast fleet up shop.agents:support --port 8000 --host 0.0.0.0 --allowed-host api.example.org --store URL
    """
    if is_server(store):
        raise InvalidInput("name the store that the processes use, with --store")
    arguments = ["work", *agents]
    if port is not None:
        list_hosts(host, allowed_host)
        arguments = ["serve", *agents, "--port", str(port), "--host", host, "--share-port"]
        arguments += [f"--allowed-host={name}" for name in allowed_host or []]
    arguments += ["--max-runs", str(max_runs)] if max_runs is not None else []
    await asyncio.to_thread(cluster.join, address)
    name = "work" if port is None else "serve"
    environment = {STORE_VARIABLE: store}  # a command line can be read by other users of the node
    names = await asyncio.to_thread(
        lambda: replicas.start_replicas(arguments, count=count, name=name, environment=environment)
    )
    CommandPrinter(as_json).print_result({"replicas": names}, f"Ray keeps {escape(', '.join(names))} running")


@app.command()
@command
async def down(address: Address = None, as_json: AsJson = False) -> None:
    """Stop the processes that `standfast fleet up` has started; other runtimes continue their runs.

    standfast fleet down --address ray-head:6379
    """
    await asyncio.to_thread(cluster.join, address)
    count = await asyncio.to_thread(replicas.stop_replicas)
    CommandPrinter(as_json).print_result({"stopped": count}, f"{count} process(es) stopped")
