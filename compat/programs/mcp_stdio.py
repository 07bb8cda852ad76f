import asyncio
import sys

from agents import (
    Agent,
    Runner,
    ToolGuardrailFunctionOutput,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agents.mcp import MCPServerStdio, create_static_tool_filter

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


@server.tool()
def tell(secret: str) -> str:
    "Tell a secret."
    return f"the secret is {secret}"


@server.prompt()
def review(code: str) -> str:
    "Review code."
    return f"Please review {code}"


server.run("stdio")
"""


@tool_input_guardrail
def no_big_numbers(data):
    if "1000" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.reject_content("That number is too big.")
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def no_secrets(data):
    if "secret" in str(data.output):
        return ToolGuardrailFunctionOutput.reject_content("That is secret.")
    return ToolGuardrailFunctionOutput.allow()


async def main() -> None:
    async with MCPServerStdio(
        name="Calculator",
        params={"command": sys.executable, "args": ["-c", SERVER]},
        cache_tools_list=True,
        client_session_timeout_seconds=60,
        tool_input_guardrails=[no_big_numbers],
        tool_output_guardrails=[no_secrets],
        max_list_pages=3,
    ) as server:
        print([tool.name for tool in await server.list_tools()])
        print([prompt.name for prompt in (await server.list_prompts()).prompts])
        print((await server.get_prompt("review", {"code": "x = 1"})).messages[0].content.text)
        agent = Agent(name="Assistant", instructions="Use the tools.", mcp_servers=[server])
        for text in ('call add {"a": 1, "b": 2}', 'call add {"a": 1000, "b": 2}', 'call tell {"secret": "42"}'):
            result = await Runner.run(agent, text)
            print(result.final_output, [item.type for item in result.new_items])
        server.tool_filter = create_static_tool_filter(allowed_tool_names=["add"])
        server.invalidate_tools_cache()
        print([tool.name for tool in await agent.get_mcp_tools(result.context_wrapper)])


asyncio.run(main())
