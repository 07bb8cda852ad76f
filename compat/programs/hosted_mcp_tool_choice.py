import asyncio

from agents import Agent, HostedMCPTool, ModelSettings, RunConfig, Runner
from agents.model_settings import MCPToolChoice

wiki = HostedMCPTool(
    tool_config={
        "type": "mcp",
        "server_label": "wiki",
        "server_url": "https://wiki.example/mcp",
        "require_approval": "always",
    }
)
choice = MCPToolChoice(server_label="wiki", name="ask")
agent = Agent(name="A", tools=[wiki], model="gpt-4.1", model_settings=ModelSettings(tool_choice=choice))
question = 'do mcp_approval_request {"server_label": "wiki", "name": "ask", "arguments": "{}"}'


async def main() -> None:
    result = await Runner.run(agent, question)
    for _ in range(2):
        state = result.to_state()
        for item in result.interruptions:
            print(item.name, item.arguments)
            state.approve(item)
        config = RunConfig(model_settings=ModelSettings(tool_choice="auto"))
        result = await Runner.run(agent, state, run_config=config)
    print(len(result.interruptions))


asyncio.run(main())
