"""A request to a server is the one that openai-agents makes for the same agent, but for the differences listed here."""

from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

import standfast
from model_server import ModelServer, Reply, completion, response, said
from standfast.models import ModelRequest, call_model

peer = pytest.importorskip("agents")


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


async def sent_by_peer(server: ModelServer, kind: str, client: AsyncOpenAI, answer: Any) -> dict[str, Any]:
    server.plays(Reply(answer))
    await getattr(peer, kind)("m", client).get_response(
        "Be kind.",
        ITEMS,
        peer.ModelSettings(**SETTINGS),
        [peer.function_tool(weather)],
        peer.AgentOutputSchema(Forecast),
        [peer.handoff(peer.Agent(name="Billing", handoff_description="Money."))],
        peer.models.interface.ModelTracing.DISABLED,
        previous_response_id=None,
        conversation_id=None,
        prompt=None,
    )
    return server.last


async def sent_by_us(server: ModelServer, kind: str, client: AsyncOpenAI, answer: Any) -> dict[str, Any]:
    server.plays(Reply(answer))
    request = ModelRequest(
        ITEMS,
        system_instructions="Be kind.",
        model_settings=standfast.ModelSettings(**SETTINGS),
        tools=[standfast.function_tool(weather)],
        output_schema=standfast.AgentOutputSchema(Forecast),
        handoffs=[standfast.handoff(standfast.Agent(name="Billing", handoff_description="Money."))],
    )
    await call_model(getattr(standfast, kind)("m", client), request)
    return server.last


async def test_a_request_to_the_responses_api_is_the_peers(server: ModelServer, client: AsyncOpenAI) -> None:
    answer = response(said("{}"))
    theirs = await sent_by_peer(server, "OpenAIResponsesModel", client, answer)
    assert await sent_by_us(server, "OpenAIResponsesModel", client, answer) == theirs


async def test_a_request_to_the_chat_api_is_the_peers(server: ModelServer, client: AsyncOpenAI) -> None:
    answer = completion({"content": "{}"})
    theirs = await sent_by_peer(server, "OpenAIChatCompletionsModel", client, answer)
    # Texts that a tool returned are sent as one text: many servers know nothing else.
    assert theirs["messages"][4]["content"] == [{"type": "text", "text": "rain"}]
    theirs["messages"][4]["content"] = "rain"
    assert await sent_by_us(server, "OpenAIChatCompletionsModel", client, answer) == theirs
