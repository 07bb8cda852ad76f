"""The model of the Responses API, over real HTTP."""

from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, RateLimitError
from openai.types.responses import ResponseOutputMessage, ResponseTextDeltaEvent
from pydantic import BaseModel

from factories.models import (
    SleepRecorder,
    call_item,
    call_streamed,
    completion,
    error_reply,
    message_item,
    response,
    response_events,
    time_out,
)
from model_server import Drop, Hang, ModelServer, Reply, Stream
from standfast import (
    AgentOutputSchema,
    FileSearchTool,
    FunctionModel,
    HostedMCPTool,
    IncompleteStream,
    ModelRetrySettings,
    ModelSettings,
    ModelTimeoutError,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    ResponseFailed,
    RetryDecision,
    Runner,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
    open_store,
    retry_policies,
    tool_namespace,
)
from standfast.agents import Agent
from standfast.models import ModelRequest, call_model


@function_tool
def weather(city: str) -> str:
    """How the weather is.

    Args:
        city: Where.
    """
    return city


class Forecast(BaseModel):
    city: str
    degrees: float


@pytest.fixture
def model(client: AsyncOpenAI) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-test", client)


async def test_a_response_has_the_items_usage_and_ids_of_the_server(
    server: ModelServer, model: OpenAIResponsesModel
) -> None:
    server.enqueue(Reply(response(message_item("hi"), call_item("weather", "{}")), headers={"x-request-id": "req_9"}))
    reply = await call_model(model, ModelRequest("hello", system_instructions="Be kind."))
    assert isinstance(reply.output[0], ResponseOutputMessage)
    assert reply.items == [message_item("hi"), call_item("weather", "{}")]
    assert reply.items is reply.items
    assert (reply.response_id, reply.request_id) == ("resp_1", "req_9")
    usage = reply.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1, 11, 7, 18)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (3, 2)
    assert reply.raw_usage is None
    assert server.requests[0].path == "/v1/responses"
    assert server.last_body == {
        "model": "gpt-test",
        "instructions": "Be kind.",
        "input": [{"role": "user", "content": "hello"}],
    }


async def test_a_stream_gives_the_same_response_as_a_request(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.enqueue(
        Stream(response_events(message_item("hi")), headers={"x-request-id": "req_9"}),
        Reply(response(message_item("hi"))),
    )
    reply, events = await call_streamed(model, ModelRequest("hello"))
    complete = await call_model(model, ModelRequest("hello"))
    assert (reply.items, reply.usage, reply.response_id) == (complete.items, complete.usage, complete.response_id)
    assert reply.request_id == "req_9"
    assert [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)] == ["hi"]
    assert events[-1].type == "response.completed"
    assert server.requests[0].body["stream"] is True


async def test_a_conversation_with_other_models_can_be_continued(
    server: ModelServer, client: AsyncOpenAI, model: OpenAIResponsesModel
) -> None:
    """The server rejects ids and reasoning of other providers."""

    def rules(request: ModelRequest) -> Any:
        return "done" if "output" in request.input[-1] else FunctionModel.call("weather", city="Oslo")

    server.enqueue(
        Reply(completion({"reasoning_content": "hm", "content": "fine"})), Reply(response(message_item("bye")))
    )
    chat = OpenAIChatCompletionsModel("deepseek-test", client)
    async with open_store("memory://") as store:
        session = store.session("ann")
        await Runner.run(Agent("a", model=FunctionModel(rules), tools=[weather]), "hello", session=session)
        await Runner.run(Agent("a", model=chat), "and you?", session=session)
        assert any(item.get("type") == "reasoning" for item in await session.get_items())
        await Runner.run(Agent("a", model=model), "bye", session=session)
    sent = server.last_body["input"]
    assert [entry.get("id") for entry in sent] == [None] * 7
    assert [entry.get("type", entry.get("role")) for entry in sent] == [
        "user",
        "function_call",
        "function_call_output",
        "message",
        "user",
        "message",
        "user",
    ]


