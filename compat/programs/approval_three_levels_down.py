"""A tool of an agent's agent's agent waits for a person; sticky decisions, rejection, streaming."""

import asyncio

from agents import Agent, Runner, RunState, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool(needs_approval=True)
async def transfer(amount: int, to: str) -> str:
    """Transfer money."""
    return f"{amount} to {to}"


def build():
    teller = Agent(
        name="Teller",
        tools=[transfer],
        model=ScriptedModel(
            [
                [
                    function_call("transfer", {"amount": 5, "to": "Ann"}, call_id="t1"),
                    function_call("transfer", {"amount": 900, "to": "Bob"}, call_id="t2"),
                ],
                [assistant_message("Ann has it.")],
            ]
        ),
    )
    branch = Agent(
        name="Branch",
        tools=[teller.as_tool("teller", "Ask a teller.", needs_approval=True)],
        model=ScriptedModel([[function_call("teller", {"input": "pay"}, call_id="b1")], [assistant_message("Paid.")]]),
    )
    return Agent(
        name="Bank",
        tools=[branch.as_tool("branch", "Ask a branch.")],
        model=ScriptedModel([[function_call("branch", {"input": "pay"}, call_id="a1")], [assistant_message("Fine.")]]),
    )


async def finish(streamed: bool, saved: bool) -> None:
    bank = build()
    result = await Runner.run(bank, "Pay.")
    rounds = 0
    while result.interruptions:
        rounds += 1
        state = result.to_state()
        if saved:
            state = await RunState.from_string(bank, state.to_string())
        for item in state.get_interruptions():
            print(rounds, item.agent.name, item.tool_name, item.arguments, item.call_id)
            if "Bob" in (item.arguments or ""):
                state.reject(item, always_reject=True, rejection_message="Too much.")
            else:
                state.approve(item)
        if streamed:
            result = Runner.run_streamed(bank, state)
            async for event in result.stream_events():
                if event.type == "run_item_stream_event":
                    print("  ", event.name, event.item.agent.name)
        else:
            result = await Runner.run(bank, state)
    print(
        result.final_output,
        result.context_wrapper.usage.requests,
        [item.type for item in result.new_items if item.type != "tool_approval_item"],
    )


async def main() -> None:
    for streamed in (False, True):
        for saved in (False, True):
            print("streamed" if streamed else "plain", "saved" if saved else "kept")
            await finish(streamed, saved)


asyncio.run(main())
