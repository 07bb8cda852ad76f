"""The model of the Chat Completions API over real HTTP, and the conversion between items and messages."""

import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types.responses import ResponseCompletedEvent, ResponseFunctionToolCall, ResponseTextDeltaEvent
from pydantic import BaseModel

from factories.models import call_streamed, chunks, completion, error_reply
from model_server import ModelServer, Reply, Stream
from standfast import (
    AgentOutputSchema,
    IncompleteStream,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    ResponseFailed,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
    retry_policies,
    tool_namespace,
)
from standfast.agents import Agent
from standfast.models import ModelRequest, call_model
from standfast.models.interface import AttributeDict
from standfast.models.openai.chat_conversion import to_chat_messages
from standfast.models.openai.chat_output import ToolNameResolver, items_from_choice
from standfast.models.openai.chat_stream import ChatStreamConverter


@function_tool
def weather(city: str) -> str:
    """How the weather is."""
    return city


class Forecast(BaseModel):
    city: str


@pytest.fixture
def model(client: AsyncOpenAI) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("small", client)


def without_ids(items: list[Any]) -> list[Any]:
    return [{name: part for name, part in item.items() if name != "id"} for item in items]


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
MESSAGE = {"reasoning_content": "hm", "content": "Let me see.", "tool_calls": [CALL]}
CHUNKS = chunks(
    {"role": "assistant", "content": None},
    {"reasoning_content": "h"},
    {"reasoning_content": "m"},
    {"content": "Let me"},
    {"content": " see."},
    {
        "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]},
    finish_reason="tool_calls",
)


async def test_a_response_becomes_items(server: ModelServer, model: OpenAIChatCompletionsModel) -> None:
    server.enqueue(Reply(completion(MESSAGE, "tool_calls"), headers={"x-request-id": "req_1"}))
    response = await call_model(model, ModelRequest("hello", system_instructions="Be kind."))
    reasoning, message, call = response.items
    assert reasoning["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert message["content"][0]["text"] == response.output[1].content[0].text == "Let me see."
    assert isinstance(response.output[2], ResponseFunctionToolCall)
    assert (call["call_id"], call["name"], call["arguments"]) == ("call_1", "weather", '{"city":"Rome"}')
    assert len({item["id"] for item in response.items}) == 3
    assert (response.usage.requests, response.usage.total_tokens, response.request_id) == (1, 18, "req_1")
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.last_body == {
        "model": "small",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}],
    }


async def test_a_stream_gives_the_same_response_as_a_request(
    server: ModelServer, model: OpenAIChatCompletionsModel
) -> None:
    server.enqueue(Reply(completion(MESSAGE, "tool_calls")), Stream(CHUNKS, headers={"x-request-id": "req_1"}))
    complete = await call_model(model, ModelRequest("hello"))
    response, events = await call_streamed(model, ModelRequest("hello"))
    assert without_ids(response.items) == without_ids(complete.items)
    assert (response.usage, response.response_id, response.request_id) == (
        complete.usage,
        complete.response_id,
        "req_1",
    )
    assert "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)) == "Let me see."
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_every_part_of_a_request_is_sent(server: ModelServer, model: OpenAIChatCompletionsModel) -> None:
    server.enqueue(Reply(completion({"content": "{}"})))
    request = ModelRequest(
        "x",
        model_settings=ModelSettings(
            temperature=0.1, tool_choice="weather", parallel_tool_calls=False, max_tokens=5, reasoning={"effort": "low"}
        ),
        tools=[weather, *tool_namespace(name="geo", description="Places.", tools=[weather])],
        handoffs=[handoff(Agent(name="Billing"))],
        output_schema=AgentOutputSchema(Forecast),
    )
    await call_model(model, request)
    sent = server.last_body
    names = [tool["function"]["name"] for tool in sent["tools"]]
    assert names == ["weather", "geo__weather", "transfer_to_billing"]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert sent["response_format"]["json_schema"]["schema"]["properties"].keys() == {"city"}
    assert (sent["parallel_tool_calls"], sent["max_tokens"], sent["reasoning_effort"]) == (False, 5, "low")


