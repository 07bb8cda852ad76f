import asyncio

from agents import Agent, Runner, function_tool


@function_tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


agent = Agent(name="A", tools=[refund], model="gpt-4.1")


async def main() -> None:
    result = Runner.run_streamed(agent, 'call refund {"order": "7"}')
    async for _ in result.stream_events():
        pass
    state = result.to_state()
    state.approve(result.interruptions[0])
    result = Runner.run_streamed(agent, state)
    async for _ in result.stream_events():
        pass
    print(result.final_output)


asyncio.run(main())
