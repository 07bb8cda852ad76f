"""Settings of a run. They are not saved with it: pass them again when the run is resumed."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from standfast.agents.context import RunContextWrapper, RunHooksBase
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.guardrails import InputGuardrail, OutputGuardrail
from standfast.agents.handoffs import HandoffHistoryMapper, HandoffInputFilter
from standfast.agents.model_settings import ModelSettings, coerce_settings
from standfast.agents.tools import ToolErrorFormatter as ToolErrorFormatter
from standfast.agents.tools import ToolErrorFormatterArgs as ToolErrorFormatterArgs
from standfast.agents.types import MaybeAwaitable, ModelLike, TContext, is_async
from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.validation import is_integer
from standfast.history.session import Session, SessionInputCallback, SessionSettings
from standfast.models.interface import Model, ModelProvider
from standfast.sandbox.config import SandboxRunConfig
from standfast.tracing.create import TracingConfig

if TYPE_CHECKING:
    from standfast.agents.agent import Agent
    from standfast.models.multi_provider import MultiProvider

ReasoningItemIdPolicy: TypeAlias = Literal["preserve", "omit"]
ToolNotFoundBehavior: TypeAlias = Literal["raise_error", "return_error_to_model"]
ToolNameCollisionPolicy: TypeAlias = Literal["warn", "error"]

DEFAULT_MAX_TURNS = 10


@dataclass
class ModelInputData:
    """The input and the instructions that a model is about to receive."""

    input: list[Item]
    instructions: str | None


@dataclass
class CallModelData(Generic[TContext]):
    """The argument of a ``call_model_input_filter``, which returns a :class:`ModelInputData`."""

    model_data: ModelInputData
    agent: Any
    context: TContext | None


CallModelInputFilter: TypeAlias = Callable[[CallModelData[Any]], MaybeAwaitable[ModelInputData]]


@dataclass
class ToolExecutionConfig:
    """How the tool calls of one turn are made.

    ``max_function_tool_concurrency`` limits how many run at the same time. With ``pre_approval_tool_input_guardrails``
    a tool's input guardrails run before an approval is requested, and again when the call is made.
    """

    max_function_tool_concurrency: int | None = None
    pre_approval_tool_input_guardrails: bool = False

    def __post_init__(self) -> None:
        early: Any = self.pre_approval_tool_input_guardrails
        if not isinstance(early, bool):
            raise InvalidDeclaration(
                "ToolExecutionConfig", f"pre_approval_tool_input_guardrails must be a bool, got {early!r}"
            )
        limit: Any = self.max_function_tool_concurrency
        if limit is not None and (not is_integer(limit) or limit < 1):
            raise InvalidDeclaration(
                "ToolExecutionConfig", f"max_function_tool_concurrency must be 1 or more, got {limit!r}"
            )


class RunOptions(TypedDict, Generic[TContext]):
    """The keyword arguments of :meth:`Runner.run`, for own runners."""

    context: NotRequired[TContext | None]
    """An object for tools, hooks and guardrails; the model does not see it."""
    max_turns: NotRequired[int | None]
    """How many turns the run may take before :class:`MaxTurnsExceeded` is raised. None: no limit."""
    hooks: NotRequired[RunHooksBase[TContext, Any] | None]
    """Callbacks for the events of the run."""
    run_config: NotRequired["RunConfig | dict[str, Any] | None"]
    """Settings of the run: its model, guardrails, tracing and more."""
    previous_response_id: NotRequired[str | None]
    """The response after which the provider's conversation continues."""
    auto_previous_response_id: NotRequired[bool]
    """Whether each request names the response before it, so that the provider keeps the conversation."""
    conversation_id: NotRequired[str | None]
    """The provider's conversation that the run continues."""
    session: NotRequired[Session | None]
    """The session with the conversation so far, which gets the items of the run."""
    error_handlers: NotRequired[Any]
    """Handlers that give a final output in place of some errors, see :class:`RunErrorHandlers`."""


