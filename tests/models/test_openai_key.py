"""A server that repeats the API key does not get it into an error or a log."""

import logging
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI

from factories.models import call_streamed, error_reply, message_item, response, response_events
from model_server import ModelServer, Reply, Stream
from standfast import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, OpenAIResponsesWSModel, Runner
from standfast.models import ModelRequest, call_model

KEY = "sk-very-secret-key"
TEXT = f"Incorrect API key provided: {KEY}"
MODELS = [OpenAIChatCompletionsModel, OpenAIResponsesModel]


@pytest.fixture
async def own_client(server: ModelServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_status_error_does_not_reveal_the_key(
    server: ModelServer, own_client: AsyncOpenAI, kind: Any, streamed: bool
) -> None:
    server.enqueue(error_reply(401, TEXT))
    call = call_streamed if streamed else call_model
    with pytest.raises(APIError) as caught:
        await call(kind("small", own_client), ModelRequest("hello"))
    error = caught.value
    assert "Incorrect API key provided: ***" in str(error)
    assert KEY not in "".join(traceback.format_exception(error)) + repr(error) + str(error.body) + error.message


async def test_a_failed_response_does_not_reveal_the_key(server: ModelServer, own_client: AsyncOpenAI) -> None:
    failed = {**response(status="failed"), "error": {"code": "server_error", "message": TEXT}}
    agent = Agent("clerk", model=OpenAIResponsesModel("small", own_client))
    server.enqueue(Reply(failed))
    with pytest.raises(Exception, match=r"\*\*\*") as caught:
        await Runner.run(agent, "hello")
    assert KEY not in str(caught.value)
    server.enqueue(Stream([{"type": "response.failed", "response": failed, "sequence_number": 0}]))
    streamed = Runner.run_streamed(agent, "hello")
    with pytest.raises(Exception, match=r"\*\*\*") as caught:
        [event async for event in streamed.stream_events()]
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("kind", [*MODELS, OpenAIResponsesWSModel])
async def test_the_libraries_do_not_log_the_key(
    server: ModelServer, own_client: AsyncOpenAI, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    model = kind("small", own_client)
    if kind is OpenAIResponsesWSModel:
        server.enqueue(Stream(response_events(message_item("fine"))))
        await call_model(model, ModelRequest("hello"))
        await model.close()
    else:
        server.enqueue(error_reply(401, TEXT, x_request_id=KEY))
        with pytest.raises(APIError):
            await call_model(model, ModelRequest("hello"))
    assert "***" in caplog.text
    # The server of this test logs what it was sent.
    assert [record for record in caplog.records if KEY in record.getMessage() and "server" not in record.name] == []
