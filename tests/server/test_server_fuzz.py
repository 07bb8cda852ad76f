"""Random requests made from the OpenAPI document, by schemathesis in an environment of its own."""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from bench.environments import Environment, prepare_environment

from factories.server import open_server
from standfast.server import Limits

SCHEMATHESIS = Environment("schemathesis", ("schemathesis==4.32.5",))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
WITHOUT_END = r"(/approvals/events|/calls)"
WITHOUT_POOL = r"(workspace/(cells|files|file|restart|restore))"
"""Endpoints that answer 501 on a server without a worker pool."""

pytestmark = pytest.mark.soak


async def send_random_requests(server, token, examples):
    """Return the number of requests; an answer 5xx, or one that is not as documented, fails."""
    python = await asyncio.to_thread(prepare_environment, SCHEMATHESIS)
    process = await asyncio.create_subprocess_exec(
        *(str(Path(python).parent / "schemathesis"), "run", f"{server.url}/openapi.json", "--url", server.url),
        *("-H", f"Authorization: Bearer {token}", "--checks", CHECKS, "--phases", "fuzzing"),
        *("--max-examples", str(examples), "--request-timeout", "60", "--seed", "1"),
        *("--exclude-path-regex", f"{WITHOUT_END}|{WITHOUT_POOL}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tempfile.gettempdir(),
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output[-5000:]
    found = re.search(r"(\d+) generated", output)
    assert found, output[-5000:]
    return int(found[1])


async def describe_everything(server):
    """Return what the store has: sessions with their items, runs and approvals."""
    runtime = server.runtime
    sessions = await runtime.store.sessions(limit=None)
    items = [await runtime.session(info.session_id).get_items() for info in sessions]
    return sessions, items, await runtime.runs(limit=None), await runtime.approvals(limit=None)


class RefusalWatch:
    """Compares what the store has before and after each refused request, one request at a time."""

    refused = 0
    changed: ClassVar[list] = []

    def __init__(self, app, runtime):
        self.app, self.runtime, self.lock = app, runtime, asyncio.Lock()

    async def __call__(self, scope, receive, send):
        statuses = []

        async def note(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        async with self.lock:
            before = await self.describe()
            await self.app(scope, receive, note)
            if statuses and 400 <= statuses[0] < 500:
                RefusalWatch.refused += 1
                if await self.describe() != before:
                    RefusalWatch.changed.append((scope["method"], scope["path"], statuses[0]))

    async def describe(self):
        """Return what the store has once no run is executed."""
        while self.runtime.count_executing():
            await asyncio.sleep(0.001)
        return await describe_everything(self)


@pytest.fixture
async def server():
    RefusalWatch.refused, RefusalWatch.changed = 0, []
    limits = Limits(requests_per_second=1e6)
    async with open_server("memory://", limits=limits, watch=RefusalWatch) as opened:
        person = opened.sign_in("ann")
        run = (await person.post("/runs", {"agent": "desk", "input": "refund", "session_id": "talk"})).json()
        await person.read_events(run["run_id"], until="pause")
        yield opened


async def test_random_requests_of_a_viewer_change_and_break_nothing(server):
    before = await describe_everything(server)
    assert await send_random_requests(server, "ann-viewer", 4) > 50
    assert await describe_everything(server) == before


@pytest.mark.parametrize("token", ["ann", "eve", "root"])
async def test_a_refused_request_of_any_role_changes_nothing(server, token):
    assert await send_random_requests(server, token, 6) > 50
    assert RefusalWatch.refused > 20
    assert RefusalWatch.changed == []
