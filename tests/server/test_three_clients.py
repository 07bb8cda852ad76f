"""The same scenario through the library, the client and the command line leaves the same journal."""

import asyncio
import json
import os
import sys

from standfast.client import Client

EDITED = {"order": "A7", "amount": 3}
CHANGING = {"approval_id", "call_id", "call_ids", "by", "id", "key"}


def normalize(value):
    """Return the value without ids and names, which are different each time."""
    if isinstance(value, dict):
        return {name: normalize(one) for name, one in value.items() if name not in CHANGING}
    return [normalize(one) for one in value] if isinstance(value, list) else value


async def read_journal(runtime, run_id):
    run = await runtime.run(run_id)
    return [(event.seq, event.type, normalize(event.data)) async for event in run.events() if not event.live]


async def run_command(server, *words):
    environment = os.environ | {"STANDFAST_TOKEN": "eve"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "standfast", "--server", server.url, *words),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_journals_are_the_same(server):
    runtime, journals = server.runtime, []
    async with Client(server.url, token="ann") as ann, Client(server.url, token="eve") as eve:
        for place in ("library", "client", "command"):
            starter = runtime if place == "library" else ann
            run = await starter.start("desk", "refund, please", session_id=place)
            [approval] = (await run.wait()).approvals
            if place == "command":
                assert approval.id in await run_command(server, "approvals", "list")
                words = ("approvals", "approve", approval.id, "--arguments", json.dumps(EDITED))
                await run_command(server, *words)
            else:
                await (runtime if place == "library" else eve).decide(approval.id, "approve", arguments=EDITED)
            assert (await run.wait()).final_output == "done: refunded 3 for A7"
            journals.append(await read_journal(runtime, run.id))
    assert journals[0] == journals[1] == journals[2]
    assert journals[0][-1][1] == "run.completed"
