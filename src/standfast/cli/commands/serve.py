"""``serve``: the runtime behind HTTP."""

import asyncio
import ipaddress
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from standfast.agents.agent import Agent
from standfast.base.errors import InvalidInput, MissingExtra
from standfast.cli.commands._agent_loader import ModelOption, load_agents
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, print_utf8
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_runtime
from standfast.cli.commands.runs import parse_age

if TYPE_CHECKING:
    from standfast.server import LoopbackToken, Oidc
    from standfast.server.calls.call import CallSource

OidcIssuer = Annotated[
    str | None,
    typer.Option(
        envvar="STANDFAST_OIDC_ISSUER", help="The address of an OpenID Connect issuer whose tokens are accepted."
    ),
]
OidcAudience = Annotated[
    str | None,
    typer.Option(envvar="STANDFAST_OIDC_AUDIENCE", help="The audience that tokens for this server have."),
]
OidcOwnerClaim = Annotated[str, typer.Option(help="The claim that names the owner.")]
OidcRoleClaim = Annotated[str, typer.Option(help="The claim that has the roles, such as realm_access.roles.")]
OidcRoles = Annotated[
    list[str] | None,
    typer.Option("--oidc-role", metavar="VALUE=ROLE", help="The role that a value of the role claim gives."),
]
TOKEN_VARIABLE = "STANDFAST_SERVER_TOKEN"  # noqa: S105 - the name of a variable
READY_VARIABLE = "STANDFAST_READY_FD"
"""The pipe by which a process of several says that it serves."""
RESTART_DELAY = 1.0
AgentNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="AGENT",
        help="file.py, file.py:attribute or module:attribute: agents, or functions or async context managers that "
        "return them. Realtime agents of a file can be called. Default: the agents of the demonstration.",
    ),
]


def make_oidc(
    issuer: str | None, audience: str | None, owner_claim: str, role_claim: str, roles: list[str] | None
) -> "Oidc | None":
    """Return the authenticator of these options, or ``None`` without an issuer."""
    if issuer is None:
        if audience or roles:
            raise InvalidInput("--oidc-audience and --oidc-role need --oidc-issuer, the address of the issuer")
        return None
    if audience is None:
        raise InvalidInput("--oidc-issuer needs --oidc-audience: what the issuer writes into tokens for this server")
    from standfast.server import Oidc

    return Oidc(
        issuer, audience, owner_claim=owner_claim, role_claim=role_claim, roles=parse_roles(roles) if roles else None
    )


def parse_roles(texts: list[str]) -> dict[str, str]:
    """Return the roles by the values of the claim, from texts ``VALUE=ROLE``."""
    found = {}
    for text in texts:
        value, equals, role = text.rpartition("=")
        if not value or not equals:
            raise InvalidInput(f"--oidc-role is VALUE=ROLE, for example support-lead=approver, not {text!r}")
        found[value] = role
    return found


