"""Calls that a local model has to make. The server holds its words to a grammar, so even a small one makes them."""

import json
from collections.abc import Iterable
from typing import Any

from standfast.agents.errors import ModelBehaviorError, UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.interface import ModelResponse
from standfast.models.openai.chat_conversion import ToolNameResolver, make_local_id, to_chat_tools
from standfast.models.openai.typed import to_typed_item


class ForcedCallSchema(AgentOutputSchemaBase):
    """The shape of an answer that is a call of one of the given functions and nothing else."""

    def __init__(self, functions: list[Item]) -> None:
        self.functions = functions

    def is_plain_text(self) -> bool:
        return False

    def is_strict_json_schema(self) -> bool:
        return True

    def name(self) -> str:
        return "call"

    def json_schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"const": function["name"]}, "arguments": function["parameters"]},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
                for function in self.functions
            ]
        }

    def validate_json(self, json_str: str) -> Any:
        try:
            call = json.loads(json_str)
            return call["name"], json.dumps(call["arguments"], ensure_ascii=False)
        except (ValueError, KeyError, TypeError):
            raise ModelBehaviorError(
                f"the local model's call was cut short, let it have more tokens: {json_str!r}"
            ) from None

    def build_instructions(self, base_instructions: str | None) -> str:
        """What the model is told: the functions there are, in place of the tools that it is not given."""
        told = [{name: function[name] for name in ("name", "description", "parameters")} for function in self.functions]
        listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in told)
        return "\n\n".join(
            filter(None, [base_instructions, f"Answer with a call of one of these functions:\n{listed}"])
        )

    def parse_call(self, response: ModelResponse, tools: Iterable[Tool]) -> Any:
        """The call that the answer's words are."""
        words = "".join(part.get("text", "") for item in response.items for part in item.get("content") or [])
        name, arguments = self.validate_json(words)
        call = ToolNameResolver(tools).make_call_item(
            item_id=make_local_id("fc"), call_id=make_local_id("call"), name=name, arguments=arguments
        )
        return to_typed_item(call)


def build_forced_call(choice: Any, tools: list[Tool], handoffs: list[Handoff[Any, Any]]) -> ForcedCallSchema | None:
    """The call that the settings demand; ``None`` when the model may do as it likes."""
    if choice is None or choice in ("auto", "none"):
        return None
    functions = [entry["function"] for entry in to_chat_tools(tools, handoffs)]
    wanted = [function for function in functions if choice in ("required", function["name"])]
    if not wanted:
        raise UserError(
            f"tool_choice demands {choice!r}; there is {', '.join(f['name'] for f in functions) or 'no tool'}"
        )
    return ForcedCallSchema(wanted)