@dataclass(frozen=True)
class OutputGuardrailBlockedMessageArgs(Generic[TContext]):
    """The argument of an ``output_guardrail_blocked_message`` function. The refused output is not part of it."""

    default_message: str
    guardrail_name: str
    agent: "Agent[Any]"
    run_context: RunContextWrapper[TContext]


OutputGuardrailBlockedMessageFormatter: TypeAlias = Callable[[OutputGuardrailBlockedMessageArgs[Any]], str | None]


class DefaultProvider(ModelProvider):
    """The default provider. It imports the model packages when the first model is requested.

    It has no owner that would close it, so its WebSocket connections are closed when no run uses it.
    """

    def __init__(self) -> None:
        self._provider: MultiProvider | None = None
        self._runs = 0

    def get_model(self, model_name: str | None) -> Model:
        if self._provider is None:
            # Imported here: a run that brings its own model does not pay for importing the providers.
            from standfast.models.multi_provider import MultiProvider

            self._provider = MultiProvider()
        return self._provider.get_model(model_name)

    def enter_run(self) -> None:
        """Count a run that uses it. Call :meth:`leave_run` when it has ended."""
        self._runs += 1

    async def leave_run(self) -> None:
        self._runs -= 1
        if self._provider is not None and not self._runs:
            await self._provider.openai_provider.disconnect()

    async def aclose(self) -> None:
        if self._provider is not None:
            await self._provider.aclose()


def _check_sandbox_grants(sandbox: Any) -> None:
    """Refuse paths of the host in settings given as data: only a program may grant them, as a manifest."""
    manifest = sandbox.get("manifest") if isinstance(sandbox, Mapping) else None
    if isinstance(manifest, Mapping) and manifest.get("extra_path_grants"):
        raise InvalidDeclaration(
            "RunConfig", "sandbox.manifest.extra_path_grants must be set in a Manifest, not a dict"
        )


def _check_blocked_message(message: Any) -> None:
    if message is not None and not isinstance(message, str) and not callable(message):
        raise TypeError(f"output_guardrail_blocked_message must be a string or a function, got {message!r}")
    if isinstance(message, str) and not message.strip():
        raise InvalidInput("output_guardrail_blocked_message must not be empty")
    if is_async(message):
        raise TypeError("output_guardrail_blocked_message must not be an async function: it is called at once")


def _is_sensitive_data_traced() -> bool:
    return os.environ.get("OPENAI_AGENTS_TRACE_INCLUDE_SENSITIVE_DATA", "").strip().lower() in (
        "1",
        "true",
        "yes",
        "on",
    )


