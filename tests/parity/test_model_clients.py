"""Models with a client of the program, such as the stand-in of a test, and what they send."""

import importlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseCompletedEvent
from openai.types.shared import Reasoning

RESPONSE = Response(
    id="r1",
    created_at=0,
    model="m",
    object="response",
    output=[
        {  # type: ignore[list-item]
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        }
    ],
    parallel_tool_calls=False,
    tool_choice="auto",
    tools=[],
    status="completed",
)
COMPLETION = ChatCompletion.model_validate(
    {
        "id": "c1",
        "created": 0,
        "model": "m",
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    }
)


def load(lib: Any, module: str) -> Any:
    return importlib.import_module(f"{lib.package}.{module}")


class Endpoint:
    """Answers each request, and notes its arguments. It has no key, no options and no URL."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.requests = answer, list[dict[str, Any]]()

    async def create(self, **arguments: Any) -> Any:
        self.requests.append(arguments)
        return self.answer(arguments) if callable(self.answer) else self.answer


async def test_a_client_needs_only_its_endpoint_of_responses(lib: Any) -> None:
    endpoint = Endpoint(RESPONSE)
    client = SimpleNamespace(responses=endpoint)
    tool = lib.WebSearchTool()
    agent = lib.Agent(name="a", tools=[tool], model=lib.OpenAIResponsesModel("m", client))
    assert (await lib.Runner.run(agent, "hi")).final_output == "hello"
    (request,) = endpoint.requests
    assert request["input"] == [{"role": "user", "content": "hi"}]
    assert [each["type"] for each in request["tools"]] == ["web_search"]


async def test_a_client_needs_only_its_endpoint_of_chat_completions(lib: Any) -> None:
    endpoint = Endpoint(COMPLETION)
    client = SimpleNamespace(chat=SimpleNamespace(completions=endpoint), base_url="https://models.example/v1/")
    agent = lib.Agent(name="a", model=lib.OpenAIChatCompletionsModel("m", client))
    assert (await lib.Runner.run(agent, "hi")).final_output == "hello"
    assert endpoint.requests[0]["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("close", ["aclose", "close", None])
async def test_a_stream_may_be_any_iterable_and_an_error_of_closing_it_is_no_failure(lib: Any, close: str) -> None:
    closed: list[str] = []

    class Stream:
        async def __aiter__(self) -> AsyncIterator[Any]:
            yield ResponseCompletedEvent(type="response.completed", response=RESPONSE, sequence_number=0)

    async def fail(self: Any) -> None:
        closed.append("closed")
        raise OSError("the connection is gone")

    if close is not None:
        setattr(Stream, close, fail)
    client = SimpleNamespace(responses=Endpoint(Stream()))
    result = lib.Runner.run_streamed(lib.Agent(name="a", model=lib.OpenAIResponsesModel("m", client)), "hi")
    assert [event.type async for event in result.stream_events()]
    assert result.final_output == "hello"
    assert closed == ([] if close is None else ["closed"])


def convert(lib: Any, items: list[Any], **options: Any) -> Any:
    return load(lib, "models.chatcmpl_converter").Converter.items_to_messages(items, **options)


def test_parts_in_the_form_of_chat_completions_are_sent_as_they_are(lib: Any) -> None:
    parts = [
        {"type": "text", "text": "What is it?", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "image_url", "image_url": {"url": "https://images.example/1.png", "detail": "high"}},
    ]
    assert convert(lib, [{"role": "user", "content": parts}]) == [{"role": "user", "content": parts}]


def test_a_file_is_sent_by_its_data_rather_than_by_its_id(lib: Any) -> None:
    part = {"type": "input_file", "file_data": "data:text/plain;base64,SGVsbG8=", "file_id": "file-1"}
    (message,) = convert(lib, [{"role": "user", "content": [part]}])
    assert message["content"] == [{"type": "file", "file": {"file_data": part["file_data"]}}]


def test_an_empty_output_is_marked_and_refused_if_strict(lib: Any) -> None:
    item = {"type": "function_call_output", "call_id": "c1", "output": []}
    assert convert(lib, [item])[0]["content"] == "[tool output omitted]"
    with pytest.raises(lib.UserError):
        convert(lib, [item], strict_feature_validation=True)


async def test_an_output_without_a_call_is_refused(lib: Any) -> None:
    endpoint = Endpoint(COMPLETION)
    client = SimpleNamespace(chat=SimpleNamespace(completions=endpoint), base_url="https://models.example/v1")
    agent = lib.Agent(name="a", model=lib.OpenAIChatCompletionsModel("m", client))
    item = {"type": "function_call_output", "name": "inbox", "call_id": None, "output": "mail"}
    with pytest.raises(lib.UserError):
        await lib.Runner.run(agent, [{"role": "user", "content": "hi"}, item])
    assert endpoint.requests == []


def test_default_settings_equal_those_with_reasoning_of_the_openai_package(lib: Any) -> None:
    settings = load(lib, "models").get_default_model_settings("gpt-5.4")
    assert settings == lib.ModelSettings(reasoning=Reasoning(effort="none"), verbosity="low")
    assert settings != lib.ModelSettings(reasoning=Reasoning(effort="low"), verbosity="low")


def test_the_name_of_the_default_model_is_in_small_letters(lib: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "GPT-5.6")
    assert load(lib, "models").get_default_model() == "gpt-5.6"
    assert lib.Agent(name="a").model_settings.verbosity == "low"