@command
async def serve(
    agents: AgentNames = None,
    store: StoreUrl = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8000,
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", help="A name under which clients reach the server.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="The number of processes.")] = 1,
    drain_delay: Annotated[
        float, typer.Option(min=0, help="Seconds between answering 503 at /readyz and closing the port.")
    ] = 0.0,
    max_runs: Annotated[
        int | None, typer.Option(min=1, help="Runs that this process executes at once; others wait for a free one.")
    ] = None,
    lease: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which another process takes over the runs of a dead one.")
    ] = 30.0,
    approval_ttl: Annotated[
        str | None, typer.Option(metavar="AGE", help="Let approvals expire after this time: 90m, 12h, 7d.")
    ] = None,
    rate_limit: Annotated[float, typer.Option(min=1, help="Requests per second of one principal, on average.")] = 200.0,
    python: Annotated[
        bool, typer.Option("--python", help="Let users run code of their own in the workspaces of their sessions.")
    ] = False,
    oidc_issuer: OidcIssuer = None,
    oidc_audience: OidcAudience = None,
    oidc_owner_claim: OidcOwnerClaim = "sub",
    oidc_role_claim: OidcRoleClaim = "roles",
    oidc_role: OidcRoles = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the console in a browser.")] = False,
    model: ModelOption = None,
    fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    share_port: Annotated[bool, typer.Option("--share-port", hidden=True)] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False,
    as_json: AsJson = False,
) -> int | None:
    """Serve agents over HTTP, with sessions, runs, events and approvals.

    standfast serve app.py --port 8000

    On an address of this machine, a URL with a token is printed. Other clients need a key: standfast keys create.
    """
    try:
        from standfast.server.process import listen, run_server, tune_garbage_collector
    except ImportError:
        raise MissingExtra("server", "standfast serve") from None
    from standfast.server.logs import configure_logging

    if python and workers > 1:
        raise InvalidInput(
            "--python needs --workers 1: a cell lives in one process, and requests for it would reach any of them"
        )
    ttl = {} if approval_ttl is None else {"approval_ttl": parse_age(approval_ttl).total_seconds()}
    oidc = make_oidc(oidc_issuer, oidc_audience, oidc_owner_claim, oidc_role_claim, oidc_role)
    configure_logging(as_json=log_json)
    listener = listen(host, port, shared=share_port) if fd is None else socket.socket(fileno=fd)
    with listener:
        if workers > 1:
            token = make_token([host, *list_hosts(host, allowed_host)])
            return await run_workers(workers, listener, sys.argv[1:], token, as_json=as_json)
        hosts = list_hosts(host, allowed_host)
        token = make_token([host, *hosts])
        async with open_app(
            agents or [], store, model, hosts, token, rate_limit, python, oidc, lease=lease, max_runs=max_runs, **ttl
        ) as app:
            url = format_url(host, listener.getsockname()[1])
            if fd is not None:
                os.write(int(os.environ[READY_VARIABLE]), b".")
            else:
                announce(url, token, as_json=as_json)
                if open_browser and token is not None:
                    await asyncio.to_thread(webbrowser.open, token.make_url(url))
            tune_garbage_collector()
            await run_server(app, listener, drain_delay=drain_delay)
    return None


@asynccontextmanager
async def open_app(
    names: list[str],
    store: str,
    model: str | None,
    hosts: list[str],
    token: "LoopbackToken | None",
    rate_limit: float,
    python: bool,
    oidc: Any = None,
    **options: Any,
) -> AsyncIterator[Any]:
    """Open agents, a runtime with these options, and the app; yield the app."""
    from standfast.server import ApiKeys, Limits, create_app

    async with AsyncExitStack() as stack:
        calls: dict[str, CallSource] = {} if names else find_demonstration_calls()
        agents = await load_agents(names, stack, model, calls) if names else await open_demonstration(stack)
        runtime = await stack.enter_async_context(open_runtime(store, agents=agents, live=True, **options))
        used = find_python(agents)
        users = await open_python(used, stack) if python else None
        app = create_app(
            runtime,
            auth=[
                *([] if token is None else [token]),
                *([] if oidc is None else [oidc]),
                ApiKeys(runtime.store),
            ],
            allowed_hosts=hosts,
            limits=Limits(requests_per_second=rate_limit),
            pools=list({id(one.pool): one.pool for one in [*used, *([] if users is None else [users])]}.values()),
            python=users,
            calls=calls,
        )
        try:
            yield app
        finally:
            await app.state.service.close()


async def open_demonstration(stack: AsyncExitStack) -> list[Agent[Any]]:
    """Return the agents of ``standfast demo``; they need no model."""
    from standfast.cli.commands.demo_agent import create_treasurer
    from standfast.workers.config import PoolConfig, SandboxPolicy, SessionConfig
    from standfast.workers.pool import SessionPool

    session = SessionConfig(sandbox=SandboxPolicy(require="plain"))  # it runs only the code of the demonstration
    pool = await stack.enter_async_context(SessionPool(PoolConfig(session=session, min_idle=0, max_sessions=4)))
    return [create_treasurer(pool, Path("standfast-demo-ledger.txt"))]


def find_demonstration_calls() -> "dict[str, CallSource]":
    """Return the realtime agent of the demonstration."""
    from standfast.cli.commands.demo_call import create_shop_runner

    return {"shop": create_shop_runner}


