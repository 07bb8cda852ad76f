"""Any text model as the brain of a realtime session."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from holdfast.agents.errors import UserError
from holdfast.agents.model_settings import ModelSettings
from holdfast.agents.tool_refs import part_of
from holdfast.agents.tools import FunctionTool, Tool
from holdfast.base.items import Item, text_of
from holdfast.models.asking import ModelRequest, closing
from holdfast.models.contract import Model, ModelResponse, StreamCut, completed
from holdfast.realtime.local.brain import Brain, Call, Question, Say, ScriptedBrain, Turn

_WORDS = frozenset(["response.output_text.delta", "response.refusal.delta"])
_STILL_OUT = "There is no result yet: the call is still being made. It will be told; do not repeat the call."


class ModelBrain:
    """Asks a text model, with the session's instructions, tools and conversation. Its words are spoken as they come."""

    def __init__(self, model: Model, *, settings: ModelSettings | None = None) -> None:
        self._model, self._settings = model, settings or ModelSettings()

    async def answer(self, question: Question) -> AsyncGenerator[Say | Call, None]:
        answer: ModelResponse | None = None
        streamed = False
        async with closing(self._request(question).put_to(self._model.stream_response)) as events:
            async for event in events:
                answer = completed(event) or answer
                if part_of(event, "type") in _WORDS:
                    streamed = True
                    yield Say(part_of(event, "delta"))
        if answer is None:
            raise StreamCut("the stream ended before the answer was complete")
        for item in answer.items:
            match item.get("type"):
                case "function_call":
                    # Under a name of the server's: some models count their calls anew in every answer.
                    yield Call(item["name"], item["arguments"])
                case "message" if not streamed:
                    yield Say(text_of(item))

    def _request(self, question: Question) -> ModelRequest:
        tools = [_tool_of(tool) for tool in question.tools if tool["type"] == "function"]
        choice = question.tool_choice
        wanted = ModelSettings(
            tool_choice=(choice if isinstance(choice, str) else choice.get("name")) if tools else None,
            max_tokens=question.max_output_tokens,
        )
        return ModelRequest(
            _answered(question.items),
            system_instructions=question.instructions or None,
            model_settings=self._settings.resolve(wanted),
            tools=tools,
        )


def as_brain(brain: Model | Brain | Sequence[Turn]) -> Brain:
    """A text model or a script as something that answers; what is a brain already stays as it is."""
    if isinstance(brain, Model):
        return ModelBrain(brain)
    if isinstance(brain, str) or not (isinstance(brain, Sequence) or hasattr(brain, "answer")):
        raise UserError(f"a brain is a text model, a list of turns such as ['Hello.'], or has answer(), not {brain!r}")
    return ScriptedBrain(brain) if isinstance(brain, Sequence) else brain


def _answered(items: list[Item]) -> list[Item]:
    """Every call with its output right behind it, as text models demand; in a call, people talk on meanwhile."""
    outputs = {item["call_id"]: item for item in items if item["type"] == "function_call_output"}
    found = []
    for item in items:
        if item["type"] == "function_call":
            unknown = {"type": "function_call_output", "call_id": item["call_id"], "output": _STILL_OUT}
            found += [item, outputs.get(item["call_id"], unknown)]
        elif item["type"] != "function_call_output":
            found.append(item)
    return found


async def _not_here(*_: Any) -> Any:
    raise RuntimeError("a tool of a realtime session is run by its client")


def _tool_of(declared: dict[str, Any]) -> Tool:
    return FunctionTool(
        name=declared["name"],
        description=declared.get("description") or "",
        params_json_schema=declared.get("parameters") or {"type": "object", "properties": {}},
        on_invoke_tool=_not_here,
        strict_json_schema=False,
    )
