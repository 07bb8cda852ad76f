"""No client that has a key or a conversation follows a redirect to another address."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from standfast import Agent, OpenAIConversationsSession, OpenAIProvider, RunConfig, Runner
from standfast.client import Client
from standfast.mcp import MCPServerSse, MCPServerStreamableHttp
from standfast.sandbox import HttpProxySink, SandboxSessionStartEvent
from standfast.tracing.export import BackendSpanExporter
from standfast.voice import OpenAIVoiceModelProvider, StreamedAudioInput, STTModelSettings, TTSModelSettings

SECRET, WORDS = "sk-very-secret-key", "words-of-the-user"


class TwoServers:
    """A server that redirects everything to another one, which counts its connections."""

    def __init__(self, port: int) -> None:
        self.url, self.contacts = f"http://127.0.0.1:{port}", 0


@asynccontextmanager
async def open_servers(status: str) -> AsyncIterator[TwoServers]:
    async def receive(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        servers.contacts += 1
        writer.close()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        scheme = "ws" if b"websocket" in head.lower() else "http"
        writer.write(f"HTTP/1.1 {status} Elsewhere\r\nLocation: {scheme}://localhost:{port}/there\r\n".encode())
        writer.write(b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(receive, "localhost", 0) as elsewhere:
        port = elsewhere.sockets[0].getsockname()[1]
        async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
            servers = TwoServers(server.sockets[0].getsockname()[1])
            yield servers


async def run_agent(url: str) -> None:
    provider = OpenAIProvider(api_key=SECRET, base_url=url)
    try:
        await Runner.run(Agent("a"), WORDS, run_config=RunConfig(model_provider=provider, tracing_disabled=True))
    finally:
        await provider.aclose()


async def run_agent_over_websockets(url: str) -> None:
    provider = OpenAIProvider(api_key=SECRET, base_url=url, use_responses_websocket=True)
    try:
        await Runner.run(Agent("a"), WORDS, run_config=RunConfig(model_provider=provider, tracing_disabled=True))
    finally:
        await provider.aclose()


async def add_items(url: str) -> None:
    session = OpenAIConversationsSession()
    try:
        await session.add_items([{"role": "user", "content": WORDS}])
    finally:
        await session.aclose()


async def transcribe(url: str) -> None:
    model = OpenAIVoiceModelProvider(api_key=SECRET, base_url=url).get_stt_model(None)
    session = await model.create_session(StreamedAudioInput(), STTModelSettings(), False, False)
    try:
        async for _ in session.transcribe_turns():
            pass
    finally:
        await session.close()


async def speak(url: str) -> None:
    model = OpenAIVoiceModelProvider(api_key=SECRET, base_url=url).get_tts_model(None)
    async for _ in model.run(WORDS, TTSModelSettings()):
        pass


async def list_tools(url: str, kind: Any) -> None:
    async with kind({"url": url, "headers": {"X-Key": SECRET}}, client_session_timeout_seconds=30) as server:
        await server.list_tools()


async def post_event(url: str) -> None:
    event = SandboxSessionStartEvent(session_id=uuid.uuid4(), seq=1, op="exec", span_id="s", data={"words": WORDS})
    await HttpProxySink(url, headers={"X-Key": SECRET}).handle(event)


async def start_run(url: str) -> None:
    async with Client(url, token=SECRET) as client:
        await client.start("a", WORDS)


async def export_trace(url: str) -> None:
    class FakeSpan:
        tracing_api_key = None

        def export(self) -> dict[str, str]:
            return {"object": "trace.span", "data": WORDS}

    exporter = BackendSpanExporter(api_key=SECRET, endpoint=url, max_retries=0)
    await asyncio.to_thread(exporter.export, [FakeSpan()])  # type: ignore[list-item]
    raise ConnectionError("it logs the refusal")


CLIENTS: dict[str, Callable[[str], Awaitable[None]]] = {
    "model": run_agent,
    "model-websocket": run_agent_over_websockets,
    "session": add_items,
    "transcription": transcribe,
    "speech": speak,
    "mcp": lambda url: list_tools(url, MCPServerStreamableHttp),
    "mcp-sse": lambda url: list_tools(url, MCPServerSse),
    "traces": export_trace,
    "server": start_run,
    "sandbox-events": post_event,
}


@pytest.mark.parametrize("status", ["307", "302"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_redirect_is_an_error_and_its_address_is_not_contacted(
    client: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    async with open_servers(status) as servers:
        monkeypatch.setenv("OPENAI_BASE_URL", servers.url)
        with pytest.raises(Exception):  # noqa: B017 - each client has its own errors
            await asyncio.wait_for(CLIENTS[client](servers.url), 60)
        assert servers.contacts == 0