@dataclass
class RunConfig:
    """Settings for a whole run, whichever agent is active.

    A run is traced when the program has added a trace processor or configured OpenTelemetry.
    ``trace_include_sensitive_data`` adds prompts, arguments, outputs and error messages to the traces, for every
    processor alike; without it traces contain only names, times and usage. It is off unless the environment variable
    ``OPENAI_AGENTS_TRACE_INCLUDE_SENSITIVE_DATA`` is true.
    ``trace_id``, ``group_id``, ``workflow_name`` and ``trace_metadata`` describe the trace that the run starts. They
    have no effect inside an existing trace or for a resumed run, which continues its own.
    ``output_guardrail_blocked_message`` is what the conversation keeps in place of a tool's output that would have been
    the final output and was refused by an output guardrail: a text, or a function that returns one.
    """

    model: str | Model | None = None
    """Replaces the models of all agents."""
    model_provider: ModelProvider = field(default_factory=DefaultProvider)
    """Finds models by name."""
    model_settings: ModelSettings | None = None
    """Merged over the settings of each agent."""
    handoff_input_filter: HandoffInputFilter | None = None
    """Selects what the next agent sees, for handoffs without a filter of their own."""
    nest_handoff_history: bool = False
    """Whether a handoff passes the conversation on as one summary message."""
    handoff_history_mapper: HandoffHistoryMapper | None = None
    """Makes that summary."""
    input_guardrails: list[InputGuardrail[Any]] | None = None
    """Checks of the first input, beside those of the agent."""
    output_guardrails: list[OutputGuardrail[Any]] | None = None
    """Checks of the final output, beside those of the agent."""
    tracing_disabled: bool = False
    """Whether the run is not traced."""
    tracing: TracingConfig | None = None
    """Settings of the trace, such as a key of its own."""
    trace_include_sensitive_data: bool = field(default_factory=_is_sensitive_data_traced)
    """Whether traces have prompts, arguments and outputs."""
    workflow_name: str = "Agent workflow"
    """The name of the trace."""
    trace_id: str | None = None
    """The id of the trace. None: a new one."""
    group_id: str | None = None
    """Links several traces, for example those of one conversation."""
    trace_metadata: dict[str, Any] | None = None
    """Further facts about the trace."""
    session_input_callback: SessionInputCallback | None = None
    """Makes the input of the model from the history and the new items."""
    call_model_input_filter: CallModelInputFilter | None = None
    """Changes instructions and items just before each request."""
    tool_error_formatter: ToolErrorFormatter | None = None
    """Makes the text that the model gets when a call was rejected or failed."""
    session_settings: SessionSettings | None = None
    """How much of the history is read, if the session does not say."""
    reasoning_item_id_policy: ReasoningItemIdPolicy | None = None
    """Whether ids of reasoning items are sent back to the model."""
    sandbox: SandboxRunConfig | None = None
    """The workspace of sandbox agents."""
    tool_execution: ToolExecutionConfig | None = None
    """Limits for calls that are made at the same time."""
    tool_not_found_behavior: ToolNotFoundBehavior = "raise_error"
    """What happens when the model calls a tool that does not exist."""
    tool_name_collision_policy: ToolNameCollisionPolicy = "warn"
    """What happens when two tools have the same name."""
    output_guardrail_blocked_message: str | OutputGuardrailBlockedMessageFormatter | None = None
    """What replaces an output that a guardrail refused."""

    def __post_init__(self) -> None:
        _check_blocked_message(self.output_guardrail_blocked_message)
        if self.model_settings is not None:
            self.model_settings = ModelSettings.coerce(self.model_settings)
        if self.session_settings is not None:
            self.session_settings = SessionSettings.coerce(self.session_settings)
        if self.tool_execution is not None:
            self.tool_execution = coerce_settings(ToolExecutionConfig, self.tool_execution)
        if self.sandbox is not None:
            _check_sandbox_grants(self.sandbox)
            self.sandbox = coerce_settings(SandboxRunConfig, self.sandbox)
        for name in ("session_input_callback", "call_model_input_filter", "tool_error_formatter"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidDeclaration("RunConfig", f"{name} must be callable, got {value!r}")
        if not isinstance(self.model, str | ModelLike | None):
            raise InvalidDeclaration("RunConfig", f"model must be a name or a Model, got {self.model!r}")
        if not callable(getattr(self.model_provider, "get_model", None)):
            raise InvalidDeclaration(
                "RunConfig", f"model_provider must be a ModelProvider, got {self.model_provider!r}"
            )
        _check_choice("tool_not_found_behavior", self.tool_not_found_behavior, "raise_error", "return_error_to_model")
        _check_choice("tool_name_collision_policy", self.tool_name_collision_policy, "warn", "error")
        _check_choice("reasoning_item_id_policy", self.reasoning_item_id_policy, None, "preserve", "omit")

    @classmethod
    def coerce(cls, value: "RunConfig | Mapping[str, Any] | None") -> "RunConfig":
        """Return ``value`` as settings: a dict is converted, unknown names are refused, ``None`` gives the defaults."""
        if isinstance(value, RunConfig):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise InvalidDeclaration("run_config", f"must be a RunConfig or a dict, got {type(value).__name__}")
        unknown = set(value or ()) - {f.name for f in fields(cls)}
        if unknown:
            raise InvalidDeclaration("run_config", f"unknown setting {', '.join(sorted(unknown))}")
        return cls(**(value or {}))


def _check_choice(name: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        raise InvalidDeclaration("RunConfig", f"{name} must be one of {allowed}, got {value!r}")
