import asyncio

from agents import Agent, LocalShellCommandRequest, LocalShellTool, Runner


def execute(request: LocalShellCommandRequest) -> str:
    return " ".join(request.data.action.command)


agent = Agent(name="A", tools=[LocalShellTool(executor=execute)], model="gpt-4.1")


async def main() -> None:
    print(
        (
            await Runner.run(
                agent, 'do local_shell_call {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}}}'
            )
        ).final_output
    )


asyncio.run(main())
