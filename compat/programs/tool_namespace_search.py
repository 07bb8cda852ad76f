import asyncio

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ModelSettings,
    Runner,
    ToolSearchTool,
    WebSearchTool,
    function_tool,
    tool_namespace,
)


@function_tool(defer_loading=True)
def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}"


@function_tool(defer_loading=True)
def find_customer(name: str) -> str:
    """Find a customer."""
    return f"customer {name}"


async def main() -> None:
    crm = tool_namespace(name="crm", description="The CRM.", tools=[find_order, find_customer])
    agent = Agent(name="A", model="gpt-5.4", tools=[*crm, ToolSearchTool()])
    print([tool.name for tool in crm], (await Runner.run(agent, "hello")).final_output)
    hosted = Agent(
        name="H",
        model="gpt-4.1",
        tools=[
            WebSearchTool(user_location={"type": "approximate", "city": "Rome"}, search_context_size="low"),
            FileSearchTool(vector_store_ids=["vs_1"], max_num_results=3, include_search_results=True),
            CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}}),
            ImageGenerationTool(tool_config={"type": "image_generation", "quality": "low"}),
            HostedMCPTool(
                tool_config={
                    "type": "mcp",
                    "server_label": "m",
                    "server_url": "http://127.0.0.1/mcp",
                    "require_approval": "never",
                }
            ),
        ],
        model_settings=ModelSettings(
            tool_choice="web_search_preview",
            response_include=["reasoning.encrypted_content"],
            top_logprobs=2,
            prompt_cache_retention="24h",
            extra_headers={"x-a": "b"},
            extra_query={"q": "1"},
        ),
    )
    print([tool.name for tool in hosted.tools], (await Runner.run(hosted, "hello")).final_output)
    result = await Runner.run(
        hosted,
        'do web_search_call {"action": {"type": "search", "query": "q"}} and do code_interpreter_call {"code": "1", "container_id": "c", "outputs": []} and do image_generation_call {"result": "aGk="}',
        max_turns=1,
        error_handlers={"max_turns": lambda data: "enough"},
    )
    print(
        [(item.type, getattr(item, "tool_name", None), item.raw_item.type) for item in result.new_items],
        result.final_output,
    )


asyncio.run(main())
