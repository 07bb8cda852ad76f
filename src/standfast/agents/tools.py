"""Tools that the program runs: their declarations, and how they are invoked."""

import asyncio
import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from typing_extensions import TypedDict

from standfast.agents.errors import InvalidArguments, InvalidDeclaration, ToolCancelled, ToolTimeoutError, UserError
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail, check_callable
from standfast.agents.hosted_tools import HostedTool
from standfast.agents.strict_schema import to_strict_schema
from standfast.agents.tool_arguments import ArgumentsParser
from standfast.agents.types import Enabled, MaybeAwaitable, NeedsApproval, TContext, ToolErrorFunction, maybe_await
from standfast.base.validation import is_number
from standfast.tracing.create import record_span_exception

if TYPE_CHECKING:
    from standfast.agents.agent import AgentBase
    from standfast.agents.agent_tool import AgentTool
    from standfast.agents.context import RunContextWrapper, ToolContext


ToolTimeoutBehavior: TypeAlias = Literal["error_as_result", "raise_exception"]
ToolCaller: TypeAlias = Literal["direct", "programmatic"]
OnUncertain: TypeAlias = Literal["ask", "retry", "fail"]
OnBargeIn: TypeAlias = Literal["keep", "cancel", "finish_silently"]

FunctionToolCustomDataExtractor: TypeAlias = Callable[
    ["FunctionToolCustomDataContext"], MaybeAwaitable[Mapping[str, Any] | None]
]


class ToolOriginType(str, Enum):  # noqa: UP042 - str() of a member is that of openai-agents
    """Where a tool comes from."""

    FUNCTION = "function"
    MCP = "mcp"
    AGENT_AS_TOOL = "agent_as_tool"


@dataclass(frozen=True)
class ToolOrigin:
    """Where a tool comes from, for logs and user interfaces."""

    type: ToolOriginType
    mcp_server_name: str | None = None
    agent_name: str | None = None
    agent_tool_name: str | None = None

    def to_json_dict(self) -> dict[str, str]:
        """Return the origin as JSON, without what is not known."""
        names = {name: getattr(self, name) for name in _ORIGIN_NAMES if getattr(self, name) is not None}
        return {"type": self.type.value, **names}

    @classmethod
    def from_json_dict(cls, data: Any) -> "ToolOrigin | None":
        """Return the origin in ``data``, or ``None`` if it holds no known type of origin."""
        if not isinstance(data, Mapping) or data.get("type") not in [kind.value for kind in ToolOriginType]:
            return None
        names = {name: data[name] for name in _ORIGIN_NAMES if isinstance(data.get(name), str)}
        return cls(ToolOriginType(data["type"]), **names)


_ORIGIN_NAMES = ("mcp_server_name", "agent_name", "agent_tool_name")


