"""The speech models of OpenAI, against a server on this machine."""

import base64
import json
import logging
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import pytest
from openai import APIStatusError
from websockets.asyncio.server import serve

from standfast.voice import (
    AudioInput,
    OpenAIVoiceModelProvider,
    StreamedAudioInput,
    STTModelSettings,
    STTWebsocketConnectionError,
    TTSModelSettings,
)


class Speech(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Authorization"], body))
        is_speech = self.path.endswith("/audio/speech") and not self.server.refusal
        answer = b"\x01\x00\x02\x00" if is_speech else b'{"text": "good morning"}'
        if self.server.refusal:
            answer = json.dumps({"error": {"message": self.server.refusal}}).encode()
        self.send_response(401 if self.server.refusal else 200)
        self.send_header("Content-Type", "audio/pcm" if is_speech else "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Speech)
    server.seen, server.refusal = [], ""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def make_provider(port, scheme="http", key="sk-test"):
    from openai import AsyncOpenAI

    return OpenAIVoiceModelProvider(
        openai_client=AsyncOpenAI(api_key=key, base_url=f"{scheme}://127.0.0.1:{port}/v1", max_retries=0)
    )


async def test_a_recording_is_transcribed(server):
    provider = make_provider(server.server_port)
    model = provider.get_stt_model(None)
    audio = AudioInput(numpy.zeros(100, dtype=numpy.int16))
    text = await model.transcribe(audio, STTModelSettings(language="en", prompt="A greeting."), True, True)
    assert (text, model.model_name) == ("good morning", "gpt-transcribe")
    [(path, key, body)] = server.seen
    assert (path, key) == ("/v1/audio/transcriptions", "Bearer sk-test")
    for part in (b"gpt-transcribe", b"A greeting.", b"audio.wav", b"RIFF"):
        assert part in body
    await model._client.close()


async def test_text_is_synthesised(server):
    model = make_provider(server.server_port).get_tts_model(None)
    settings = TTSModelSettings(voice="nova", speed=1.5, instructions="Slowly.")
    assert b"".join([chunk async for chunk in model.run("Hello.", settings)]) == b"\x01\x00\x02\x00"
    sent = json.loads(server.seen[0][2])
    assert sent == {
        "model": "gpt-4o-mini-tts", "voice": "nova", "input": "Hello.", "response_format": "pcm",
        "instructions": "Slowly.", "speed": 1.5,
    }  # fmt: skip
    await model._client.close()


@asynccontextmanager
async def recognition(handle):
    async with serve(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def transcribe(port, *samples, settings=None, key="sk-test"):
    model = make_provider(port, key=key).get_stt_model("gpt-transcribe")
    audio = StreamedAudioInput()
    for part in samples:
        await audio.add_audio(numpy.array(part, dtype=numpy.int16))
    await audio.add_audio(None)
    session = await model.create_session(audio, settings or STTModelSettings(), True, True)
    try:
        return [text async for text in session.transcribe_turns()]
    finally:
        await session.close()
        await model._client.close()


async def test_streamed_audio_is_transcribed_turn_by_turn():
    seen = []

    async def handle(socket):
        seen.append((socket.request.path, socket.request.headers["Authorization"]))
        async for frame in socket:
            event = json.loads(frame)
            seen.append(event)
            if event["type"] == "input_audio_buffer.append":
                name = f"item{len(seen)}"
                await socket.send(json.dumps({"type": "input_audio_buffer.committed", "item_id": name}))
                kind = "conversation.item.input_audio_transcription.completed"
                await socket.send(json.dumps({"type": kind, "item_id": name, "transcript": f"turn {len(seen)}"}))
            if event["type"] == "input_audio_buffer.commit":
                error = {"code": "input_audio_buffer_commit_empty"}
                await socket.send(json.dumps({"type": "error", "error": error}))

    settings = STTModelSettings(languages=["en", "es"], keywords=["AC-42"], prompt="Support.")
    async with recognition(handle) as port:
        assert await transcribe(port, [1, 2], [3], settings=settings) == ["turn 3", "turn 4"]
    assert seen[0] == ("/v1/realtime?intent=transcription", "Bearer sk-test")
    transcription = seen[1]["session"]["audio"]["input"]["transcription"]
    assert transcription == {
        "model": "gpt-transcribe", "prompt": "Support.", "keywords": ["AC-42"], "languages": ["en", "es"],
    }  # fmt: skip
    assert base64.b64decode(seen[2]["audio"]) == b"\x01\x00\x02\x00"


async def test_a_connection_that_fails_or_ends_is_reported():
    async def refuse(socket):
        await socket.recv()
        await socket.send(json.dumps({"type": "error", "error": {"message": "no such model"}}))
        await socket.wait_closed()

    async def leave(socket):
        await socket.recv()
        await socket.close(1011)

    for handle, message in ((refuse, "no such model"), (leave, "closed the connection")):
        async with recognition(handle) as port:
            with pytest.raises(STTWebsocketConnectionError, match=message):
                await transcribe(port, [1])
    with pytest.raises(STTWebsocketConnectionError, match="cannot be reached"):
        await transcribe(port, [1])


async def test_a_key_that_the_server_repeats_is_in_no_error_and_no_log(caplog):
    key = "sk-very-secret-voice"
    caplog.set_level(logging.DEBUG)
    repeated = {"message": f"Incorrect API key provided: {key}"}

    async def fail_a_turn(socket):
        await socket.recv()
        kind = "conversation.item.input_audio_transcription.failed"
        await socket.send(json.dumps({"type": kind, "item_id": "1", "error": repeated}))
        await socket.send(json.dumps({"type": "error", "error": repeated}))
        await socket.wait_closed()

    async def leave(socket):
        await socket.recv()
        await socket.close(1011, key)

    for handle in (fail_a_turn, leave):
        async with recognition(handle) as port:
            with pytest.raises(STTWebsocketConnectionError, match=r"\*\*\*") as caught:
                await transcribe(port, [1], key=key)
        assert key not in str(caught.value)
    assert "Authorization: Bearer ***" in caplog.text
    own_lines = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.server")]
    assert key not in "\n".join(own_lines)


async def test_an_error_of_the_server_does_not_reveal_the_key(server):
    key = "sk-very-secret-voice"
    provider = make_provider(server.server_port, key=key)
    server.refusal = f"Incorrect API key provided: {key}"
    audio = AudioInput(numpy.zeros(100, dtype=numpy.int16))
    with pytest.raises(APIStatusError, match=r"\*\*\*") as caught:
        await provider.get_stt_model(None).transcribe(audio, STTModelSettings(), True, True)
    assert key not in str(caught.value)
    with pytest.raises(APIStatusError, match=r"\*\*\*") as caught:
        [chunk async for chunk in provider.get_tts_model(None).run("Hello.", TTSModelSettings())]
    assert key not in str(caught.value)
