"""The model behind the Responses API, over real HTTP."""

from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, RateLimitError
from openai.types.responses import ResponseOutputMessage, ResponseTextDeltaEvent
from pydantic import BaseModel

from model_server import (
    Drop,
    Hang,
    ModelServer,
    Reply,
    Stream,
    called,
    completion,
    failed,
    response,
    response_events,
    said,
)
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


class Sleeps:
    """Pauses that take no time and are written down."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def model(client: AsyncOpenAI) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-test", client)


async def streamed(model: Any, request: ModelRequest, **options: Any) -> tuple[Any, list[Any]]:
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(event)

    return await call_model(model, request, emit=emit, **options), events


async def test_an_answer_is_what_the_server_said(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Reply(response(said("hi"), called("weather", "{}")), headers={"x-request-id": "req_9"}))
    answer = await call_model(model, ModelRequest("hello", system_instructions="Be kind."))
    assert isinstance(answer.output[0], ResponseOutputMessage)
    assert answer.items == [said("hi"), called("weather", "{}")]
    assert answer.items is answer.items
    assert (answer.response_id, answer.request_id) == ("resp_1", "req_9")
    usage = answer.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1, 11, 7, 18)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (3, 2)
    assert answer.raw_usage is None
    assert server.asked[0].path == "/v1/responses"
    assert server.last == {
        "model": "gpt-test",
        "instructions": "Be kind.",
        "input": [{"role": "user", "content": "hello"}],
    }


async def test_a_stream_gives_the_same_answer_as_a_request(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Stream(response_events(said("hi")), headers={"x-request-id": "req_9"}), Reply(response(said("hi"))))
    answer, events = await streamed(model, ModelRequest("hello"))
    whole = await call_model(model, ModelRequest("hello"))
    assert (answer.items, answer.usage, answer.response_id) == (whole.items, whole.usage, whole.response_id)
    assert answer.request_id == "req_9"
    assert [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)] == ["hi"]
    assert events[-1].type == "response.completed"
    assert server.asked[0].body["stream"] is True


async def test_a_conversation_with_other_models_goes_on_here(
    server: ModelServer, client: AsyncOpenAI, model: OpenAIResponsesModel
) -> None:
    """Its server refuses ids of another make, and reasoning that it did not do itself."""

    def rules(asked: ModelRequest) -> Any:
        return "done" if "output" in asked.input[-1] else FunctionModel.call("weather", city="Oslo")

    server.plays(Reply(completion({"reasoning_content": "hm", "content": "fine"})), Reply(response(said("bye"))))
    chat = OpenAIChatCompletionsModel("deepseek-test", client)
    async with open_store("memory://") as store:
        session = store.session("ann")
        await Runner.run(Agent("a", model=FunctionModel(rules), tools=[weather]), "hello", session=session)
        await Runner.run(Agent("a", model=chat), "and you?", session=session)
        assert any(item.get("type") == "reasoning" for item in await session.get_items())
        await Runner.run(Agent("a", model=model), "bye", session=session)
    sent = server.last["input"]
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


async def test_everything_a_run_can_say_is_sent(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Reply(response(said("{}"))))
    lookup = function_tool(name_override="lookup", defer_loading=True)(lambda: "x")
    request = ModelRequest(
        [
            {"role": "user", "content": "hello"},
            {**said("before"), "id": "local_msg_1"},
            {**said("x"), "created_by": "me"},
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
    answer = await call_model(model, request)
    assert answer.raw_usage is not None
    assert answer.raw_usage["total_tokens"] == 18
    sent = server.last
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
    assert server.asked[0].headers["x-own"] == "2"


async def test_a_prompt_at_the_server_chooses_the_model_when_nobody_did(
    server: ModelServer, client: AsyncOpenAI
) -> None:
    server.plays(Reply(response(said("hi"))))
    await call_model(
        OpenAIResponsesModel("usual", client, model_is_explicit=False), ModelRequest("x", prompt={"id": "p"})
    )
    assert "model" not in server.last


async def test_what_is_said_twice_is_refused(model: OpenAIResponsesModel) -> None:
    settings = ModelSettings(temperature=1, extra_args={"temperature": 2})
    with pytest.raises(UserError, match="temperature"):
        await call_model(model, ModelRequest("x", model_settings=settings))


async def test_without_settings_an_error_is_the_callers(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(failed(429, retry_after="7"))
    with pytest.raises(RateLimitError):
        await call_model(model, ModelRequest("x"))
    assert len(server.asked) == 1


async def test_the_client_does_not_repeat_what_is_decided_here(server: ModelServer) -> None:
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=5) as eager:
        model = OpenAIResponsesModel("m", eager)
        server.plays(failed(500), failed(500))
        for request in (
            ModelRequest("x", model_settings=ModelSettings(retry=ModelRetrySettings(max_retries=0))),
            ModelRequest("x", conversation_id="conv_1"),
        ):
            with pytest.raises(Exception, match="500"):
                await call_model(model, request)
    assert len(server.asked) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_the_server_says_when_to_come_back(
    server: ModelServer, model: OpenAIResponsesModel, stream: bool
) -> None:
    fine = Stream(response_events(said("hi"))) if stream else Reply(response(said("hi")))
    server.plays(failed(429, retry_after="7"), failed(503, retry_after_ms="250"), fine)
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, policy=retry_policies.provider_suggested()))
    request, sleep = ModelRequest("x", model_settings=settings), Sleeps()
    answer = (
        (await streamed(model, request, sleep=sleep))[0] if stream else await call_model(model, request, sleep=sleep)
    )
    assert sleep.pauses == [7.0, 0.25]
    assert answer.usage.requests == 3
    assert [entry.total_tokens for entry in answer.usage.request_usage_entries] == [0, 0, 18]


async def test_a_server_that_wants_no_repetition_is_heard(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(failed(500, x_should_retry="false"))
    policy = retry_policies.any(retry_policies.http_status([500]), retry_policies.provider_suggested())
    with pytest.raises(Exception, match="500"):
        await call_model(
            model, ModelRequest("x", model_settings=ModelSettings(retry=ModelRetrySettings(3, policy=policy)))
        )


async def test_a_dropped_connection_is_a_network_error(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Drop(), Reply(response(said("hi"))))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=retry_policies.network_error()))
    assert (await call_model(model, ModelRequest("x", model_settings=settings), sleep=Sleeps())).items == [said("hi")]


async def test_a_conversation_is_not_written_to_twice_by_accident(
    server: ModelServer, model: OpenAIResponsesModel
) -> None:
    def asking(policy: Any) -> ModelRequest:
        settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=policy))
        return ModelRequest("x", conversation_id="conv_1", model_settings=settings)

    server.plays(Drop())
    with pytest.raises(APIConnectionError):
        await call_model(model, asking(retry_policies.network_error()), sleep=Sleeps())
    server.plays(failed(429), Reply(response(said("hi"))))
    await call_model(model, asking(retry_policies.http_status([429])), sleep=Sleeps())
    server.plays(Drop(), Reply(response(said("hi"))))
    await call_model(model, asking(lambda context: RetryDecision(True, approve_unsafe_replay=True)), sleep=Sleeps())
    assert len(server.asked) == 5
    assert {asked.body["conversation"] for asked in server.asked} == {"conv_1"}


async def test_a_locked_conversation_is_waited_for(server: ModelServer, model: OpenAIResponsesModel) -> None:
    locked = [failed(409, "busy", "conversation_locked") for _ in range(3)]
    server.plays(*locked, Reply(response(said("hi"))))
    sleep = Sleeps()
    answer = await call_model(model, ModelRequest("x", conversation_id="conv_1"), sleep=sleep)
    assert (sleep.pauses, answer.usage.requests) == ([1.0, 2.0, 4.0], 4)
    server.plays(*locked, failed(409, "busy", "conversation_locked"))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=0))
    with pytest.raises(Exception, match="busy"):
        await call_model(model, ModelRequest("x", conversation_id="conv_1", model_settings=settings), sleep=sleep)


async def test_nothing_is_repeated_after_words_were_shown(server: ModelServer, model: OpenAIResponsesModel) -> None:
    cut = Stream(response_events(said("hi"))[:3], cut=True)
    server.plays(cut)
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=lambda context: True))
    shown: list[str] = []

    async def emit(event: Any) -> None:
        shown.append(event.type)

    with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|connection"):
        await call_model(model, ModelRequest("x", model_settings=settings), emit=emit, sleep=Sleeps())
    assert shown == ["response.created", "response.output_item.added", "response.output_text.delta"]
    assert len(server.asked) == 1


async def test_an_attempt_that_showed_nothing_leaves_no_trace(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Stream(response_events(said("hi"))[:1], cut=True), Stream(response_events(said("hi"))))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, policy=retry_policies.network_error()))
    answer, events = await streamed(model, ModelRequest("x", model_settings=settings), sleep=Sleeps())
    assert [event.type for event in events].count("response.created") == 1
    assert answer.usage.requests == 2


async def test_a_stream_that_just_ends_is_no_answer(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Stream(response_events(said("hi"))[:-1]))
    with pytest.raises(IncompleteStream):
        await streamed(model, ModelRequest("x"))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_failed_is_an_error(
    server: ModelServer, model: OpenAIResponsesModel, stream: bool
) -> None:
    broken = response(status="failed", error={"code": "server_error", "message": "lost"})
    event = {"type": "response.failed", "response": broken, "sequence_number": 0}
    server.plays(Stream([event]) if stream else Reply(broken))
    with pytest.raises(ResponseFailed, match="lost") as caught:
        await (streamed(model, ModelRequest("x")) if stream else call_model(model, ModelRequest("x")))
    assert caught.value.error_code == "server_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_late_attempt_has_ended_when_the_error_comes(
    server: ModelServer, model: OpenAIResponsesModel, stream: bool
) -> None:
    late = Hang(response_events(said("hi"))[:1] if stream else ())
    server.plays(late)
    request = ModelRequest("x", model_settings=ModelSettings(timeout=0.05))
    with pytest.raises(ModelTimeoutError) as caught:
        await (streamed(model, request) if stream else call_model(model, request))
    assert caught.value.timeout_seconds == 0.05
    await late.given_up.wait()


async def test_a_late_attempt_may_be_repeated(server: ModelServer, model: OpenAIResponsesModel) -> None:
    server.plays(Hang(), Reply(response(said("hi"))))
    settings = ModelSettings(
        timeout=1.0, retry=ModelRetrySettings(max_retries=1, policy=retry_policies.network_error())
    )
    assert (await call_model(model, ModelRequest("x", model_settings=settings), sleep=Sleeps())).items == [said("hi")]


async def test_leaving_a_stream_ends_the_request(server: ModelServer, model: OpenAIResponsesModel) -> None:
    hang = Hang(response_events(said("hi"))[:2])
    server.plays(hang)
    events = ModelRequest("x").send_to(model.stream_response)
    async for _ in events:
        break
    await events.aclose()
    await hang.given_up.wait()
