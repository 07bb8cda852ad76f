"""A run that waits for a person is saved by one process and resumed by another."""

import asyncio
import json
import os
from pathlib import Path

from agents import Agent, Runner, RunState, function_tool


@function_tool
def weigh(parcel: str) -> float:
    """Weigh a parcel."""
    return len(parcel) / 2


@function_tool(needs_approval=True)
def ship(parcel: str, country: str) -> str:
    """Ship a parcel."""
    return f"{parcel} shipped to {country}"


customs = Agent(name="Customs", instructions="Declare.", tools=[ship])
clerk = Agent(name="Clerk", instructions="Weigh and ship.", tools=[weigh, ship], handoffs=[customs])


async def begin() -> dict:
    result = await Runner.run(
        clerk,
        'call weigh {"parcel": "box"} and call ship {"parcel": "box", "country": "IT"}'
        ' and call ship {"parcel": "bag", "country": "FR"}',
        context={"customer": "Ann"},
    )
    return {"state": result.to_state().to_json(), "asked": [item.name for item in result.interruptions]}


async def carry_on() -> list:
    saved = json.loads(Path("paused.json").read_text())
    state = await RunState.from_json(clerk, saved["state"])
    first, second = state.get_interruptions()
    state.approve(first)
    state.reject(second, rejection_message="No bags.")
    result = await Runner.run(clerk, state)
    return [
        result.final_output,
        result.context_wrapper.context,
        result.context_wrapper.usage.requests,
        [item.type for item in result.new_items],
        [item.output for item in result.new_items if item.type == "tool_call_output_item"],
        [item.get("type", item.get("role")) for item in result.to_input_list()],
    ]


def in_another_process(function, name):
    child = os.fork()
    if child == 0:
        try:
            Path(name).write_text(json.dumps(asyncio.run(function())))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(Path(name).read_text())


print(in_another_process(begin, "paused.json")["asked"])
for line in in_another_process(carry_on, "done.json"):
    print(line)
