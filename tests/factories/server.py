"""A runtime behind HTTP for tests, and people with credentials."""

import asyncio
import contextlib
import json
from collections.abc import Mapping

import httpx2
import uvicorn

from standfast import Agent, FunctionModel, Runtime, function_tool
from standfast.server import Principal, Role, Unauthenticated, create_app

PEOPLE = {
    "ann-viewer": ("ann", Role.VIEWER),
    "ann": ("ann", Role.USER),
    "bob": ("bob", Role.USER),
    "eve": ("eve", Role.APPROVER),
    "olga": ("olga", Role.OPERATOR),
    "root": ("root", Role.ADMIN),
}


class Names:
    """The bearer token is the name of a person."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if not token:
            return None
        if token not in PEOPLE:
            raise Unauthenticated("unknown token")
        owner, role = PEOPLE[token]
        return Principal(subject=token, role=role, owner=owner, method="token")


@contextlib.asynccontextmanager
async def serve(app):
    """Serve an app on a free port of the loopback interface."""
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), task
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if hasattr(app.state, "service"):
            app.state.service.draining.set()
        server.should_exit = True
        await task


class Person:
    """A client with the credential of one person."""

    def __init__(self, url, token, **options):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # Not verified, because that reads all certificate authorities, in 60 ms, and there is no TLS.
        self.http = httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=60, trust_env=False, verify=False, **options
        )

    async def get(self, path, **params):
        return await self.http.get(path, params=params)

    async def post(self, path, body=None, **headers):
        return await self.http.post(path, json={} if body is None else body, headers=headers)

    async def read_events(self, run_id, *, after=0, until="end"):
        """Return all events of a run as (id, event, data)."""
        async with self.http.stream("GET", f"/runs/{run_id}/events?after={after}&until={until}") as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in parse_events(response.aiter_lines())]


async def parse_events(lines):
    fields = {}
    async for line in lines:
        if not line:
            if "data" in fields:
                yield fields.get("id"), fields.get("event"), json.loads(fields["data"])
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


@function_tool(needs_approval=True)
def refund(order: str, amount: int) -> str:
    """Pay back an order."""
    return f"refunded {amount} for {order}"


def respond(request):
    """Ask for a refund if the user does, and tell its result."""
    last = request.input[-1]
    if last.get("role") == "user" and "refund" in str(last["content"]):
        return FunctionModel.call("refund", order="A7", amount=5)
    return f"done: {last.get('output', '')}" if last.get("type") == "function_call_output" else "hello there"


def make_agent():
    return Agent("desk", instructions="Help.", tools=[refund], model=FunctionModel(respond))


class Server:
    """A runtime behind HTTP, with the credentials of some people."""

    def __init__(self, url, app, runtime):
        self.url, self.app, self.runtime = url, app, runtime
        self.people = {}

    def sign_in(self, name):
        if name not in self.people:
            self.people[name] = Person(self.url, name)
        return self.people[name]


@contextlib.asynccontextmanager
async def open_server(store="memory://", *, auth=None, runtime=None, watch=None, **options):
    """Serve a runtime of its own on the store, or this one.

    ``watch`` is a class of ASGI middleware: it gets every request before the app, and the runtime.
    """
    opened = Runtime.open(store, agents=[make_agent()]) if runtime is None else contextlib.nullcontext(runtime)
    async with opened as runtime:
        kinds = [kind(runtime.store) if isinstance(kind, type) else kind for kind in auth or [Names()]]
        app = create_app(runtime, auth=kinds, **options)
        if watch is not None:
            app.add_middleware(watch, runtime=runtime)
        async with serve(app) as url:
            server = Server(url, app, runtime)
            try:
                yield server
            finally:
                for person in server.people.values():
                    await person.http.aclose()
