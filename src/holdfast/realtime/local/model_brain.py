"""Any text model as the brain of a realtime session."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from holdfast.agents.model_settings import ModelSettings
from holdfast.agents.tool_refs import part_of
from holdfast.agents.tools import FunctionTool, Tool
from holdfast.models.asking import ModelRequest, ask
from holdfast.models.contract import Model
from holdfast.realtime.local.brain import Call, Question, Say


class ModelBrain:
    """Asks a text model, with the session's instructions, tools and conversation. Its words are spoken as they come."""

    def __init__(self, model: Model, *, settings: ModelSettings | None = None) -> None:
        self._model, self._settings = model, settings or ModelSettings()

    async def answer(self, question: Question) -> AsyncIterator[Say | Call]:
        words: asyncio.Queue[str | None] = asyncio.Queue()

        async def hear(event: Any) -> None:
            if part_of(event, "type") == "response.output_text.delta":
                words.put_nowait(part_of(event, "delta"))

        asking = asyncio.create_task(ask(self._model, self._request(question), emit=hear))
        asking.add_done_callback(lambda _: words.put_nowait(None))
        try:
            while (word := await words.get()) is not None:
                yield Say(word)
            for item in (await asking).items:
                if item.get("type") == "function_call":
                    yield Call(item["name"], item["arguments"], item["call_id"])
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    def _request(self, question: Question) -> ModelRequest:
        tools = [_tool_of(tool) for tool in question.tools if tool["type"] == "function"]
        choice = question.tool_choice
        wanted = ModelSettings(
            tool_choice=(choice if isinstance(choice, str) else choice.get("name")) if tools else None,
            max_tokens=question.max_output_tokens,
        )
        return ModelRequest(
            question.items,
            system_instructions=question.instructions or None,
            model_settings=self._settings.resolve(wanted),
            tools=tools,
        )


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
