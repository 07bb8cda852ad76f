import asyncio
import json

from agents import Agent, Runner, RunState, function_tool


async def needs_approval(context, parameters, call_id) -> bool:
    return "Oakland" in parameters.get("city", "")


@function_tool(needs_approval=needs_approval)
async def get_temperature(city: str) -> str:
    """The temperature."""
    return f"20 degrees in {city}"


async def main() -> None:
    agent = Agent(name="Weather", instructions="Use tools.", tools=[get_temperature])
    result = await Runner.run(
        agent, 'call get_temperature {"city": "Paris"} and call get_temperature {"city": "Oakland"}'
    )
    rounds = 0
    while result.interruptions:
        rounds += 1
        saved = json.dumps(result.to_state().to_json())
        state = await RunState.from_json(agent, json.loads(saved))
        for interruption in state.get_interruptions():
            print(interruption.name, interruption.arguments)
            state.approve(interruption)
        result = await Runner.run(agent, state)
    print(rounds, result.final_output)


asyncio.run(main())
