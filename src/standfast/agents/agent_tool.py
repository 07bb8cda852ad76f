"""The declaration of an agent that is a tool of another agent. :mod:`standfast.runs` makes the nested run."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from standfast.agents.errors import InvalidArguments, UserError
from standfast.agents.strict_schema import to_strict_schema
from standfast.agents.tool_arguments import ArgumentsParser, ParsedArguments, load_arguments
from standfast.agents.types import MaybeAwaitable, ToolErrorFunction, maybe_await
from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.agent import Agent
    from standfast.agents.context import RunHooksBase, ToolContext

TEXT_INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "AgentAsToolInput",
    "description": "Default input schema for agent-as-tool calls.",
    "properties": {"input": {"title": "Input", "type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
PLAIN_TYPES = frozenset(["string", "number", "integer", "boolean"])


class StructuredToolInputBuilderOptions(TypedDict, total=False):
    """The argument of an ``input_builder``: the arguments of the call, and the schema that describes them."""

    params: Any
    summary: str | None
    json_schema: dict[str, Any] | None


StructuredToolInputBuilder: TypeAlias = Callable[[StructuredToolInputBuilderOptions], MaybeAwaitable[str | list[Item]]]


class AgentToolStreamEvent(TypedDict):
    """One event of a nested run, for ``on_stream``."""

    event: Any
    agent: "Agent[Any]"
    tool_call: Any | None


@dataclass(frozen=True)
class AgentToolInvocation:
    """The call of the outer run that a nested run answers."""

    tool_name: str
    tool_call_id: str
    tool_arguments: str


@dataclass(frozen=True)
class NestedInput:
    """The input of a nested agent, and the arguments of the call, which are ``context.tool_input`` of its run."""

    input: str | list[Item]
    tool_input: Any


@dataclass(frozen=True, eq=False)
class AgentTool:
    """The agent that a tool runs, with the options of the nested run.

    The nested run shares the context object and the usage of the outer run.
    """

    agent: "Agent[Any]"
    tool_name: str
    custom_output_extractor: Callable[[Any], Awaitable[str]] | None = None
    on_stream: Callable[[AgentToolStreamEvent], MaybeAwaitable[None]] | None = None
    run_config: Any | None = None
    max_turns: int | None = None
    hooks: "RunHooksBase[Any, Any] | None" = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    session: Any | None = None
    parameters: type[Any] | None = None
    input_builder: StructuredToolInputBuilder | None = None
    include_input_schema: bool = False

    def build_params_json_schema(self) -> dict[str, Any]:
        """Return the schema of the arguments for the outer model."""
        if self.parameters is None:
            return TEXT_INPUT_SCHEMA
        return to_strict_schema(self._make_adapter().json_schema(), where=f"parameters of {self.tool_name}")

    async def build_nested_input(self, arguments: str) -> NestedInput:
        """Return the nested agent's input for the arguments; raise :class:`ModelBehaviorError` if they are invalid."""
        params = self._parse_arguments(arguments, load_arguments(self.tool_name, arguments))
        if self.parameters is None and self.input_builder is None:
            return NestedInput(params["input"], params)
        schema = self.build_params_json_schema()
        options = StructuredToolInputBuilderOptions(
            params=params,
            summary=summarize_schema(schema) if self.parameters is not None else None,
            json_schema=schema if self.include_input_schema else None,
        )
        built = await maybe_await((self.input_builder or default_tool_input_builder)(options))
        if not isinstance(built, str | list):
            raise UserError(
                f"the input_builder of {self.tool_name} must return a string or a list of items, got {type(built)}"
            )
        return NestedInput(built, params)

    def make_parser(self) -> ArgumentsParser:
        """Return the parser of the arguments of a call."""
        names = frozenset(self.build_params_json_schema()["properties"])
        return ArgumentsParser(
            lambda text, written: ParsedArguments(text, written, self._parse_arguments(text, written)), names
        )

    def _parse_arguments(self, arguments: str, params: dict[str, Any]) -> Any:
        if self.parameters is not None:
            from pydantic import ValidationError

            from standfast.agents.function_schema import format_validation_error

            adapter = self._make_adapter()
            try:
                return adapter.dump_python(
                    adapter.validate_json(arguments or "{}", strict=True, extra="forbid"), mode="json"
                )
            except ValidationError as error:
                raise InvalidArguments(self.tool_name, format_validation_error(error)) from None
        if not isinstance(params.get("input"), str):
            raise InvalidArguments(self.tool_name, "'input' must be a string")
        if unknown := set(params) - {"input"}:
            raise InvalidArguments(self.tool_name, f"{', '.join(sorted(unknown))}: unknown argument")
        return params

    def _make_adapter(self) -> Any:
        # Imported here because tools without ``parameters`` do not need pydantic.
        from pydantic import TypeAdapter

        kind: Any = self.parameters
        return TypeAdapter(kind)


def default_tool_input_builder(options: StructuredToolInputBuilderOptions) -> str:
    """Return the arguments as JSON, after a sentence and before their schema or its summary if there is one."""
    params = json.dumps(options.get("params"), ensure_ascii=False)
    if schema := options.get("json_schema"):
        described = ["Its JSON schema:", json.dumps(schema, ensure_ascii=False)]
    elif summary := options.get("summary"):
        described = ["What its fields mean:", summary]
    else:
        return params
    return "\n".join(["You were called as a tool. The request, as JSON:", params, *described])


def summarize_schema(schema: dict[str, Any]) -> str | None:
    """Return one line for each field; ``None`` if nothing is described, or a field is not a plain value."""
    fields = schema.get("properties", {})
    described = [part.get("description") for part in (schema, *fields.values())]
    if not any(described) or any(part.get("type") not in PLAIN_TYPES for part in fields.values()):
        return None
    lines = [f"Description: {described[0]}"] if described[0] else []
    for name, part in fields.items():
        needed = "required" if name in schema.get("required", ()) else "optional"
        meaning = f" - {part['description']}" if part.get("description") else ""
        lines.append(f"- {name} ({part['type']}, {needed}){meaning}")
    return "\n".join(lines)


async def call_directly(
    nested: AgentTool, error_function: ToolErrorFunction | None, context: "ToolContext[Any]", arguments: str
) -> Any:
    """Run the agent for a program that calls the tool by hand. Runs and realtime sessions nest it instead."""
    runs: Any = import_module("standfast.runs.direct_call")  # this package only declares agents
    return await runs.call_agent_tool(nested, error_function, context, arguments)