@dataclass(eq=False)
class FunctionTool:
    """A tool that the program runs. Usually created by :func:`function_tool`; directly for a hand-written schema.

    ``idempotent`` promises that repeating a call is harmless. ``on_uncertain`` applies to calls that were started
    when the process died and are not idempotent: ask a person, retry the call, or fail it. ``on_barge_in`` applies
    in a realtime session when the user starts to speak while the tool runs: keep the call and let the model speak
    about its output, cancel the call, or finish it and only record the output. ``mcp_annotations`` are what an MCP
    server says about its tool.
    """

    name: str
    """The name that the model uses."""
    description: str
    """The description of the tool for the model."""
    params_json_schema: dict[str, Any]
    """The JSON schema of the arguments."""
    on_invoke_tool: "Callable[[ToolContext[Any], str], Awaitable[Any]]" = field(repr=False)
    """The function that is called, with the context and the arguments as JSON."""
    strict_json_schema: bool = True
    """Whether the schema is made strict: every field is required, no others are allowed."""
    is_enabled: Enabled = True
    """Whether the model sees the tool: a bool, or a function of the context and the agent."""
    tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None
    tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None
    needs_approval: NeedsApproval = False
    """Whether a person must approve a call: a bool, or a function of context, arguments and call id."""
    timeout_seconds: float | None = None
    """The time limit of a call."""
    timeout_behavior: ToolTimeoutBehavior = "error_as_result"
    """Whether a timeout becomes an error text for the model, or ends the run."""
    timeout_error_function: ToolErrorFunction | None = None
    defer_loading: bool = False
    """Whether the model gets the tool only when it has searched for it."""
    custom_data_extractor: FunctionToolCustomDataExtractor | None = field(default=None, kw_only=True)
    allowed_callers: list[ToolCaller] | None = field(default=None, kw_only=True)
    output_json_schema: dict[str, Any] | None = field(default=None, kw_only=True)
    idempotent: bool = field(default=False, kw_only=True)
    on_uncertain: OnUncertain = field(default="ask", kw_only=True)
    on_barge_in: OnBargeIn = field(default="keep", kw_only=True)
    failure_error_function: ToolErrorFunction | None = field(default=None, kw_only=True, repr=False)
    title: str | None = field(default=None, kw_only=True, repr=False)
    """A name for people."""
    mcp_annotations: Any = field(default=None, kw_only=True, repr=False)
    namespace: str | None = field(default=None, kw_only=True)
    namespace_description: str | None = field(default=None, kw_only=True, repr=False)
    origin: ToolOrigin | None = field(default=None, kw_only=True, repr=False)
    recipient: str | None = field(default=None, kw_only=True, repr=False)
    """What a call reaches if that is not this process: an MCP server and its tool."""
    agent_tool: "AgentTool | None" = field(default=None, kw_only=True, repr=False)
    output_type_adapter: Any = field(default=None, kw_only=True, repr=False)
    arguments_parser: ArgumentsParser | None = field(default=None, kw_only=True, repr=False)
    local_tool: "LocalTool | None" = field(default=None, kw_only=True, repr=False)
    python_sessions: Any = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        _check_tool(self)
        if self.strict_json_schema:
            self.params_json_schema = to_strict_schema(self.params_json_schema, where=f"tool {self.name}")

    @property
    def qualified_name(self) -> str:
        """The name, prefixed with the namespace if there is one."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"

    async def invoke(self, context: "ToolContext[Any]", arguments: str) -> Any:
        """Call the tool with a time limit; ``timeout_behavior`` decides what happens when it expires.

        A call that exceeds the limit is cancelled and has ended when this returns. Approval and guardrails are not
        checked here.
        """
        if self.timeout_seconds is None:
            return await self.on_invoke_tool(context, arguments)
        try:
            async with asyncio.timeout(self.timeout_seconds) as limit:
                return await self.on_invoke_tool(context, arguments)
        except TimeoutError:
            if not limit.expired():  # the tool itself raised it
                raise
        error = ToolTimeoutError(self.name, self.timeout_seconds)
        if self.timeout_behavior == "raise_exception":
            raise error
        if self.timeout_error_function is None:
            return str(error)
        return await explain_tool_error(self.timeout_error_function, context, error)


@dataclass
class FunctionToolResult:
    """The result of a call. ``interruptions`` are approvals that a nested agent waits for."""

    tool: FunctionTool
    output: Any
    run_item: Any | None
    interruptions: list[Any] = field(default_factory=list)
    agent_run_result: Any = None


@dataclass
class FunctionToolCustomDataContext:
    """The argument of a ``custom_data_extractor``."""

    tool_context: "ToolContext[Any]"
    tool: FunctionTool
    output: Any
    raw_item: Mapping[str, Any]


class StopAtTools(TypedDict):
    """End the run with the output of the first of these tools that is called."""

    stop_at_tool_names: list[str]


@dataclass
class ToolsToFinalOutputResult:
    """Whether the outputs of the tools are the final output of the run."""

    is_final_output: bool
    final_output: Any | None = None


class LocalTool(ABC):
    """A tool that the program runs and the model calls by an item of its own type, such as ``shell_call``.

    ``as_function_tool`` returns the function tool by which its calls are approved, made, recorded and traced like all
    others. Its arguments are the part of the call that :func:`get_call_arguments` returns.
    """

    call_type: ClassVar[str]
    name: str

    def is_run_by_provider(self) -> bool:
        """Return whether the provider runs the calls, so that the program only sees them."""
        return False

    @abstractmethod
    def to_declaration(self, model: str | None) -> dict[str, Any]:
        """Return the tool in the format of the Responses API, for a model of this name."""

    @abstractmethod
    def as_function_tool(self) -> FunctionTool:
        """Return the function tool that answers the calls."""

    async def bind(self, run_context: "RunContextWrapper[Any]") -> "LocalTool":
        """Return the tool with what it needs in this run, as the model sees it."""
        return self

    async def release(self, run_context: "RunContextWrapper[Any]") -> None:
        """Release what was made for this run, which has ended or waits."""
        return


@dataclass(frozen=True)
class LocalToolResult:
    """What a :class:`LocalTool` returns: ``item`` is the output for the model, without its call id."""

    output: Any
    item: dict[str, Any]
    custom_data: Mapping[str, Any] | None = None


Tool: TypeAlias = FunctionTool | LocalTool | HostedTool
ToolsToFinalOutputFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", list[FunctionToolResult]], MaybeAwaitable[ToolsToFinalOutputResult]
]


@dataclass
class ToolErrorFormatterArgs(Generic[TContext]):
    """The argument of a :data:`ToolErrorFormatter`: a call without an output, and the default message about it.

    ``error`` is the exception of a tool that failed; in the other cases the call was not made.
    """

    kind: Literal["approval_rejected", "tool_not_found", "tool_exception"]
    tool_type: Literal["function", "computer", "shell", "apply_patch", "custom"]
    tool_name: str
    call_id: str
    default_message: str
    run_context: "RunContextWrapper[TContext]"
    error: Exception | None = None


ToolErrorFormatter: TypeAlias = Callable[[ToolErrorFormatterArgs[Any]], MaybeAwaitable[str | None]]


def default_tool_error_function(ctx: "RunContextWrapper[Any]", error: Exception) -> str:
    """Return the default message that the model receives when a tool raised an exception.

    The text of the exception is not part of it, because it may contain what the model must not see. Only arguments
    that do not fit the tool are explained: that text is about what the model wrote.
    """
    text = "An error occurred while running the tool. Please try again."
    return f"{text} Error: {error}" if isinstance(error, InvalidArguments) else text


async def explain_tool_error(
    error_function: ToolErrorFunction, context: "RunContextWrapper[Any]", error: Exception
) -> str:
    """Return the message that the user's error function makes of an exception.

    The message of the default function can be replaced by the run's ``tool_error_formatter``.
    """
    record_span_exception(error)
    text = await maybe_await(error_function(context, error))
    if not isinstance(text, str):
        raise UserError(f"an error function must return a string, got {type(text).__name__}")
    config: Any = getattr(context, "run_config", None)
    name = "tool_error_formatter"
    formatter = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    if formatter is None or error_function is not default_tool_error_function:
        return text
    call: Any = context
    args = ToolErrorFormatterArgs("tool_exception", "function", call.tool_name, call.tool_call_id, text, context, error)
    return await maybe_await(formatter(args)) or text


def make_cancellation_error(tool_name: str, cancelled: asyncio.CancelledError) -> ToolCancelled:
    """Return the error of a tool that ended with ``cancelled``. If the task itself is cancelled, raise that instead."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise cancelled
    return ToolCancelled(tool_name, str(cancelled))


