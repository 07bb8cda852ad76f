"""What a result offers: items and their classes, inputs for the next run, responses, agents that are let go."""

import asyncio
import gc

from agents import (
    Agent,
    HandoffCallItem,
    HandoffOutputItem,
    ItemHelpers,
    MessageOutputItem,
    ReasoningItem,
    Runner,
    ToolCallItem,
    ToolCallOutputItem,
    function_tool,
)
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def look(what: str) -> str:
    """Look."""
    return f"{what} seen"


async def main() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thinking"}]}
    second = Agent(name="Second", model=ScriptedModel([[reasoning, assistant_message("done", item_id="m2")]]))
    first = Agent(
        name="First",
        tools=[look],
        handoffs=[second],
        model=ScriptedModel(
            [
                [assistant_message("let me look", item_id="m1"), function_call("look", {"what": "sea"}, call_id="c1")],
                [function_call("transfer_to_second", {}, call_id="c2")],
            ]
        ),
    )
    result = await Runner.run(first, [{"role": "user", "content": "hello"}, {"role": "user", "content": "look"}])
    for item in result.new_items:
        match item:
            case MessageOutputItem():
                print("message", item.agent.name, ItemHelpers.text_message_output(item), item.raw_item.id)
            case ToolCallItem():
                print("call", item.tool_name, item.call_id, item.raw_item.arguments, item.description)
            case ToolCallOutputItem():
                print("output", item.call_id, item.output, item.raw_item["type"])
            case HandoffCallItem():
                print("handoff", item.raw_item.name)
            case HandoffOutputItem():
                print("handed", item.source_agent.name, item.target_agent.name, item.raw_item["output"])
            case ReasoningItem():
                print("reasoning", item.raw_item.summary[0].text)
    print(ItemHelpers.text_message_outputs(result.new_items), ItemHelpers.input_to_new_input_list("x"))
    print(ItemHelpers.extract_last_content(result.new_items[0].raw_item), result.last_agent is second)
    print([item.get("type", item.get("role")) for item in result.to_input_list()])
    print([item.get("type", item.get("role")) for item in result.to_input_list(mode="normalized")])
    print(len(result.raw_responses), [len(response.output) for response in result.raw_responses])
    print([item["type"] for response in result.raw_responses for item in response.to_input_items()])
    print(result.final_output_as(str), result.interruptions, result.input_guardrail_results)
    result.release_agents()
    del first, second
    gc.collect()
    try:
        print(result.last_agent.name)
    except Exception as error:
        print(type(error).__name__)
    print(result.final_output, len(result.new_items))


asyncio.run(main())