async def test_a_call_is_mapped_back_to_its_namespace(server: ModelServer, model: OpenAIChatCompletionsModel) -> None:
    call = {**CALL, "function": {"name": "geo__weather", "arguments": "{}"}}
    delta = {"index": 0, **call}
    server.enqueue(Reply(completion({"tool_calls": [call]})), Stream(chunks({"tool_calls": [delta]})))
    request = ModelRequest("x", tools=tool_namespace(name="geo", description="Places.", tools=[weather]))
    for items in ((await call_model(model, request)).items, (await call_streamed(model, request))[0].items):
        assert (items[0]["name"], items[0]["namespace"]) == ("weather", "geo")
        assert to_chat_messages(None, items)[0]["tool_calls"][0]["function"]["name"] == "geo__weather"


async def test_usage_in_a_stream_is_requested_by_include_usage(
    server: ModelServer, model: OpenAIChatCompletionsModel
) -> None:
    server.enqueue(Stream(chunks({"content": "a"}, usage=False)), Stream(chunks({"content": "a"})))
    response, _ = await call_streamed(model, ModelRequest("x"))
    assert (response.usage.requests, response.usage.total_tokens) == (1, 0)
    assert "stream_options" not in server.last_body
    await call_streamed(model, ModelRequest("x", model_settings=ModelSettings(include_usage=True)))
    assert server.last_body["stream_options"] == {"include_usage": True}


async def test_a_truncated_response_is_incomplete(server: ModelServer, model: OpenAIChatCompletionsModel) -> None:
    server.enqueue(Stream(chunks({"content": "a"}, finish_reason="length")))
    _, events = await call_streamed(model, ModelRequest("x"))
    assert events[-1].response.status == "incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


async def test_a_refusal_becomes_a_refusal_part(server: ModelServer, model: OpenAIChatCompletionsModel) -> None:
    server.enqueue(Reply(completion({"refusal": "No."})), Stream(chunks({"refusal": "N"}, {"refusal": "o."})))
    for response in (await call_model(model, ModelRequest("x")), (await call_streamed(model, ModelRequest("x")))[0]):
        assert response.items[0]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert to_chat_messages(None, response.items) == [{"role": "assistant", "refusal": "No.", "content": None}]


async def test_buffered_calls_are_emitted_in_one_delta(server: ModelServer, client: AsyncOpenAI) -> None:
    server.enqueue(Stream(CHUNKS))
    model = OpenAIChatCompletionsModel("small", client, buffer_streamed_tool_calls=True)
    _, events = await call_streamed(model, ModelRequest("x"))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert deltas == ['{"city":"Rome"}']


async def test_a_stream_without_a_final_event_is_incomplete(
    server: ModelServer, model: OpenAIChatCompletionsModel
) -> None:
    server.enqueue(Stream(chunks({"content": "a"}, finish_reason=None, usage=False)))
    with pytest.raises(IncompleteStream):
        await call_streamed(model, ModelRequest("x"))


async def test_an_error_with_a_success_status_is_a_failure(
    server: ModelServer, model: OpenAIChatCompletionsModel
) -> None:
    server.enqueue(Reply({"error": {"message": "overloaded", "code": 529}}))
    with pytest.raises(ResponseFailed, match="overloaded"):
        await call_model(model, ModelRequest("x"))


async def test_a_failed_request_is_retried_according_to_its_settings(
    server: ModelServer, model: OpenAIChatCompletionsModel
) -> None:
    server.enqueue(error_reply(500), error_reply(500), Reply(completion({"content": "hi"})))
    settings = ModelSettings(
        retry=ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0}, policy=retry_policies.http_status([500]))
    )
    assert (await call_model(model, ModelRequest("x", model_settings=settings))).usage.requests == 3


