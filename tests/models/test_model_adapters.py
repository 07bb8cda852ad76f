"""Models through the real litellm and any-llm, over HTTP. ``make adapters`` runs this with the packages installed."""

import os
from typing import Any

import pytest

from factories.models import call_streamed, completion, error_reply, message_item, response, response_events
from model_server import ModelServer, Reply, Stream
from standfast import Agent, MultiProvider, Runner, function_tool
from standfast.agents import ModelSettings
from standfast.base.errors import MissingExtra
from standfast.models import AnyLLMModel, AnyLLMProvider, LitellmModel, LitellmProvider, ModelRequest, call_model

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise litellm asks a server for it when it is imported

# What the libraries warn of, and the worker and the connections that litellm keeps.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.leaks("task", "fd", "thread")]


@function_tool
def weather(city: str) -> str:
    """How the weather is."""
    return f"sunny in {city}"


CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **parts: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        **parts,
    }


async def make_model(library: str, server: ModelServer) -> LitellmModel | AnyLLMModel:
    pytest.importorskip("litellm" if library == "litellm" else "any_llm")
    if library == "litellm":
        return LitellmModel("openai/m", base_url=server.url, api_key="key")
    return AnyLLMModel("openai/m", base_url=server.url, api_key="key", api="chat_completions")


def test_prefixes_choose_the_library() -> None:
    models = MultiProvider()
    litellm, any_llm = models.get_model("litellm/openai/m"), models.get_model("any-llm/mistral/m")
    assert isinstance(litellm, LitellmModel)
    assert litellm.model == "openai/m"
    assert isinstance(any_llm, AnyLLMModel)
    assert any_llm.model == "mistral/m"
    assert isinstance(LitellmProvider().get_model(None), LitellmModel)
    assert AnyLLMProvider(api="responses").get_model("m").api == "responses"  # type: ignore[attr-defined]


async def test_a_library_that_is_not_installed_is_named() -> None:
    for name, extra in (("litellm", "litellm"), ("any_llm", "any-llm")):
        try:
            __import__(name)
        except ImportError:
            with pytest.raises(MissingExtra, match=extra):
                await call_model(MultiProvider().get_model(f"{extra}/openai/m"), ModelRequest("hello"))


@pytest.mark.parametrize("library", ["litellm", "any-llm"])
async def test_tools_usage_and_reasoning(library: str, server: ModelServer) -> None:
    model = await make_model(library, server)
    thought = {"content": None, "reasoning_content": "think", "tool_calls": [CALL]}
    server.enqueue(Reply(completion(thought, "tool_calls")), Reply(completion({"content": "fine"})))
    result = await Runner.run(Agent(name="a", model=model, tools=[weather]), "Rome?")
    assert result.final_output == "fine"
    assert result.context_wrapper.usage.total_tokens == 36
    assert [item.type for item in result.new_items][:2] == ["reasoning_item", "tool_call_item"]
    assert server.requests[0].headers["authorization"] == "Bearer key"
    assert server.last_body["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "sunny in Rome"}


@pytest.mark.parametrize("library", ["litellm", "any-llm"])
async def test_streams(library: str, server: ModelServer) -> None:
    model = await make_model(library, server)
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    server.enqueue(
        Stream(
            [
                chunk({"role": "assistant", "content": "fi"}),
                chunk({"content": "ne"}),
                chunk({}, "stop"),
                chunk({}, usage=usage) | {"choices": []},
            ]
        )
    )
    response, events = await call_streamed(
        model, ModelRequest("hello", model_settings=ModelSettings(include_usage=True))
    )
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "fine"
    assert response.usage.total_tokens == 18
    assert server.last_body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("library", ["litellm", "any-llm"])
async def test_errors_are_raised_with_their_status(library: str, server: ModelServer) -> None:
    model = await make_model(library, server)
    server.enqueue(error_reply(401, "bad key"))
    with pytest.raises(Exception, match="bad key") as caught:
        await call_model(model, ModelRequest("hello"))
    assert getattr(caught.value, "status_code", 401) == 401


async def test_signed_thinking_is_sent_back(server: ModelServer) -> None:
    pytest.importorskip("litellm")
    thinking = {"type": "thinking", "thinking": "I should look.", "signature": "signed"}
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}
    usage = {"input_tokens": 1, "output_tokens": 1}
    base = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage}
    server.enqueue(
        Reply({**base, "content": [thinking, use], "stop_reason": "tool_use"}),
        Reply({**base, "content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn"}),
    )
    url = server.url.removesuffix("/v1")
    model = LitellmModel("anthropic/claude-sonnet-4-5", base_url=url, api_key="key")
    settings = ModelSettings(max_tokens=2000, extra_args={"thinking": {"type": "enabled", "budget_tokens": 1024}})
    result = await Runner.run(Agent(name="a", model=model, tools=[weather], model_settings=settings), "Rome?")
    assert result.final_output == "fine"
    assert thinking in server.last_body["messages"][1]["content"]


async def test_any_llm_uses_the_responses_api_where_the_provider_has_it(server: ModelServer) -> None:
    pytest.importorskip("any_llm")
    model = AnyLLMModel("m", base_url=server.url, api_key="key")
    server.enqueue(Reply(response(message_item("fine"))), Stream(response_events(message_item("fine"))))
    assert (await call_model(model, ModelRequest("hello"))).response_id == "resp_1"
    _, events = await call_streamed(model, ModelRequest("hello"))
    assert events[-1].type == "response.completed"
    assert [request.path for request in server.requests] == ["/v1/responses"] * 2
    await model.close()
