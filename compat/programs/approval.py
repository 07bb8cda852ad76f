import asyncio

from agents import Agent, Runner, RunState, function_tool


@function_tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


agent = Agent(name="A", tools=[refund], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'call refund {"order": "7"}')
    print([(item.name, item.arguments) for item in result.interruptions])
    state = await RunState.from_string(agent, result.to_state().to_string())
    for item in state.get_interruptions():
        state.approve(item)
    result = await Runner.run(agent, state)
    print(result.final_output, result.interruptions)


asyncio.run(main())
