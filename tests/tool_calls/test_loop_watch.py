"""Tools that block the event loop are named in the log."""

import asyncio
import time

import pytest

from standfast import Agent, Runner, function_tool
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.tool_calls.loop_watch import LIMIT


@function_tool
async def sleep_in_loop() -> str:
    time.sleep(LIMIT + 0.1)  # noqa: ASYNC251 - the fault
    return "done"


@function_tool
def sleep_in_thread() -> str:
    time.sleep(LIMIT + 0.1)
    return "done"


@function_tool
async def wait_properly() -> str:
    await asyncio.sleep(LIMIT + 0.1)
    return "done"


@function_tool
async def fail_after_waiting() -> str:
    await asyncio.sleep(0)
    raise ValueError("no such order")


def make_agent(*tools: object) -> Agent[None]:
    calls = [function_call(one.name, {}, call_id=one.name) for one in tools]  # type: ignore[attr-defined]
    return Agent("a", model=ScriptedModel([calls, [assistant_message("ok")]]), tools=list(tools))  # type: ignore[arg-type]


async def test_only_a_tool_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    result = await Runner.run(make_agent(sleep_in_thread, wait_properly, fail_after_waiting), "go")
    assert result.final_output == "ok"
    assert sum("error" in str(item.to_input_item()) for item in result.new_items) == 1
    await Runner.run(make_agent(sleep_in_loop), "go")
    blocked = [record.getMessage() for record in caplog.records if "blocked the event loop" in record.getMessage()]
    assert [text.startswith("the tool 'sleep_in_loop' blocked the event loop for 1.") for text in blocked] == [True]


async def test_a_tool_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    run = asyncio.create_task(Runner.run(make_agent(wait_properly), "go"))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
