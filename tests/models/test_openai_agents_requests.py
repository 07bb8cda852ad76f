"""Requests equal those that openai-agents sends for the same agent, except for the differences listed here."""

from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

import standfast
from factories.models import completion, message_item, response
from model_server import ModelServer, Reply
from standfast.models import ModelRequest, call_model

openai_agents = pytest.importorskip("agents")


class Forecast(BaseModel):
    city: str
    degrees: float


def weather(city: str) -> str:
    """How the weather is.

    Args:
        city: Where.
    """
    return city


SETTINGS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "tool_choice": "weather",
    "parallel_tool_calls": True,
    "max_tokens": 9,
    "verbosity": "low",
    "metadata": {"a": "b"},
    "store": False,
    "top_logprobs": 2,
    "extra_args": {"service_tier": "flex"},
    "extra_body": {"own": 1},
}
ITEMS: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
     "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "weather", "arguments": '{"city":"Bari"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    {"role": "user", "content": "And now?"},
]  # fmt: skip


async def send_with_openai_agents(server: ModelServer, kind: str, client: AsyncOpenAI, reply: Any) -> dict[str, Any]:
    server.enqueue(Reply(reply))
    await getattr(openai_agents, kind)("m", client).get_response(
        "Be kind.",
        ITEMS,
        openai_agents.ModelSettings(**SETTINGS),
        [openai_agents.function_tool(weather)],
        openai_agents.AgentOutputSchema(Forecast),
        [openai_agents.handoff(openai_agents.Agent(name="Billing", handoff_description="Money."))],
        openai_agents.models.interface.ModelTracing.DISABLED,
        previous_response_id=None,
        conversation_id=None,
        prompt=None,
    )
    return server.last_body


async def send_with_standfast(server: ModelServer, kind: str, client: AsyncOpenAI, reply: Any) -> dict[str, Any]:
    server.enqueue(Reply(reply))
    request = ModelRequest(
        ITEMS,
        system_instructions="Be kind.",
        model_settings=standfast.ModelSettings(**SETTINGS),
        tools=[standfast.function_tool(weather)],
        output_schema=standfast.AgentOutputSchema(Forecast),
        handoffs=[standfast.handoff(standfast.Agent(name="Billing", handoff_description="Money."))],
    )
    await call_model(getattr(standfast, kind)("m", client), request)
    return server.last_body


async def test_a_request_to_the_responses_api_equals_that_of_openai_agents(
    server: ModelServer, client: AsyncOpenAI
) -> None:
    reply = response(message_item("{}"))
    theirs = await send_with_openai_agents(server, "OpenAIResponsesModel", client, reply)
    assert await send_with_standfast(server, "OpenAIResponsesModel", client, reply) == theirs


async def test_a_request_to_the_chat_api_equals_that_of_openai_agents(server: ModelServer, client: AsyncOpenAI) -> None:
    reply = completion({"content": "{}"})
    theirs = await send_with_openai_agents(server, "OpenAIChatCompletionsModel", client, reply)
    # Text parts of a tool output are sent as one string, because many servers support nothing else.
    assert theirs["messages"][4]["content"] == [{"type": "text", "text": "rain"}]
    theirs["messages"][4]["content"] = "rain"
    assert await send_with_standfast(server, "OpenAIChatCompletionsModel", client, reply) == theirs
