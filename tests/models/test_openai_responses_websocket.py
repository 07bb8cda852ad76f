"""The model of the Responses API over real WebSockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, AuthenticationError

from factories.models import call_item, call_streamed, error_reply, message_item, response_events
from model_server import Drop, Hang, ModelServer, Stream
from standfast import (
    Agent,
    ModelSettings,
    OpenAIProvider,
    OpenAIResponsesWSModel,
    ResponsesWebSocketError,
    RunConfig,
    Runner,
    UserError,
    function_tool,
    responses_websocket_session,
    set_default_openai_client,
    set_default_openai_responses_transport,
)
from standfast.models import ModelRequest, call_model

SAID = Stream(response_events(message_item("fine")))


@pytest.fixture
async def model(client: AsyncOpenAI) -> AsyncIterator[OpenAIResponsesWSModel]:
    model = OpenAIResponsesWSModel("m", client)
    yield model
    await model.close()


def server_error(code: str) -> Stream:
    error = {"type": "invalid_request_error", "code": code, "message": "no"}
    return Stream([{"type": "error", "status": 400, "error": error}])


async def test_a_request_is_one_message_and_its_events_are_the_response(
    server: ModelServer, model: OpenAIResponsesWSModel
) -> None:
    server.enqueue(SAID)
    request = ModelRequest("hello", model_settings=ModelSettings(extra_headers={"x-tenant": "7"}))
    response, events = await call_streamed(model, request)
    assert response.items[0]["content"][0]["text"] == "fine"
    assert response.usage.total_tokens == 18
    assert [event.type for event in events][-1] == "response.completed"
    sent = server.requests[0]
    assert sent.path == "/v1/responses"
    assert (sent.headers["authorization"], sent.headers["x-tenant"]) == ("Bearer none", "7")
    assert sent.body == {
        "type": "response.create",
        "model": "m",
        "input": [{"role": "user", "content": "hello"}],
        "stream": True,
    }


async def test_requests_share_a_connection_unless_they_are_concurrent(
    server: ModelServer, model: OpenAIResponsesWSModel
) -> None:
    server.enqueue(SAID, SAID)
    for _ in range(2):
        await call_model(model, ModelRequest("hello"))
    assert server.websockets == 1
    server.enqueue(SAID, SAID)
    await asyncio.gather(*(call_model(model, ModelRequest("hello")) for _ in range(2)))
    assert server.websockets == 2


async def test_a_connection_that_the_server_closed_is_replaced(
    server: ModelServer, model: OpenAIResponsesWSModel
) -> None:
    server.enqueue(Stream(SAID.events, close=True), SAID)
    await call_model(model, ModelRequest("hello"))
    await server.closed.wait()
    await call_model(model, ModelRequest("hello", previous_response_id="resp_1"))
    assert (server.websockets, len(server.requests)) == (2, 2)


async def test_an_expired_connection_is_replaced(server: ModelServer, model: OpenAIResponsesWSModel) -> None:
    server.enqueue(SAID, server_error("websocket_connection_limit_reached"), SAID)
    await call_model(model, ModelRequest("hello"))
    await call_model(model, ModelRequest("hello", previous_response_id="resp_1"))
    assert server.websockets == 2


async def test_an_error_of_the_server_is_raised_and_the_next_request_works(
    server: ModelServer, model: OpenAIResponsesWSModel
) -> None:
    server.enqueue(server_error("previous_response_not_found"), SAID)
    with pytest.raises(ResponsesWebSocketError) as caught:
        await call_model(model, ModelRequest("hello", previous_response_id="resp_0"))
    assert (caught.value.code, caught.value.error_type) == ("previous_response_not_found", "invalid_request_error")
    await call_model(model, ModelRequest("hello"))


async def test_a_lost_connection_is_retried_only_before_the_first_event(server: ModelServer) -> None:
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=1) as client:
        model = OpenAIResponsesWSModel("m", client)
        server.enqueue(Drop(), SAID)
        await call_model(model, ModelRequest("hello"))
        await model.close()
        server.enqueue(Drop())
        with pytest.raises(APIConnectionError):  # the server may have it already
            await call_model(model, ModelRequest("hello", previous_response_id="resp_1"))
        server.enqueue(Stream(SAID.events[:2], cut=True))
        with pytest.raises(APIConnectionError):
            await call_model(model, ModelRequest("hello"))
    assert len(server.requests) == 4


async def test_a_refused_handshake_raises_the_errors_of_the_client(
    server: ModelServer, model: OpenAIResponsesWSModel
) -> None:
    server.enqueue(error_reply(401, "bad key"))
    with pytest.raises(AuthenticationError, match="bad key"):
        await call_model(model, ModelRequest("hello"))
    with pytest.raises(UserError, match="pings"):
        OpenAIResponsesWSModel("m", AsyncOpenAI(api_key="none"), websocket_options={"pings": 1})  # type: ignore[typeddict-unknown-key]


async def test_a_cancelled_run_closes_its_connection(server: ModelServer, model: OpenAIResponsesWSModel) -> None:
    hang = Hang(SAID.events[:1])
    server.enqueue(hang, SAID)
    result = Runner.run_streamed(Agent(name="a", model=model), "hello")
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel()
    await hang.disconnected.wait()
    await call_model(model, ModelRequest("hello"))
    assert server.websockets == 2


async def test_the_runs_of_a_session_share_a_connection(server: ModelServer) -> None:
    @function_tool
    def now() -> str:
        return "noon"

    agent = Agent(name="a", model="openai/m", tools=[now])
    server.enqueue(Stream(response_events(call_item("now", "{}"))), SAID, SAID)
    options: Any = {"ping_interval": None, "max_size": 1_000_000}
    session = responses_websocket_session(api_key="none", base_url=server.url, responses_websocket_options=options)
    async with session as runs:
        first = await runs.run(agent, "what time is it?")
        second = runs.run_streamed(agent, "and now?", previous_response_id=first.last_response_id)
        async for _ in second.stream_events():
            pass
        assert second.final_output == "fine"
        with pytest.raises(ValueError):
            await runs.run(agent, "x", run_config=RunConfig())
    assert server.websockets == 1
    assert server.last_body["previous_response_id"] == "resp_1"
    await server.closed.wait()


async def test_the_default_provider_closes_its_connection_with_the_run(
    server: ModelServer, client: AsyncOpenAI
) -> None:
    server.enqueue(SAID)
    set_default_openai_client(client)
    set_default_openai_responses_transport("websocket")
    try:
        assert (await Runner.run(Agent(name="a", model="m"), "hello")).final_output == "fine"
    finally:
        set_default_openai_client(None)  # type: ignore[arg-type]
        set_default_openai_responses_transport("http")
    await server.closed.wait()


async def test_a_provider_gives_the_same_model_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_WEBSOCKET_BASE_URL", "ws://proxy/v1")
    provider = OpenAIProvider(api_key="none", use_responses_websocket=True)
    model = provider.get_model("m")
    assert isinstance(model, OpenAIResponsesWSModel)
    assert provider.get_model("m") is model
    assert str(provider.get_client().websocket_base_url) == "ws://proxy/v1"
    await provider.aclose()
    assert provider.get_model("m") is not model
    await provider.aclose()
