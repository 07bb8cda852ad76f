"""Any text model as the brain of a realtime session."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from standfast.agents.errors import UserError
from standfast.agents.model_settings import ModelSettings
from standfast.agents.tool_identity import get_field
from standfast.agents.tools import FunctionTool, Tool
from standfast.base.items import Item, extract_text
from standfast.models.interface import IncompleteStream, Model, ModelResponse, parse_final_event
from standfast.models.request import ModelRequest, aclosing
from standfast.realtime.local.responder import CallTool, Responder, ResponderRequest, Say, ScriptedResponder, ScriptTurn

_TEXT_DELTA_TYPES = frozenset(["response.output_text.delta", "response.refusal.delta"])
_PENDING_OUTPUT = "There is no result yet: the call is still being made. It will be told; do not repeat the call."


class TextModelResponder:
    """Asks a text model, with the session's instructions, tools and conversation. Its words are spoken as they come."""

    def __init__(self, model: Model, *, settings: ModelSettings | None = None) -> None:
        self._model, self._settings = model, settings or ModelSettings()

    async def respond(self, request: ResponderRequest) -> AsyncGenerator[Say | CallTool, None]:
        answer: ModelResponse | None = None
        streamed = False
        async with aclosing(self._build_model_request(request).send_to(self._model.stream_response)) as events:
            async for event in events:
                answer = parse_final_event(event) or answer
                if get_field(event, "type") in _TEXT_DELTA_TYPES:
                    streamed = True
                    yield Say(get_field(event, "delta"))
        if answer is None:
            raise IncompleteStream("the stream ended before the answer was complete")
        for item in answer.items:
            match item.get("type"):
                case "function_call":
                    # Under a name of the server's: some models count their calls anew in every answer.
                    yield CallTool(item["name"], item["arguments"])
                case "message" if not streamed:
                    yield Say(extract_text(item))

    def _build_model_request(self, request: ResponderRequest) -> ModelRequest:
        tools = [_build_tool(tool) for tool in request.tools if tool["type"] == "function"]
        choice = request.tool_choice
        wanted = ModelSettings(
            tool_choice=(choice if isinstance(choice, str) else choice.get("name")) if tools else None,
            max_tokens=request.max_output_tokens,
        )
        return ModelRequest(
            _pair_calls_with_outputs(request.items),
            system_instructions=request.instructions or None,
            model_settings=self._settings.resolve(wanted),
            tools=tools,
        )


def as_responder(responder: Model | Responder | Sequence[ScriptTurn]) -> Responder:
    """A text model or a script as something that answers; what is a brain already stays as it is."""
    if isinstance(responder, Model):
        return TextModelResponder(responder)
    if isinstance(responder, str) or not (isinstance(responder, Sequence) or hasattr(responder, "respond")):
        raise UserError(
            f"a brain is a text model, a list of turns such as ['Hello.'], or has answer(), not {responder!r}"
        )
    return ScriptedResponder(responder) if isinstance(responder, Sequence) else responder


def _pair_calls_with_outputs(items: list[Item]) -> list[Item]:
    """Every call with its output right behind it, as text models demand; in a call, people talk on meanwhile."""
    outputs = {item["call_id"]: item for item in items if item["type"] == "function_call_output"}
    found = []
    for item in items:
        if item["type"] == "function_call":
            unknown = {"type": "function_call_output", "call_id": item["call_id"], "output": _PENDING_OUTPUT}
            found += [item, outputs.get(item["call_id"], unknown)]
        elif item["type"] != "function_call_output":
            found.append(item)
    return found


async def _reject_invocation(*_: Any) -> Any:
    raise RuntimeError("a tool of a realtime session is run by its client")


def _build_tool(declaration: dict[str, Any]) -> Tool:
    return FunctionTool(
        name=declaration["name"],
        description=declaration.get("description") or "",
        params_json_schema=declaration.get("parameters") or {"type": "object", "properties": {}},
        on_invoke_tool=_reject_invocation,
        strict_json_schema=False,
    )