def tool_namespace(*, name: str, description: str | None, tools: list[FunctionTool]) -> list[FunctionTool]:
    """Return copies of the tools inside a namespace, which a model can find as a group."""
    name, description = (name or "").strip(), (description or "").strip()
    if not name or not description:
        raise UserError("a tool namespace needs a name and a description")
    members = []
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            raise InvalidDeclaration(f"tool_namespace {name!r}", f"members must be function tools, got {tool!r}")
        if tool.name == name:
            raise UserError(
                f"the namespace {name!r} has the same name as one of its tools, so its calls could not be distinguished"
                " from those of a deferred tool: rename one of them"
            )
        member = copy.copy(tool)
        member.namespace, member.namespace_description = name, description
        members.append(member)
    return members


def _takes_three(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # a function without a signature, such as some of C
        return True
    return True


def _check_tool(tool: FunctionTool) -> None:
    where = f"tool {tool.name!r}"
    if not isinstance(tool.name, str) or not tool.name:
        raise InvalidDeclaration("FunctionTool", f"the name must be a non-empty string, got {tool.name!r}")
    if not isinstance(tool.params_json_schema, Mapping):
        raise InvalidDeclaration(where, "params_json_schema must be a dict")
    check_callable(f"{where}: on_invoke_tool", tool.on_invoke_tool)
    for name in ("is_enabled", "needs_approval"):
        value = getattr(tool, name)
        if not isinstance(value, bool) and not callable(value):
            raise InvalidDeclaration(where, f"{name} must be a bool or a function, got {value!r}")
    if callable(tool.needs_approval) and not _takes_three(tool.needs_approval):
        raise InvalidDeclaration(
            where,
            "the function needs_approval must take the context, the arguments and the id of the call, for example"
            " lambda context, arguments, call_id: arguments['amount'] > 100",
        )
    if tool.on_uncertain not in ("ask", "retry", "fail"):
        raise InvalidDeclaration(where, f"on_uncertain must be 'ask', 'retry' or 'fail', got {tool.on_uncertain!r}")
    if tool.on_barge_in not in ("keep", "cancel", "finish_silently"):
        raise InvalidDeclaration(
            where, f"on_barge_in must be 'keep', 'cancel' or 'finish_silently', got {tool.on_barge_in!r}"
        )
    if tool.timeout_behavior not in ("error_as_result", "raise_exception"):
        raise InvalidDeclaration(
            where,
            f"timeout_behavior must be 'error_as_result' or 'raise_exception', got {tool.timeout_behavior!r}",
        )
    if tool.timeout_error_function is not None:
        check_callable(f"{where}: timeout_error_function", tool.timeout_error_function)
    seconds: Any = tool.timeout_seconds
    if seconds is None:
        return
    if not is_number(seconds) or seconds <= 0:
        raise InvalidDeclaration(where, f"the timeout must be a positive number of seconds, got {seconds!r}")


E = TypeVar("E")


async def filter_enabled(
    candidates: Iterable[E], context: "RunContextWrapper[Any]", agent: "AgentBase[Any]"
) -> list[E]:
    """Return the candidates whose ``is_enabled`` is true, in order; those without the attribute are enabled.

    Async predicates run concurrently. The first exception cancels the others.
    """
    results: list[tuple[E, Any]] = []
    pending: list[tuple[int, Awaitable[bool]]] = []
    try:
        for candidate in candidates:
            is_enabled = getattr(candidate, "is_enabled", True)
            result = is_enabled(context, agent) if callable(is_enabled) else is_enabled
            if not isinstance(result, bool) and isawaitable(result):
                pending.append((len(results), result))
            results.append((candidate, result))
    except BaseException:
        for _, awaitable in pending:
            if iscoroutine(awaitable):  # it will never be awaited
                awaitable.close()
        raise
    if pending:
        values = await _gather([awaitable for _, awaitable in pending])
        for (index, _), value in zip(pending, values, strict=True):
            results[index] = (results[index][0], value)
    return [candidate for candidate, enabled in results if enabled]


async def _gather(awaitables: list[Awaitable[bool]]) -> list[bool]:
    async def wait_for(awaitable: Awaitable[bool]) -> bool:
        return await awaitable

    if len(awaitables) == 1:
        return [await awaitables[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait_for(awaitable)) for awaitable in awaitables]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [task.result() for task in tasks]