async def test_unsupported_features_are_ignored_or_rejected(
    server: ModelServer, client: AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    server.enqueue(Reply(completion({"content": "hi"})))
    request = ModelRequest("x", conversation_id="conv_1")
    with caplog.at_level(logging.WARNING, "standfast"):
        await call_model(OpenAIChatCompletionsModel("m", client), request)
    assert "conversation_id" in caplog.text
    with pytest.raises(UserError, match="conversation_id"):
        await call_model(OpenAIChatCompletionsModel("m", client, strict_feature_validation=True), request)
    with pytest.raises(UserError, match="web_search"):
        await call_model(OpenAIChatCompletionsModel("m", client), ModelRequest("x", tools=[WebSearchTool()]))


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


def test_a_conversation_becomes_messages() -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, IMAGE]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": ""},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "seen"}, IMAGE]},
        {"type": "function_call_output", "call_id": "b", "output": "nothing"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "assistant", "content": "A cat."},
        {"role": "assistant", "content": "Or a dog."},
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}}
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for call_id in ("a", "b")
    ]
    assert to_chat_messages("Be kind.", items) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
        {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "seen\n[see image below]"},
        {"role": "tool", "tool_call_id": "b", "content": "nothing"},
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": "A cat."},
        {"role": "assistant", "content": "Or a dog."},
    ]


def test_reasoning_is_replayed_to_models_that_need_it() -> None:
    items: list[Any] = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
    ]
    assert to_chat_messages(None, items, model="deepseek-reasoner")[0]["reasoning_content"] == "hm"
    assert "reasoning_content" not in to_chat_messages(None, items, model="gpt")[0]
    assert "reasoning_content" in to_chat_messages(None, items, model="gpt", should_replay=lambda context: True)[0]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "x"},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
        {"role": "user", "content": 3},
    ],
)
def test_the_error_for_an_unsupported_item_has_its_location(item: Any) -> None:
    with pytest.raises(UserError, match=r"input\[0\]"):
        to_chat_messages(None, [item])


texts = st.text('ab1 \n{}"\\é☃', min_size=1, max_size=12)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """A complete message of a server."""
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | texts)}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(texts)
    count = draw(st.integers(0, 3))
    if count:
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": f"tool_{n}", "arguments": draw(texts)}}
            for n in range(count)
        ]
    return message


def split_text(text: str, cuts: list[int]) -> Iterator[str]:
    points = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in pairwise(points):
        yield text[begin:end]


@given(message=messages(), cuts=st.lists(st.integers(0, 12), max_size=3), indexed=st.booleans(), buffered=st.booleans())
def test_a_stream_gives_the_same_items_however_it_is_split(
    message: dict[str, Any], cuts: list[int], indexed: bool, buffered: bool
) -> None:
    stream = ChatStreamConverter(ToolNameResolver([]), model="m", buffer_calls=buffered)
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: piece} for piece in split_text(message.get(name) or "", cuts)]
    for number, call in enumerate(message.get("tool_calls") or []):
        key = {"index": number} if indexed else {}
        deltas.append({"tool_calls": [{**key, "id": call["id"], "function": {"name": call["function"]["name"]}}]})
        for piece in split_text(call["function"]["arguments"], cuts):
            deltas.append({"tool_calls": [{**key, "function": {"arguments": piece}}]})
    events = [event for chunk in chunks(*deltas) for event in stream.feed(AttributeDict(chunk))]
    events += stream.finish()
    output = events[-1]["response"]["output"]
    assert without_ids(output) == without_ids(items_from_choice(AttributeDict(message=message), ToolNameResolver([])))
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    opened = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert sorted(opened) == list(range(len(output)))
    for kind, part in (("output_text", "text"), ("function_call_arguments", "arguments")):
        for done in [event for event in events if event["type"] == f"response.{kind}.done"]:
            deltas_of_item = [
                event["delta"]
                for event in events
                if event["type"] == f"response.{kind}.delta" and event["item_id"] == done["item_id"]
            ]
            assert "".join(deltas_of_item) == done[part]
    json.dumps(events)