def find_python(agents: list[Agent[Any]]) -> list[Any]:
    """Return the Python sessions that the tools of these agents use."""
    sessions = [getattr(tool, "python_sessions", None) for agent in agents for tool in agent.tools]
    return list({id(one): one for one in sessions if one is not None}.values())


async def open_python(used: list[Any], stack: AsyncExitStack) -> Any:
    """Return the Python sessions for code of users: those of the agents, or new ones. A sandbox is required."""
    from standfast.workers.pool import SessionPool
    from standfast.workers.python_sessions import PythonSessions

    if not used:
        return PythonSessions.for_pool(await stack.enter_async_context(SessionPool()))
    if used[0].pool.config.session.sandbox.require == "plain":
        raise InvalidInput(
            "--python runs the code of users: give the pool of the agents a sandbox, not require='plain'"
        )
    return used[0]


def list_hosts(host: str, allowed: list[str] | None) -> list[str]:
    """Return the names that requests may be addressed to; an address other than this machine's needs them."""
    if is_loopback(host):
        return ["127.0.0.1", "localhost", "[::1]", *(allowed or [])]
    if not allowed:
        raise InvalidInput(
            f"{host} can be reached from other machines: name the hosts that clients use, --allowed-host NAME"
        )
    return list(allowed)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def make_token(hosts: list[str]) -> "LoopbackToken | None":
    """Return the token for this machine; ``None`` if one of these is not a name or address of this machine only."""
    from standfast.server import LoopbackToken

    if not all(is_loopback(host) for host in hosts):
        return None
    return LoopbackToken(os.environ.get(TOKEN_VARIABLE) or None)


def format_url(host: str, port: int) -> str:
    return f"http://[{host.strip('[]')}]:{port}" if ":" in host else f"http://{host}:{port}"


def announce(url: str, token: Any, *, as_json: bool) -> None:
    """Print where the server listens: one URL, or one JSON object."""
    if as_json:
        facts = {"url": url, "token": None if token is None else token.token}
        print_utf8(msgspec.json.encode(facts))
    else:
        print_utf8((url if token is None else token.make_url(url)).encode())
    sys.stdout.flush()
    if token is None:
        Console(stderr=True, emoji=False).print("clients need a key: standfast keys create")


async def run_workers(
    count: int, listener: socket.socket, words: list[str], token: "LoopbackToken | None", *, as_json: bool
) -> int:
    """Run several processes on one listening socket, and replace those that die, until SIGTERM or SIGINT.

    If one ends before any of them was ready, the others would fail as well: return its exit code.
    """
    ready_end, write_end = os.pipe()
    shared = {} if token is None else {TOKEN_VARIABLE: token.token}
    environment = os.environ | shared | {READY_VARIABLE: str(write_end)}
    arguments = [*strip_option(words, "--workers"), "--fd", str(listener.fileno())]
    host, port = listener.getsockname()[:2]
    stopping, ready, codes = asyncio.Event(), asyncio.Event(), [0]
    loop = asyncio.get_running_loop()

    def note_ready() -> None:
        os.read(ready_end, 100)
        ready.set()

    loop.add_reader(ready_end, note_ready)
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stopping.set)
    announce(format_url(host, port), token, as_json=as_json)

    async def keep_running() -> None:
        while not stopping.is_set():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "standfast", *arguments, env=environment, pass_fds=(listener.fileno(), write_end)
            )
            ended, stopped = asyncio.ensure_future(process.wait()), asyncio.ensure_future(stopping.wait())
            try:
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
                if process.returncode is None:
                    process.terminate()
                await asyncio.wait({ended, stopped})
            if not stopping.is_set() and not ready.is_set():
                codes.append(process.returncode or 1)
                stopping.set()
            elif not stopping.is_set():
                await asyncio.sleep(RESTART_DELAY)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(keep_running())
    finally:
        loop.remove_reader(ready_end)
        os.close(ready_end)
        os.close(write_end)
    return codes[-1]


def strip_option(words: list[str], name: str) -> list[str]:
    """Return the command line without an option and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == name:
            skip = True
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return kept
