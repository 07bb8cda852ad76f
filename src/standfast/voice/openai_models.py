"""Speech models of OpenAI: recordings, speech as it is spoken, and synthesis."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from standfast.agents.errors import AgentsException
from standfast.base.errors import MissingExtra
from standfast.base.log import get_logger, hide_in_logs
from standfast.base.network import make_websocket_connector
from standfast.models.openai.client import hide_api_key, mask
from standfast.models.openai.provider import OpenAIProvider
from standfast.voice.audio import DEFAULT_SAMPLE_RATE, AudioInput, StreamedAudioInput, to_pcm16
from standfast.voice.speech_models import (
    StreamedTranscriptionSession,
    STTModel,
    STTModelSettings,
    TTSModel,
    TTSModelSettings,
    VoiceModelProvider,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DEFAULT_STT_MODEL = "gpt-transcribe"
DEFAULT_TTS_MODEL = "gpt-4o-mini-tts"
DEFAULT_VOICE = "ash"
DEFAULT_TURN_DETECTION = {"type": "semantic_vad"}
CONNECT_TIMEOUT = 10.0
_NOTHING_TO_COMMIT = "input_audio_buffer_commit_empty"
_LANGUAGE_LISTS = ("gpt-transcribe", "gpt-live-transcribe")
_log = get_logger("standfast.voice")


class STTWebsocketConnectionError(AgentsException):
    """The connection to the speech recognition failed or was closed by the server."""

    code = "speech-connection"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OpenAISTTModel(STTModel):
    """Speech recognition by OpenAI. The client is not closed."""

    def __init__(self, model: str, openai_client: "AsyncOpenAI") -> None:
        self.model, self._client = model, openai_client

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self.model

    async def transcribe(
        self,
        input: AudioInput,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> str:
        values = {"prompt": settings.prompt, "language": settings.language, "temperature": settings.temperature}
        options: Any = {name: value for name, value in values.items() if value is not None}
        with hide_api_key(self._client):
            response = await self._client.audio.transcriptions.create(
                model=self.model, file=input.to_audio_file(), **options
            )
        text: str = response.text
        return text

    async def create_session(
        self,
        input: StreamedAudioInput,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> StreamedTranscriptionSession:
        return OpenAISTTTranscriptionSession(
            input,
            self._client,
            self.model,
            settings,
            trace_include_sensitive_data,
            trace_include_sensitive_audio_data,
        )


class OpenAISTTTranscriptionSession(StreamedTranscriptionSession):
    """A transcription over a WebSocket. The address, key and headers are those of the client."""

    def __init__(
        self,
        input: StreamedAudioInput,
        client: "AsyncOpenAI",
        model: str,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> None:
        self._input, self._client, self.model, self._settings = input, client, model, settings
        self._socket: Any = None
        self._sender: asyncio.Task[None] | None = None

    async def transcribe_turns(self) -> AsyncIterator[str]:
        """Yield the text of each turn, until the audio has ended and everything that was heard is transcribed."""
        from websockets.exceptions import ConnectionClosed

        await self._connect()
        pending: set[str] = set()
        complete = False
        try:
            while pending or not complete:
                event = await self._receive(waiting=bool(pending))
                kind = event.get("type")
                complete = complete or not event
                if kind == "input_audio_buffer.committed":
                    pending.add(str(event.get("item_id")))
                elif kind == "conversation.item.input_audio_transcription.completed":
                    pending.discard(str(event.get("item_id")))
                    if event.get("transcript"):
                        yield event["transcript"]
                elif kind == "conversation.item.input_audio_transcription.failed":
                    pending.discard(str(event.get("item_id")))
                    _log.warning("a turn could not be transcribed: %s", mask(event.get("error"), self._client.api_key))
                elif kind == "error" and event["error"].get("code") == _NOTHING_TO_COMMIT:
                    complete = True
                elif kind == "error":
                    problem = mask(event.get("error"), self._client.api_key)
                    raise STTWebsocketConnectionError(f"the speech recognition reports an error: {problem}")
        except ConnectionClosed as error:
            reason = mask(str(error), self._client.api_key)
            raise STTWebsocketConnectionError(f"the speech recognition closed the connection: {reason}") from error
        if self._sender is not None:
            await self._sender

    async def close(self) -> None:
        """Close the connection. No more turns follow."""
        sender, self._sender, socket, self._socket = self._sender, None, self._socket, None
        if sender is not None:
            sender.cancel()
            await asyncio.wait({sender})
        if socket is not None:
            await socket.close()

    async def _connect(self) -> None:
        try:
            import websockets.asyncio.client
            from websockets.exceptions import WebSocketException
        except ImportError:
            raise MissingExtra("voice", "the transcription of streamed audio") from None
        connect = make_websocket_connector(websockets)
        hide_in_logs(self._client.api_key)
        headers = {name: str(value) for name, value in self._client.auth_headers.items() if isinstance(value, str)}
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                self._socket = await connect(make_socket_url(self._client), additional_headers=headers)
        except (OSError, TimeoutError, WebSocketException) as error:
            raise STTWebsocketConnectionError(f"the speech recognition cannot be reached: {error}") from error
        await self._socket.send(msgspec.json.encode(self._make_settings()), text=True)
        self._sender = asyncio.create_task(self._send_audio(), name="audio of a voice pipeline")

    def _make_settings(self) -> dict[str, Any]:
        settings = self._settings
        languages = settings.languages or ([settings.language] if settings.language else None)
        values = {
            "model": self.model,
            "prompt": settings.prompt,
            "keywords": settings.keywords,
            **({"languages": languages} if self.model in _LANGUAGE_LISTS else {"language": settings.language}),
        }
        return {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": DEFAULT_SAMPLE_RATE},
                        "transcription": {name: value for name, value in values.items() if value is not None},
                        "turn_detection": settings.turn_detection or DEFAULT_TURN_DETECTION,
                    }
                },
            },
        }

    async def _send_audio(self) -> None:
        while (samples := await self._input.queue.get()) is not None:
            audio = base64.b64encode(to_pcm16(samples)).decode()
            await self._socket.send(
                msgspec.json.encode({"type": "input_audio_buffer.append", "audio": audio}), text=True
            )
        await self._socket.send(b'{"type":"input_audio_buffer.commit"}', text=True)

    async def _receive(self, *, waiting: bool) -> dict[str, Any]:
        """Return the next event. Once the audio has ended, an empty one is returned if nothing comes for a while."""
        receive = asyncio.ensure_future(self._socket.recv())
        sender = self._sender
        assert sender is not None  # noqa: S101 - it is started with the connection
        try:
            if not sender.done():
                await asyncio.wait({receive, sender}, return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                if sender.done() and sender.exception() is not None:
                    await sender
                await asyncio.wait({receive}, timeout=CONNECT_TIMEOUT if waiting else 1.0)
            if not receive.done():
                if waiting:
                    raise STTWebsocketConnectionError("the speech recognition does not answer")
                return {}
            event: dict[str, Any] = msgspec.json.decode(receive.result())
            return event
        finally:
            receive.cancel()


def make_socket_url(client: "AsyncOpenAI") -> str:
    """Return the address of the transcription for the server of a client."""
    base = urlsplit(str(client.websocket_base_url or client.base_url))
    scheme = {"https": "wss", "http": "ws"}.get(base.scheme, base.scheme)
    query = urlencode({**{name: str(value) for name, value in client.default_query.items()}, "intent": "transcription"})
    return urlunsplit((scheme, base.netloc, base.path.rstrip("/") + "/realtime", query, ""))


class OpenAITTSModel(TTSModel):
    """Speech synthesis by OpenAI. The client is not closed."""

    def __init__(self, model: str, openai_client: "AsyncOpenAI") -> None:
        self.model, self._client = model, openai_client

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self.model

    async def run(self, text: str, settings: TTSModelSettings) -> AsyncIterator[bytes]:
        options: Any = {} if settings.speed is None else {"speed": settings.speed}
        voice: Any = settings.voice or DEFAULT_VOICE
        with hide_api_key(self._client):
            async with self._client.audio.speech.with_streaming_response.create(
                model=self.model,
                voice=voice,
                input=text,
                response_format="pcm",
                extra_body={"instructions": settings.instructions},
                **options,
            ) as response:
                async for chunk in response.iter_bytes(chunk_size=1024):
                    yield chunk


class OpenAIVoiceModelProvider(VoiceModelProvider):
    """Speech models at OpenAI or at a compatible server."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        openai_client: "AsyncOpenAI | None" = None,
        organization: str | None = None,
        project: str | None = None,
        agent_registration: Any = None,
    ) -> None:
        self._provider = OpenAIProvider(
            api_key=api_key,
            base_url=base_url,
            openai_client=openai_client,
            organization=organization,
            project=project,
            agent_registration=agent_registration,
        )

    @property
    def agent_registration(self) -> Any:
        """The value passed to the constructor. It has no effect."""
        return self._provider.agent_registration

    def get_stt_model(self, model_name: str | None) -> STTModel:
        """Return the model with this name that recognizes speech, by default the provider's."""
        return OpenAISTTModel(model_name or DEFAULT_STT_MODEL, self._provider.get_client())

    def get_tts_model(self, model_name: str | None) -> TTSModel:
        """Return the model with this name that speaks, by default the provider's."""
        return OpenAITTSModel(model_name or DEFAULT_TTS_MODEL, self._provider.get_client())
