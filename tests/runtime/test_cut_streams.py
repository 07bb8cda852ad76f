"""Readers of events that leave in the middle of a read leave nothing in the log."""

import asyncio
import gc
import logging

import pytest

from standfast import Agent, FunctionModel, Runtime


async def test_a_stream_that_is_cut_leaves_no_traceback_in_the_log(
    postgres_tables_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent: Agent[None] = Agent("clerk", model=FunctionModel(lambda request: "done"))
    async with Runtime.open(postgres_tables_url, agents=[agent]) as writer, Runtime.open(postgres_tables_url) as rt:
        runs = [await writer.start("clerk", "hello") for _ in range(8)]
        for one in runs:
            await one.wait()

        async def follow(run_id: str) -> None:
            async for _ in (await rt.run(run_id)).events():
                pass

        for cut in range(60):
            reader = asyncio.create_task(follow(runs[cut % 8].id))
            for _ in range(cut):  # to a later await of the read each time
                await asyncio.sleep(0)
            while not reader.done():  # web frameworks cancel again at every await
                reader.cancel()
                await asyncio.sleep(0)
        gc.collect()
        assert len(await rt.runs()) == 8
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []
