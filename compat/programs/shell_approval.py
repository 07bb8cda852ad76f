import asyncio

from agents import Agent, Runner, ShellTool

agent = Agent(name="A", tools=[ShellTool(executor=lambda request: "ok", needs_approval=True)], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'do shell_call {"action": {"commands": ["ls"]}}')
    print([item.name for item in result.interruptions])
    state = result.to_state()
    state.approve(result.interruptions[0])
    print((await Runner.run(agent, state)).final_output)


asyncio.run(main())
