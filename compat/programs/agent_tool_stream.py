import asyncio

from agents import (
    Agent,
    AgentToolInvocation,
    AgentToolStreamEvent,
    RunConfig,
    Runner,
    ToolsToFinalOutputFunction,
    ToolsToFinalOutputResult,
    function_tool,
)
from agents.agent import StopAtTools


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


helper = Agent(name="Helper", model="gpt-4.1", tools=[add])


async def watch(event: AgentToolStreamEvent) -> None:
    if event["event"].type == "run_item_stream_event":
        print(event["agent"].name, event["tool_call"].call_id, event["event"].name)


async def extract(result) -> str:
    invocation: AgentToolInvocation = result.agent_tool_invocation
    print(invocation.tool_name, invocation.tool_call_id, invocation.tool_arguments)
    return f"extracted {result.final_output}"


async def decide(context, results) -> ToolsToFinalOutputResult:
    print([(found.tool.name, found.output) for found in results])
    return ToolsToFinalOutputResult(is_final_output=True, final_output="decided")


decision: ToolsToFinalOutputFunction = decide


async def main() -> None:
    tool = helper.as_tool(
        "ask",
        "Ask.",
        on_stream=watch,
        custom_output_extractor=extract,
        max_turns=3,
        run_config=RunConfig(workflow_name="inner"),
    )
    result = await Runner.run(
        Agent(name="A", model="gpt-4.1", tools=[tool]), 'call ask {"input": "call add {\\"a\\": 1, \\"b\\": 2}"}'
    )
    print(result.final_output)
    result = await Runner.run(
        Agent(name="B", model="gpt-4.1", tools=[add], tool_use_behavior=decision), 'call add {"a": 1, "b": 2}'
    )
    print(result.final_output)
    stop = Agent(name="C", model="gpt-4.1", tools=[add], tool_use_behavior=StopAtTools(stop_at_tool_names=["add"]))
    print((await Runner.run(stop, 'call add {"a": 1, "b": 2}')).final_output)
    hidden = helper.as_tool("hidden", "Hidden.", is_enabled=lambda context, agent: context.context == "admin")
    for who in ("guest", "admin"):
        print(
            [
                tool.name
                for tool in await Agent(name="D", tools=[hidden]).get_all_tools(type("W", (), {"context": who})())
            ]
        )


asyncio.run(main())
