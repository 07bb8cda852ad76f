"""Who owns a run: leases are renewed, given back and lost, and clocks do not agree."""

import asyncio
import logging

from durable_kit import soon
from shop import echo

from holdfast import Runtime


async def test_a_run_that_ends_is_not_said_to_have_passed_on(shared_url, caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    async with Runtime.open(shared_url, agents=[echo()], lease=0.03) as runtime:
        for _ in range(10):
            runs = [await runtime.start("echo", "hi", session_id=f"s{n}") for n in range(6)]
            await soon(asyncio.gather(*(run.wait() for run in runs)))
    assert [record.message for record in caplog.records if record.name.startswith(("holdfast", "asyncio"))] == []