async def test_every_part_of_a_request_is_sent(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.enqueue(Reply(response(message_item("{}"))))
    lookup = function_tool(name_override="lookup", defer_loading=True)(lambda: "x")
    request = ModelRequest(
        [
            {"role": "user", "content": "hello"},
            {**message_item("before"), "id": "local_msg_1"},
            {**message_item("x"), "created_by": "me"},
        ],
        model_settings=ModelSettings(
            temperature=0.5,
            tool_choice="weather",
            parallel_tool_calls=True,
            max_tokens=9,
            verbosity="low",
            reasoning={"effort": "low"},
            store=False,
            metadata={"a": "b"},
            extra_args={"service_tier": "flex"},
            extra_body={"own": 1},
            extra_headers={"x-own": "2"},
            preserve_raw_usage=True,
        ),
        tools=[
            weather,
            WebSearchTool(),
            FileSearchTool(["vs_1"], include_search_results=True),
            HostedMCPTool({"type": "mcp", "server_label": "s", "server_url": "https://x"}),
            *tool_namespace(name="geo", description="Places.", tools=[weather]),
            lookup,
        ],
        handoffs=[handoff(Agent(name="Billing"))],
        output_schema=AgentOutputSchema(Forecast),
        previous_response_id="resp_0",
        prompt={"id": "pmpt_1", "version": None, "variables": {"x": "y"}},
    )
    reply = await call_model(model, request)
    assert reply.raw_usage is not None
    assert reply.raw_usage["total_tokens"] == 18
    sent = server.last_body
    assert [entry.get("id") for entry in sent["input"]] == [None, None, "msg_1"]
    assert "created_by" not in sent["input"][2]
    kinds = [(tool["type"], tool.get("name")) for tool in sent["tools"]]
    assert kinds == [
        ("function", "weather"),
        ("web_search", None),
        ("file_search", None),
        ("mcp", None),
        ("namespace", "geo"),
        ("function", "lookup"),
        ("function", "transfer_to_billing"),
        ("tool_search", None),
    ]
    assert sent["tools"][0]["parameters"]["properties"]["city"]["description"] == "Where."
    assert sent["tools"][4]["tools"][0]["name"] == "weather"
    assert sent["tool_choice"] == {"type": "function", "name": "weather"}
    assert sent["text"]["format"]["schema"]["properties"].keys() == {"city", "degrees"}
    assert (sent["text"]["format"]["strict"], sent["text"]["verbosity"]) == (True, "low")
    assert sent["include"] == ["file_search_call.results"]
    assert (sent["previous_response_id"], sent["prompt"]) == ("resp_0", {"id": "pmpt_1", "variables": {"x": "y"}})
    assert (sent["max_output_tokens"], sent["store"], sent["service_tier"], sent["own"]) == (9, False, "flex", 1)
    assert server.requests[0].headers["x-own"] == "2"


async def test_a_stored_prompt_chooses_the_model_unless_one_is_explicit(
    server: ModelServer, client: AsyncOpenAI
) -> None:
    server.enqueue(Reply(response(message_item("hi"))))
    await call_model(
        OpenAIResponsesModel("usual", client, model_is_explicit=False), ModelRequest("x", prompt={"id": "p"})
    )
    assert "model" not in server.last_body


async def test_extra_args_may_not_repeat_an_argument(model: OpenAIResponsesModel) -> None:
    settings = ModelSettings(temperature=1, extra_args={"temperature": 2})
    with pytest.raises(UserError, match="temperature"):
        await call_model(model, ModelRequest("x", model_settings=settings))


async def test_without_retry_settings_an_error_is_raised(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.enqueue(error_reply(429, retry_after="7"))
    with pytest.raises(RateLimitError):
        await call_model(model, ModelRequest("x"))
    assert len(server.requests) == 1


async def test_the_client_does_not_retry_what_standfast_decides_on(server: ModelServer) -> None:
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=5) as eager:
        model = OpenAIResponsesModel("m", eager)
        server.enqueue(error_reply(500), error_reply(500))
        for request in (
            ModelRequest("x", model_settings=ModelSettings(retry=ModelRetrySettings(max_retries=0))),
            ModelRequest("x", conversation_id="conv_1"),
        ):
            with pytest.raises(Exception, match="500"):
                await call_model(model, request)
    assert len(server.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_retry_after_headers_are_followed(server: ModelServer, model: OpenAIResponsesModel, stream: bool) -> None:
    fine = Stream(response_events(message_item("hi"))) if stream else Reply(response(message_item("hi")))
    server.enqueue(error_reply(429, retry_after="7"), error_reply(503, retry_after_ms="250"), fine)
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, policy=retry_policies.provider_suggested()))
    request, sleep = ModelRequest("x", model_settings=settings), SleepRecorder()
    reply = (
        (await call_streamed(model, request, sleep=sleep))[0]
        if stream
        else await call_model(model, request, sleep=sleep)
    )
    assert sleep.delays == [7.0, 0.25]
    assert reply.usage.requests == 3
    assert [entry.total_tokens for entry in reply.usage.request_usage_entries] == [0, 0, 18]


async def test_x_should_retry_false_is_a_veto(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.enqueue(error_reply(500, x_should_retry="false"))
    policy = retry_policies.any(retry_policies.http_status([500]), retry_policies.provider_suggested())
    with pytest.raises(Exception, match="500"):
        await call_model(
            model, ModelRequest("x", model_settings=ModelSettings(retry=ModelRetrySettings(3, policy=policy)))
        )


async def test_a_dropped_connection_is_a_network_error(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.enqueue(Drop(), Reply(response(message_item("hi"))))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=retry_policies.network_error()))
    assert (await call_model(model, ModelRequest("x", model_settings=settings), sleep=SleepRecorder())).items == [
        message_item("hi")
    ]


