"""Responders: the protocol of what answers in a local session, a scripted one and one that asks a text model."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from standfast.agents.errors import UserError
from standfast.agents.model_settings import ModelSettings
from standfast.agents.tool_identity import get_field
from standfast.agents.tools import FunctionTool, Tool
from standfast.base.items import Item
from standfast.base.text import extract_text
from standfast.models.interface import IncompleteStream, Model, ModelResponse, parse_final_event
from standfast.models.request import ModelRequest, closing_stream
from standfast.realtime.local.conversation import ConversationEntry
from standfast.realtime.local.responses import EngineResponse


@dataclass(frozen=True)
class Say:
    """Text to speak or write. Consecutive ones are one text."""

    text: str


@dataclass(frozen=True)
class CallTool:
    """A function call. Arguments given as a string are sent as they are, valid or not."""

    name: str
    arguments: str | Mapping[str, Any] = "{}"
    call_id: str | None = None

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Pause:
    """A pause in a scripted turn."""

    seconds: float


@dataclass(frozen=True)
class ResponderRequest:
    """The input of a responder: the conversation as items of the Responses API, and settings of the session.

    Speech is included as its transcript. ``tools`` are declarations in the structure of the protocol.
    """

    items: list[Item]
    instructions: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    max_output_tokens: int | None = None


class Responder(Protocol):
    """Produces responses, several at a time if requested. The generator is closed early if its response ends."""

    def respond(self, request: ResponderRequest) -> AsyncGenerator[Say | CallTool, None]:
        """Yield text and calls, in order, as soon as they are known. An exception fails the response."""


ScriptStep: TypeAlias = str | Say | CallTool | Pause | BaseException
ScriptTurn: TypeAlias = ScriptStep | Sequence[ScriptStep]


class ScriptExhausted(Exception):
    """The script has no turn left."""


class ScriptedResponder:
    """Answers each request with the next turn of a script.

    A turn is a text, a :class:`CallTool`, an exception to raise, or a list of these with :class:`Pause` between them.
    After the last turn, ``default`` is the turn; without it the response fails.
    """

    def __init__(self, turns: Iterable[ScriptTurn] = (), *, default: ScriptTurn | None = None) -> None:
        self._turns = deque(turns)
        self._default = default
        self.requests: list[ResponderRequest] = []

    @property
    def remaining(self) -> int:
        """How many turns of the script are left."""
        return len(self._turns)

    def add_turn(self, turn: ScriptTurn) -> None:
        """Add a turn to the end of the script."""
        self._turns.append(turn)

    async def respond(self, request: ResponderRequest) -> AsyncGenerator[Say | CallTool, None]:
        """Yield the next turn of the script."""
        self.requests.append(request)
        turn = self._turns.popleft() if self._turns else self._default
        if turn is None:
            raise ScriptExhausted(f"the script has no turn for request {len(self.requests)}")
        for step in turn if isinstance(turn, Sequence) and not isinstance(turn, str) else [turn]:
            match step:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case BaseException():
                    raise step
                case str():
                    yield Say(step)
                case _:
                    yield step


def build_responder_request(response: EngineResponse, tools: list[dict[str, Any]]) -> ResponderRequest:
    """Build the request for a response from its context and settings."""
    settings = response.settings
    limit = settings.max_output_tokens
    return ResponderRequest(
        items=[item for entry in response.context if (item := _to_model_item(entry)) is not None],
        instructions=settings.instructions,
        tools=tools,
        tool_choice=settings.tool_choice,
        max_output_tokens=limit if isinstance(limit, int) else None,
    )


def _to_model_item(entry: ConversationEntry) -> Item | None:
    """Convert an entry to an item of the Responses API; ``None`` if it has no text left."""
    item = entry.item
    match item["type"]:
        case "function_call":
            return {name: item[name] for name in ("type", "call_id", "name", "arguments")}
        case "function_call_output":
            return {name: item[name] for name in ("type", "call_id", "output")}
    if item["role"] != "assistant":
        return {
            "type": "message",
            "role": item["role"],
            "content": [_to_model_part(entry, part) for part in item["content"]],
        }
    if not entry.text:
        return None
    content = [{"type": "output_text", "text": entry.text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def _to_model_part(entry: ConversationEntry, part: Item) -> Item:
    if part["type"] == "input_image":
        return {"type": "input_image", "image_url": part.get("image_url"), "detail": part.get("detail") or "auto"}
    text = part.get("text") or part.get("transcript") or (entry.transcript if part["type"] == "input_audio" else None)
    placeholder = f"({entry.audio_ms / 1000:.1f} seconds of speech without a transcript)"
    return {"type": "input_text", "text": text if text is not None else placeholder}


_TEXT_DELTA_TYPES = frozenset(["response.output_text.delta", "response.refusal.delta"])
_PENDING_OUTPUT = "No result yet: the call is still running. Its result will follow; do not repeat the call."


class TextModelResponder:
    """Asks a text model, with the instructions, tools and conversation of the session, and streams its text."""

    def __init__(self, model: Model, *, settings: ModelSettings | None = None) -> None:
        self._model, self._settings = model, settings or ModelSettings()

    async def respond(self, request: ResponderRequest) -> AsyncGenerator[Say | CallTool, None]:
        """Yield the answer of the text model."""
        answer: ModelResponse | None = None
        streamed = False
        async with closing_stream(self._build_model_request(request).send_to(self._model.stream_response)) as events:
            async for event in events:
                answer = parse_final_event(event) or answer
                if get_field(event, "type") in _TEXT_DELTA_TYPES:
                    streamed = True
                    yield Say(get_field(event, "delta"))
        if answer is None:
            raise IncompleteStream("the stream of the text model ended before its response was complete")
        for item in answer.items:
            match item.get("type"):
                case "function_call":
                    # Without the model's call id: some models reuse ids in every response.
                    yield CallTool(item["name"], item["arguments"])
                case "message" if not streamed:
                    yield Say(extract_text(item))

    def _build_model_request(self, request: ResponderRequest) -> ModelRequest:
        tools = [_build_tool(tool) for tool in request.tools if tool["type"] == "function"]
        choice = request.tool_choice
        overrides = ModelSettings(
            tool_choice=(choice if isinstance(choice, str) else choice.get("name")) if tools else None,
            max_tokens=request.max_output_tokens,
        )
        return ModelRequest(
            _pair_calls_with_outputs(request.items),
            system_instructions=request.instructions or None,
            model_settings=self._settings.resolve(overrides),
            tools=tools,
        )


def as_responder(responder: Model | Responder | Sequence[ScriptTurn]) -> Responder:
    """Return a responder for a text model or a script; a responder is returned as it is."""
    if isinstance(responder, Model):
        return TextModelResponder(responder)
    if isinstance(responder, str) or not (isinstance(responder, Sequence) or hasattr(responder, "respond")):
        raise UserError(
            "a responder must be a text model, a list of turns such as ['Hello.'], or an object with respond(), "
            f"got {responder!r}"
        )
    return ScriptedResponder(responder) if isinstance(responder, Sequence) else responder


def _pair_calls_with_outputs(items: list[Item]) -> list[Item]:
    """Move each output directly behind its call, as text models require; in speech, other items may come between."""
    outputs = {item["call_id"]: item for item in items if item["type"] == "function_call_output"}
    result = []
    for item in items:
        if item["type"] == "function_call":
            pending = {"type": "function_call_output", "call_id": item["call_id"], "output": _PENDING_OUTPUT}
            result += [item, outputs.get(item["call_id"], pending)]
        elif item["type"] != "function_call_output":
            result.append(item)
    return result


async def _reject_invocation(*_: Any) -> Any:
    raise RuntimeError("tools of a realtime session are run by its client, not by the responder")


def _build_tool(declaration: dict[str, Any]) -> Tool:
    return FunctionTool(
        name=declaration["name"],
        description=declaration.get("description") or "",
        params_json_schema=declaration.get("parameters") or {"type": "object", "properties": {}},
        on_invoke_tool=_reject_invocation,
        strict_json_schema=False,
    )
