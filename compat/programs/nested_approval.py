import asyncio

from agents import Agent, Runner, RunState, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool(needs_approval=True)
def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


billing = Agent(
    name="Billing",
    tools=[refund],
    model=ScriptedModel(
        [
            [function_call("refund", {"order": "7", "amount": 5.5}, call_id="r1")],
            [assistant_message("The refund is made.")],
        ]
    ),
)
desk = Agent(
    name="Desk",
    tools=[billing.as_tool("ask_billing", "Ask billing.")],
    model=ScriptedModel(
        [
            [function_call("ask_billing", {"input": "refund order 7"}, call_id="d1")],
            [assistant_message("All done.")],
        ]
    ),
)


async def main() -> None:
    result = await Runner.run(desk, "Refund order 7.")
    print([(item.agent.name, item.name, item.arguments) for item in result.interruptions], result.final_output)
    state = await RunState.from_string(desk, result.to_state().to_string())
    for item in state.get_interruptions():
        state.approve(item)
    result = await Runner.run(desk, state)
    print(result.final_output, [item.type for item in result.new_items])
    print(result.context_wrapper.usage.requests, [call.input[-1]["type"] for call in desk.model.calls[1:]])


asyncio.run(main())