async def test_a_stateful_request_is_not_retried_after_a_lost_connection(
    server: ModelServer, model: OpenAIResponsesModel
) -> None:
    def make_request(policy: Any) -> ModelRequest:
        settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=policy))
        return ModelRequest("x", conversation_id="conv_1", model_settings=settings)

    server.enqueue(Drop())
    with pytest.raises(APIConnectionError):
        await call_model(model, make_request(retry_policies.network_error()), sleep=SleepRecorder())
    server.enqueue(error_reply(429), Reply(response(message_item("hi"))))
    await call_model(model, make_request(retry_policies.http_status([429])), sleep=SleepRecorder())
    server.enqueue(Drop(), Reply(response(message_item("hi"))))
    await call_model(
        model, make_request(lambda context: RetryDecision(True, approve_unsafe_replay=True)), sleep=SleepRecorder()
    )
    assert len(server.requests) == 5
    assert {request.body["conversation"] for request in server.requests} == {"conv_1"}


async def test_a_locked_conversation_is_retried_three_times(server: ModelServer, model: OpenAIResponsesModel) -> None:
    locked = [error_reply(409, "busy", "conversation_locked") for _ in range(3)]
    server.enqueue(*locked, Reply(response(message_item("hi"))))
    sleep = SleepRecorder()
    reply = await call_model(model, ModelRequest("x", conversation_id="conv_1"), sleep=sleep)
    assert (sleep.delays, reply.usage.requests) == ([1.0, 2.0, 4.0], 4)
    server.enqueue(*locked, error_reply(409, "busy", "conversation_locked"))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=0))
    with pytest.raises(Exception, match="busy"):
        await call_model(model, ModelRequest("x", conversation_id="conv_1", model_settings=settings), sleep=sleep)


async def test_a_request_is_not_retried_after_output_was_emitted(
    server: ModelServer, model: OpenAIResponsesModel
) -> None:
    cut = Stream(response_events(message_item("hi"))[:3], cut=True)
    server.enqueue(cut)
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=lambda context: True))
    emitted: list[str] = []

    async def emit(event: Any) -> None:
        emitted.append(event.type)

    with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|connection"):
        await call_model(model, ModelRequest("x", model_settings=settings), emit=emit, sleep=SleepRecorder())
    assert emitted == ["response.created", "response.output_item.added", "response.output_text.delta"]
    assert len(server.requests) == 1


async def test_the_events_of_a_retried_attempt_are_not_emitted(
    server: ModelServer, model: OpenAIResponsesModel
) -> None:
    server.enqueue(
        Stream(response_events(message_item("hi"))[:1], cut=True), Stream(response_events(message_item("hi")))
    )
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=retry_policies.network_error()))
    reply, events = await call_streamed(model, ModelRequest("x", model_settings=settings), sleep=SleepRecorder())
    assert [event.type for event in events].count("response.created") == 1
    assert reply.usage.requests == 2


async def test_a_stream_without_a_final_event_is_incomplete(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.enqueue(Stream(response_events(message_item("hi"))[:-1]))
    with pytest.raises(IncompleteStream):
        await call_streamed(model, ModelRequest("x"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_response_raises_response_failed(
    server: ModelServer, model: OpenAIResponsesModel, stream: bool
) -> None:
    broken = response(status="failed", error={"code": "server_error", "message": "lost"})
    event = {"type": "response.failed", "response": broken, "sequence_number": 0}
    server.enqueue(Stream([event]) if stream else Reply(broken))
    with pytest.raises(ResponseFailed, match="lost") as caught:
        await (call_streamed(model, ModelRequest("x")) if stream else call_model(model, ModelRequest("x")))
    assert caught.value.error_code == "server_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_attempt_that_times_out_has_ended_when_the_error_is_raised(
    server: ModelServer, model: OpenAIResponsesModel, stream: bool
) -> None:
    hang = Hang(response_events(message_item("hi"))[:1] if stream else ())
    server.enqueue(hang)
    request = ModelRequest("x", model_settings=ModelSettings(timeout=500))
    call = call_streamed(model, request) if stream else call_model(model, request)
    with pytest.raises(ModelTimeoutError) as caught:
        await time_out(call, hang, after=501)
    assert caught.value.timeout_seconds == 500
    await hang.disconnected.wait()


async def test_an_attempt_that_times_out_may_be_retried(server: ModelServer, model: OpenAIResponsesModel) -> None:
    hang = Hang()
    server.enqueue(hang, Reply(response(message_item("hi"))))
    settings = ModelSettings(
        timeout=500, retry=ModelRetrySettings(max_retries=1, policy=retry_policies.network_error())
    )
    call = call_model(model, ModelRequest("x", model_settings=settings), sleep=SleepRecorder())
    assert (await time_out(call, hang, after=501)).items == [message_item("hi")]


async def test_closing_a_stream_ends_the_request(server: ModelServer, model: OpenAIResponsesModel) -> None:
    hang = Hang(response_events(message_item("hi"))[:2])
    server.enqueue(hang)
    events = ModelRequest("x").send_to(model.stream_response)
    async for _ in events:
        break
    await events.aclose()
    await hang.disconnected.wait()
