"""Hosted tools: what is sent for each, and the items that a response of the provider becomes."""

import asyncio

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ModelSettings,
    Runner,
    WebSearchTool,
)

ITEMS = (
    'do web_search_call {"status": "completed", "action": {"type": "search", "query": "news", "queries": ["news"]}}',
    'do file_search_call {"status": "completed", "queries": ["q"], "results": [{"file_id": "f", "text": "t", "score": 0.5}]}',
    'do code_interpreter_call {"status": "completed", "code": "print(1)", "container_id": "c", "outputs": null}',
    'do image_generation_call {"status": "completed", "result": "aGk="}',
    'do mcp_call {"name": "search", "server_label": "docs", "arguments": "x", "output": "found"}',
    'do mcp_list_tools {"server_label": "docs", "tools": []}',
)


async def main() -> None:
    agent = Agent(
        name="Researcher",
        instructions="Research.",
        tools=[
            WebSearchTool(
                user_location={"type": "approximate", "city": "Rome"},
                search_context_size="low",
                filters={"allowed_domains": ["example.com"]},
            ),
            FileSearchTool(
                max_num_results=3,
                vector_store_ids=["vs_1"],
                include_search_results=True,
                filters={"type": "eq", "key": "kind", "value": "book"},
            ),
            CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}}),
            ImageGenerationTool(tool_config={"type": "image_generation", "quality": "low"}),
            HostedMCPTool(
                tool_config={
                    "type": "mcp",
                    "server_label": "docs",
                    "server_url": "https://example.com/mcp",
                    "require_approval": "never",
                }
            ),
        ],
        model_settings=ModelSettings(response_include=["web_search_call.action.sources"], tool_choice="web_search"),
    )
    print([tool.name for tool in agent.tools])
    for text in ITEMS:
        result = Runner.run_streamed(agent, text, max_turns=1)
        try:
            async for event in result.stream_events():
                if event.type == "run_item_stream_event":
                    raw = event.item.raw_item
                    print(event.name, event.item.type, type(raw).__name__, getattr(raw, "status", None))
        except Exception as error:
            print(type(error).__name__, error)
        print(result.final_output, len(result.new_items), [item["type"] for item in result.to_input_list()[1:]])


asyncio.run(main())
