import asyncio

from agents import Agent, Runner, ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult, ShellTool


async def execute(request: ShellCommandRequest) -> ShellResult:
    outputs = [
        ShellCommandOutput(command=command, stdout=f"ran {command}", outcome=ShellCallOutcome(type="exit", exit_code=0))
        for command in request.data.action.commands
    ]
    return ShellResult(output=outputs)


agent = Agent(name="A", tools=[ShellTool(executor=execute)], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, 'do shell_call {"action": {"commands": ["ls", "pwd"]}}')
    print(result.final_output)
    print([item.output for item in result.new_items if item.type == "tool_call_output_item"])


asyncio.run(main())
