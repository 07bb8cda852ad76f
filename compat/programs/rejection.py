import asyncio

from agents import Agent, Runner, function_tool


@function_tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


agent = Agent(name="A", tools=[refund], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'call refund {"order": "7"}')
    state = result.to_state()
    state.reject(result.interruptions[0], rejection_message="ask your manager")
    print((await Runner.run(agent, state)).final_output)


asyncio.run(main())
