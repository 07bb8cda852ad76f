"""Answers of the Chat Completions API are read as openai-agents reads them."""

from typing import Any

import pytest
from openai import AsyncOpenAI

import standfast
from factories.models import chunks, completion
from model_server import ModelServer, Reply, Stream

openai_agents = pytest.importorskip("agents")
LIBRARIES = [openai_agents, standfast]
CITATION = {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 1, "url": "u", "title": "t"}}
LOGPROB = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}


async def ask(library: Any, client: AsyncOpenAI) -> Any:
    model = library.OpenAIChatCompletionsModel("m", client)
    config = library.RunConfig(tracing_disabled=True)
    return await library.Runner.run(library.Agent(name="a", model=model), "hi", run_config=config)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_annotations_and_log_probabilities_are_kept(
    library: Any, server: ModelServer, client: AsyncOpenAI
) -> None:
    reply = completion({"content": "a", "annotations": [CITATION]})
    reply["choices"][0]["logprobs"] = {"content": [LOGPROB]}
    server.enqueue(Reply(reply))
    [item] = (await ask(library, client)).new_items
    [part] = item.raw_item.model_dump()["content"]
    assert part["annotations"] == [{"type": "url_citation", **CITATION["url_citation"]}]  # type: ignore[dict-item]
    assert part["logprobs"] == [LOGPROB]


@pytest.mark.parametrize("library", LIBRARIES)
async def test_an_answer_that_was_withheld_is_a_refusal_and_audio_is_an_error(
    library: Any, server: ModelServer, client: AsyncOpenAI
) -> None:
    reply = completion({"content": None})
    reply["choices"][0]["finish_reason"] = "content_filter"
    server.enqueue(Reply(reply))
    with pytest.raises(library.ModelRefusalError):
        await ask(library, client)
    server.enqueue(
        Reply(completion({"content": None, "audio": {"id": "a", "data": "", "expires_at": 1, "transcript": ""}}))
    )
    with pytest.raises(library.AgentsException, match=r"(?i)audio"):
        await ask(library, client)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("field", "kind"), [("reasoning", "reasoning_text"), ("reasoning_content", "summary_text")])
async def test_reasoning_is_a_summary_or_the_text_of_the_model(
    library: Any, server: ModelServer, client: AsyncOpenAI, field: str, kind: str
) -> None:
    server.enqueue(Reply(completion({field: "hm", "content": "hi"})))
    item = (await ask(library, client)).new_items[0].raw_item
    parts = (item.content or []) if kind == "reasoning_text" else item.summary
    assert [(part.type, part.text) for part in parts] == [(kind, "hm")]
    server.enqueue(Stream(chunks({field: "h"}, {field: "m"}, {"content": "hi"})))
    model = library.OpenAIChatCompletionsModel("m", client)
    config = library.RunConfig(tracing_disabled=True)
    result = library.Runner.run_streamed(library.Agent(name="a", model=model), "hi", run_config=config)
    deltas = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    name = "response.reasoning_text.delta" if kind == "reasoning_text" else "response.reasoning_summary_text.delta"
    assert [event.delta for event in deltas if event.type == name] == ["h", "m"]


@pytest.mark.parametrize("library", LIBRARIES)
async def test_text_between_a_call_and_its_output_is_in_the_message_of_the_call(
    library: Any, server: ModelServer, client: AsyncOpenAI
) -> None:
    server.enqueue(Reply(completion({"content": "ok"})))
    text = {"type": "output_text", "text": "a", "annotations": []}
    items = [
        {"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text]},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
    ]
    model = library.OpenAIChatCompletionsModel("m", client)
    config = library.RunConfig(tracing_disabled=True)
    await library.Runner.run(library.Agent(name="a", model=model), items, run_config=config)
    messages = server.last_body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["content"] == "a"
