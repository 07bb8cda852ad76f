"""Write ``messages_VERSION.json`` with the installed version of pydantic-ai: ``pip install pydantic-ai-slim``."""

from importlib.metadata import version
from pathlib import Path

from pydantic_ai import Agent, BinaryContent, ImageUrl, ModelMessagesTypeAdapter, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

SCRIPT = [
    ModelResponse([ThinkingPart("let me see"), TextPart("One moment."), ToolCallPart("look", {"order": "7"}, "c1")]),
    ModelResponse([ToolCallPart("look", '{"order":"8"}', "c2")]),
    ModelResponse([TextPart("Order 7 is open.")]),
    ModelResponse([TextPart("A cat.")]),
]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return SCRIPT[sum(isinstance(message, ModelResponse) for message in messages)]


agent = Agent(FunctionModel(answer), system_prompt="Help.", retries=2)


@agent.tool_plain
def look(order: str) -> dict[str, str]:
    """Look up an order."""
    if order == "8":
        raise ModelRetry("there is no order 8")
    return {"order": order, "state": "open"}


first = agent.run_sync("How is order 7?")
picture = [ImageUrl("https://example.invalid/cat.png"), BinaryContent(b"png", media_type="image/png")]
second = agent.run_sync(["What is this?", *picture], message_history=first.all_messages())
path = Path(__file__).parent / f"messages_{version('pydantic-ai-slim')}.json"
path.write_bytes(ModelMessagesTypeAdapter.dump_json(second.all_messages(), indent=1) + b"\n")
