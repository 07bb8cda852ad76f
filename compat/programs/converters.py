import json

from agents import (
    Agent,
    AgentOutputSchema,
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    WebSearchTool,
    function_tool,
    handoff,
)
from agents.models.chatcmpl_converter import Converter as ChatConverter
from agents.models.openai_responses import Converter
from openai import omit
from openai.types.chat import ChatCompletionMessage


@function_tool
def add(a: int, b: int = 1) -> int:
    """Add.

    Args:
        a: the first
        b: the second
    """
    return a + b


def show(value) -> None:
    print("omitted" if value is omit else json.dumps(value, sort_keys=True))


for choice in (None, "auto", "required", "none", "add"):
    show(ChatConverter.convert_tool_choice(choice))
for choice in (None, "auto", "add", "file_search", "web_search", "code_interpreter", "mcp", "image_generation"):
    show(Converter.convert_tool_choice(choice))
for schema in (None, AgentOutputSchema(str), AgentOutputSchema(list[int])):
    show(ChatConverter.convert_response_format(schema))
    show(Converter.get_response_format(schema))
show(ChatConverter.tool_to_openai(add))
show(ChatConverter.convert_handoff_tool(handoff(Agent(name="Other", handoff_description="helps"))))
for items in (
    "hi",
    [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "u"}]}],
    [
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
    ],
):
    show(ChatConverter.items_to_messages(items))
message = ChatCompletionMessage(role="assistant", content="x", refusal=None)
print(
    [
        (item.type, [part.model_dump() for part in item.content])
        for item in ChatConverter.message_to_output_items(message)
    ]
)
tools = [
    add,
    WebSearchTool(search_context_size="low"),
    FileSearchTool(vector_store_ids=["v"], include_search_results=True),
    CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": "c"}),
    HostedMCPTool(tool_config={"type": "mcp", "server_label": "l", "server_url": "http://localhost"}),
]
converted = Converter.convert_tools(tools, [handoff(Agent(name="Other"))])
for tool in converted.tools:
    show({name: value for name, value in tool.items() if value is not None})
print(converted.includes)
