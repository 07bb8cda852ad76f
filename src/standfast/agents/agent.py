"""Agents: a model with its instructions, prompt, tools, handoffs and guardrails. Declarations; runs execute them."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NotRequired, TypeAlias, TypedDict, TypeVar, get_origin

from standfast.agents.agent_tool import AgentTool, AgentToolStreamEvent, StructuredToolInputBuilder, call_directly
from standfast.agents.context import AgentHooksBase, RunContextWrapper, RunHooksBase
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.guardrails import InputGuardrail, OutputGuardrail
from standfast.agents.handoffs import Handoff, as_handoff
from standfast.agents.model_settings import ModelSettings, get_default_model_settings, get_implicit_settings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tool_identity import to_function_name
from standfast.agents.tools import (
    FunctionTool,
    StopAtTools,
    Tool,
    ToolOrigin,
    ToolOriginType,
    ToolsToFinalOutputFunction,
    default_tool_error_function,
    filter_enabled,
)
from standfast.agents.types import (
    Enabled,
    MaybeAwaitable,
    ModelLike,
    NeedsApproval,
    TContext,
    ToolErrorFunction,
    ToolSource,
    maybe_await,
)
from standfast.base.validation import validate_integer

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper
    from standfast.base.items import Item


class Prompt(TypedDict):
    """A prompt stored at the provider, with the values of its variables."""

    id: str
    version: NotRequired[str]
    variables: NotRequired[dict[str, Any]]


@dataclass
class GenerateDynamicPromptData:
    """The argument of a prompt function."""

    context: "RunContextWrapper[Any]"
    agent: "Agent[Any]"


DynamicPromptFunction: TypeAlias = Callable[[GenerateDynamicPromptData], MaybeAwaitable[Prompt]]


async def resolve_prompt(
    prompt: Prompt | DynamicPromptFunction | None, context: "RunContextWrapper[Any]", agent: "Agent[Any]"
) -> dict[str, Any] | None:
    """Return ``id``, ``version`` and ``variables`` of the prompt, with ``None`` for those that are not set."""
    if prompt is None:
        return None
    value = await maybe_await(prompt(GenerateDynamicPromptData(context, agent))) if callable(prompt) else prompt
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise UserError(f"the prompt of agent {agent.name!r} must be a dict with an 'id', got {value!r}")
    return {"id": value["id"], "version": value.get("version"), "variables": value.get("variables")}


A = TypeVar("A", bound="AgentBase[Any]")

Instructions: TypeAlias = str | Callable[[RunContextWrapper[Any], Any], MaybeAwaitable[str]]
ToolUseBehavior: TypeAlias = Literal["run_llm_again", "stop_on_first_tool"] | StopAtTools | ToolsToFinalOutputFunction


class MCPConfig(TypedDict):
    """How tools of MCP servers are converted to tools of the agent."""

    convert_schemas_to_strict: NotRequired[bool]
    """Whether schemas are converted to strict ones where possible, by default not."""
    failure_error_function: NotRequired[ToolErrorFunction | None]
    """Converts a failed call into a text for the model; None raises the error."""
    include_server_in_tool_names: NotRequired[bool]
    """Whether tools get the name of their server as a prefix, by default not."""


@dataclass(eq=False)
class AgentBase(Generic[TContext]):
    """The fields that every kind of agent has. Agents compare by identity."""

    name: str
    """The name, by which runs, handoffs and traces refer to the agent."""
    handoff_description: str | None = None
    """What the agent is for, as shown to agents that may hand off to it."""
    tools: list[Tool] = field(default_factory=list)
    """The tools that the model may call."""
    mcp_servers: list[ToolSource] = field(default_factory=list)
    """MCP servers whose tools the model may call, too."""
    mcp_config: MCPConfig = field(default_factory=MCPConfig)
    """How the tools of MCP servers are converted."""

    def __post_init__(self) -> None:
        _check_type("name", self.name, str)
        _check_type("handoff_description", self.handoff_description, str | None)
        _check_type("tools", self.tools, list)
        _check_tools(self)
        _check_type("mcp_servers", self.mcp_servers, list)
        _check_type("mcp_config", self.mcp_config, dict)

    async def get_mcp_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """Return the tools that the MCP servers offer now, server by server; two with the same name are an error."""
        offered: list[Tool] = []
        repeated: set[str] = set()
        for server in self.mcp_servers:
            tools = await server.get_function_tools(run_context, self)
            repeated |= {tool.name for tool in tools} & {tool.name for tool in offered}
            offered += tools
        if repeated:
            raise UserError(
                f"several MCP servers of the agent {self.name!r} have a tool named {', '.join(sorted(repeated))}: "
                "exclude all but one with a tool_filter, or set include_server_in_tool_names in mcp_config"
            )
        return offered

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """Return every tool that is enabled now: those of the MCP servers, then the agent's own."""
        _check_tools(self)
        tools = [*await self.get_mcp_tools(run_context), *self.tools] if self.mcp_servers else self.tools
        return await filter_enabled(tools, run_context, self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


@dataclass(eq=False, repr=False)
class Agent(AgentBase[TContext]):
    """A model with instructions, tools, guardrails and the agents that it may hand off to.

    Without ``model_settings``, models of the GPT-5 family get short answers and little reasoning.

    Lists may be changed after construction, for example to let two agents hand off to each other; a run reads them
    when it needs them.
    """

    instructions: Instructions | None = None
    """The system prompt: a text, or a function of the context and the agent that returns one."""
    prompt: Prompt | DynamicPromptFunction | None = None
    """A prompt stored at the provider, or a function that returns one."""
    handoffs: "list[Agent[Any] | Handoff[TContext, Any]]" = field(default_factory=list)
    """The agents that may take over the conversation."""
    model: str | ModelLike | None = None
    """The name of a model, or a model object. None: that of the run, else the default of the provider."""
    model_settings: ModelSettings = field(default_factory=get_default_model_settings)
    """Settings of the requests, such as temperature and retries."""
    input_guardrails: list[InputGuardrail[TContext]] = field(default_factory=list)
    """Checks of the first input of a run, before or beside the first request."""
    output_guardrails: list[OutputGuardrail[TContext]] = field(default_factory=list)
    """Checks of the final output."""
    output_type: type[Any] | AgentOutputSchemaBase | None = None
    """The type of the final output. None: text."""
    hooks: AgentHooksBase[TContext, Any] | None = None
    """Callbacks for the events of this agent."""
    tool_use_behavior: ToolUseBehavior = "run_llm_again"
    """What follows a tool call: the model is asked again, or an output is the final output."""
    reset_tool_choice: bool = True
    """Whether a required tool is required only until it was called, which prevents loops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("handoffs", "input_guardrails", "output_guardrails"):
            _check_type(name, getattr(self, name), list)
        _check_type("model", self.model, str | ModelLike | None)
        _check_type("hooks", self.hooks, AgentHooksBase | None)
        _check_type("reset_tool_choice", self.reset_tool_choice, bool)
        for name, kind in (("instructions", str), ("prompt", dict)):
            value = getattr(self, name)
            if not callable(value):
                _check_type(name, value, kind | None)
        self.model_settings = ModelSettings.coerce(self.model_settings)
        if self.model is not None and self.model_settings == get_default_model_settings():
            self.model_settings = get_implicit_settings(self.model)
        _check_output_type(self.output_type)
        _check_tool_use_behavior(self.tool_use_behavior)

    def clone(self, **kwargs: Any) -> "Agent[TContext]":
        """Return a copy with some fields replaced. Lists that are not replaced are shared with the original."""
        unknown = set(kwargs) - {f.name for f in fields(self)}
        if unknown:
            raise InvalidDeclaration("Agent.clone", f"unknown fields: {', '.join(sorted(unknown))}")
        if "model" in kwargs and self.model_settings == get_implicit_settings(self.model):
            kwargs.setdefault("model_settings", get_implicit_settings(kwargs["model"]))
        return replace(self, **kwargs)

    async def get_system_prompt(self, run_context: RunContextWrapper[TContext]) -> str | None:
        """Return the instructions. If they are a function, it is called every time."""
        if self.instructions is None or isinstance(self.instructions, str):
            return self.instructions
        _check_instructions(self)
        text = await maybe_await(self.instructions(run_context, self))
        if text is not None and not isinstance(text, str):
            raise UserError(f"the instructions of {self.name!r} must return a string, got {type(text).__name__}")
        return text

    async def prepare_request(
        self, run_context: RunContextWrapper[TContext], items: "list[Item]", settings: ModelSettings
    ) -> "tuple[list[Item], ModelSettings]":
        """Return the input and the settings of the next request to the model; subclasses may change them."""
        return items, settings

    async def get_prompt(self, run_context: RunContextWrapper[TContext]) -> dict[str, Any] | None:
        """Return the reference to the prompt stored at the provider, in the provider's format."""
        return await resolve_prompt(self.prompt, run_context, self)

    async def get_handoffs(self, run_context: RunContextWrapper[TContext]) -> list[Handoff[Any, Any]]:
        """Return every handoff that is enabled now. Plain agents become handoffs with default options."""
        return await filter_enabled([as_handoff(target) for target in self.handoffs], run_context, self)

    def as_tool(
        self,
        tool_name: str | None,
        tool_description: str | None,
        custom_output_extractor: Callable[[Any], Awaitable[str]] | None = None,
        is_enabled: Enabled = True,
        on_stream: Callable[[AgentToolStreamEvent], MaybeAwaitable[None]] | None = None,
        run_config: Any | None = None,
        max_turns: int | None = None,
        hooks: RunHooksBase[Any, Any] | None = None,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        session: Any | None = None,
        failure_error_function: ToolErrorFunction | None = default_tool_error_function,
        needs_approval: NeedsApproval = False,
        parameters: type[Any] | None = None,
        input_builder: StructuredToolInputBuilder | None = None,
        include_input_schema: bool = False,
        on_stream_max_pending_events: int | None = 1024,
    ) -> FunctionTool:
        """Return a tool that runs this agent and returns its final output; the calling agent then continues.

        The calling model passes a string, or the fields of ``parameters``, from which ``input_builder`` builds the
        input of this agent. The nested run waits while ``on_stream`` handles an event, so no events are pending and
        ``on_stream_max_pending_events`` has no effect.
        """
        validate_integer("on_stream_max_pending_events", on_stream_max_pending_events, minimum=1, optional=True)
        name = tool_name or to_function_name(self.name)
        nested = AgentTool(
            agent=self,
            tool_name=name,
            custom_output_extractor=custom_output_extractor,
            on_stream=on_stream,
            run_config=run_config,
            max_turns=max_turns,
            hooks=hooks,
            previous_response_id=previous_response_id,
            conversation_id=conversation_id,
            session=session,
            parameters=parameters,
            input_builder=input_builder,
            include_input_schema=include_input_schema,
        )
        return FunctionTool(
            name=name,
            description=tool_description or "",
            params_json_schema=nested.build_params_json_schema(),
            on_invoke_tool=partial(call_directly, nested, failure_error_function),
            is_enabled=is_enabled,
            needs_approval=needs_approval,
            failure_error_function=failure_error_function,
            origin=ToolOrigin(ToolOriginType.AGENT_AS_TOOL, agent_name=self.name, agent_tool_name=name),
            agent_tool=nested,
            arguments_parser=nested.make_parser(),
        )


def _check_type(name: str, value: object, kind: Any) -> None:
    if not isinstance(value, kind):
        expected = getattr(kind, "__name__", None) or str(kind).replace("NoneType", "None").replace(
            "standfast.agents.", ""
        )
        raise InvalidDeclaration("Agent", f"{name} must be {expected}, got {type(value).__name__}")


def _check_tools(agent: AgentBase[Any]) -> None:
    for tool in agent.tools:
        if not isinstance(tool, Tool):
            raise InvalidDeclaration(
                f"Agent {agent.name!r}", f"{tool!r} is not a tool: decorate the function with @function_tool"
            )


def _check_output_type(kind: Any) -> None:
    if kind is None or isinstance(kind, type | AgentOutputSchemaBase) or get_origin(kind) is not None:
        return
    raise InvalidDeclaration("Agent", f"output_type must be a type or an AgentOutputSchema, got {kind!r}")


def _check_tool_use_behavior(behavior: Any) -> None:
    if behavior in ("run_llm_again", "stop_on_first_tool") or callable(behavior):
        return
    if isinstance(behavior, dict) and isinstance(behavior.get("stop_at_tool_names"), list):
        return
    expected = "'run_llm_again', 'stop_on_first_tool', StopAtTools(stop_at_tool_names=[...]) or a function"
    raise InvalidDeclaration("Agent", f"tool_use_behavior must be {expected}, got {behavior!r}")


def _check_instructions(agent: Agent[Any]) -> None:
    parameters = list(inspect.signature(agent.instructions).parameters)  # type: ignore[arg-type]
    if len(parameters) != 2:
        raise InvalidDeclaration(
            f"Agent {agent.name!r}", f"instructions must take (context, agent), they take ({', '.join(parameters)})"
        )
