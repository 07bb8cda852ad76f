"""Tools that the program itself runs, as declarations: what the model is told and how a call is made."""

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import BaseModel, model_validator
from typing_extensions import TypedDict

from standfast.agents.errors import InvalidDeclaration, ToolTimeoutError, UserError
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail, check_callable
from standfast.agents.hosted_tools import HostedTool
from standfast.agents.strict_schema import to_strict_schema
from standfast.agents.types import Enabled, MaybeAwaitable, NeedsApproval, ToolErrorFunction, maybe_await
from standfast.tracing.instrumentation import record_span_exception

if TYPE_CHECKING:
    from standfast.agents.agent import AgentBase
    from standfast.agents.agent_tool import AgentTool
    from standfast.agents.context import RunContextWrapper, ToolContext


class ToolOutputText(BaseModel):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class ToolOutputTextDict(TypedDict):
    type: Literal["text"]
    text: str


class ToolOutputImage(BaseModel):
    """A picture, by address (``data:`` included) or by the provider's file id."""

    type: Literal["image"] = "image"
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto"] | None = None

    @model_validator(mode="after")
    def check_at_least_one_required_field(self) -> "ToolOutputImage":
        if self.image_url is None and self.file_id is None:
            raise ValueError("a picture needs an image_url or a file_id")
        return self


class ToolOutputImageDict(TypedDict):
    type: Literal["image"]
    image_url: NotRequired[str]
    file_id: NotRequired[str]
    detail: NotRequired[Literal["low", "high", "auto"]]


class ToolOutputFileContent(BaseModel):
    """A file, by its content (base64), by address or by the provider's file id."""

    type: Literal["file"] = "file"
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None

    @model_validator(mode="after")
    def check_at_least_one_required_field(self) -> "ToolOutputFileContent":
        if self.file_data is None and self.file_url is None and self.file_id is None:
            raise ValueError("a file needs file_data, a file_url or a file_id")
        return self


class ToolOutputFileContentDict(TypedDict):
    type: Literal["file"]
    file_data: NotRequired[str]
    file_url: NotRequired[str]
    file_id: NotRequired[str]
    filename: NotRequired[str]


ToolTimeoutBehavior: TypeAlias = Literal["error_as_result", "raise_exception"]
ToolCaller: TypeAlias = Literal["direct", "programmatic"]
OnUncertain: TypeAlias = Literal["ask", "retry", "fail"]
OnBargeIn: TypeAlias = Literal["keep", "cancel", "finish_silently"]

FunctionToolCustomDataExtractor: TypeAlias = Callable[
    ["FunctionToolCustomDataContext"], MaybeAwaitable[Mapping[str, Any] | None]
]


class ToolOriginType(StrEnum):
    FUNCTION = "function"
    MCP = "mcp"
    AGENT_AS_TOOL = "agent_as_tool"


@dataclass(frozen=True)
class ToolOrigin:
    """Where a tool comes from, for people and logs."""

    type: ToolOriginType
    mcp_server_name: str | None = None
    agent_name: str | None = None
    agent_tool_name: str | None = None

    def to_json_dict(self) -> dict[str, str]:
        found = {"type": self.type.value}
        for name in ("mcp_server_name", "agent_name", "agent_tool_name"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return found

    @classmethod
    def from_json_dict(cls, data: Any) -> "ToolOrigin | None":
        """The origin in ``data``, or ``None`` when there is none that is known here."""
        if not isinstance(data, Mapping) or data.get("type") not in [kind.value for kind in ToolOriginType]:
            return None
        names = ("mcp_server_name", "agent_name", "agent_tool_name")
        known = {name: data[name] for name in names if isinstance(data.get(name), str)}
        return cls(ToolOriginType(data["type"]), **known)


@dataclass(eq=False)
class FunctionTool:
    """A tool that the program runs. Mostly made by :func:`function_tool`; by hand for schemas of one's own.

    ``idempotent`` promises that making a call twice does no harm. ``on_uncertain`` says what happens to a call
    that was started when its process died and is not idempotent: ask a person, make it again, or fail it.
    ``on_barge_in`` says what happens in a realtime session when the user begins to speak while the tool runs: go on
    and let the model speak about the output, cancel the call, or go on and only note the output.
    """

    name: str
    description: str
    params_json_schema: dict[str, Any]
    on_invoke_tool: "Callable[[ToolContext[Any], str], Awaitable[Any]]" = field(repr=False)
    strict_json_schema: bool = True
    is_enabled: Enabled = True
    tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None
    tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None
    needs_approval: NeedsApproval = False
    timeout_seconds: float | None = None
    timeout_behavior: ToolTimeoutBehavior = "error_as_result"
    timeout_error_function: ToolErrorFunction | None = None
    defer_loading: bool = False
    custom_data_extractor: FunctionToolCustomDataExtractor | None = field(default=None, kw_only=True)
    allowed_callers: list[ToolCaller] | None = field(default=None, kw_only=True)
    output_json_schema: dict[str, Any] | None = field(default=None, kw_only=True)
    idempotent: bool = field(default=False, kw_only=True)
    on_uncertain: OnUncertain = field(default="ask", kw_only=True)
    on_barge_in: OnBargeIn = field(default="keep", kw_only=True)
    failure_error_function: ToolErrorFunction | None = field(default=None, kw_only=True, repr=False)
    namespace: str | None = field(default=None, kw_only=True)
    namespace_description: str | None = field(default=None, kw_only=True, repr=False)
    origin: ToolOrigin | None = field(default=None, kw_only=True, repr=False)
    agent_tool: "AgentTool | None" = field(default=None, kw_only=True, repr=False)
    output_type_adapter: Any = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        _check_tool(self)
        if self.strict_json_schema:
            self.params_json_schema = to_strict_schema(self.params_json_schema, where=f"tool {self.name}")

    @property
    def qualified_name(self) -> str:
        """The name with its namespace in front, if it has one."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"

    async def invoke(self, context: "ToolContext[Any]", arguments: str) -> Any:
        """Make the call within its time; what becomes of a late one is up to ``timeout_behavior``.

        A late call is cancelled and has ended when this returns. Approval and guardrails are not looked at here.
        """
        try:
            async with asyncio.timeout(self.timeout_seconds) as clock:
                return await self.on_invoke_tool(context, arguments)
        except TimeoutError:
            if self.timeout_seconds is None or not clock.expired():  # one of the tool's own
                raise
        late = ToolTimeoutError(self.name, self.timeout_seconds)
        if self.timeout_behavior == "raise_exception":
            raise late
        if self.timeout_error_function is None:
            return str(late)
        return await explain_tool_error(self.timeout_error_function, context, late)


@dataclass
class FunctionToolResult:
    """What a call came to. ``interruptions`` are approvals that a nested agent waits for."""

    tool: FunctionTool
    output: Any
    run_item: Any | None
    interruptions: list[Any] = field(default_factory=list)
    agent_run_result: Any = None


@dataclass
class FunctionToolCustomDataContext:
    """What a ``custom_data_extractor`` may look at."""

    tool_context: "ToolContext[Any]"
    tool: FunctionTool
    output: Any
    raw_item: Mapping[str, Any]


class StopAtTools(TypedDict):
    """End the run with the output of the first of these tools that was called."""

    stop_at_tool_names: list[str]


@dataclass
class ToolsToFinalOutputResult:
    """Whether what the tools returned is the final output already."""

    is_final_output: bool
    final_output: Any | None = None


Tool: TypeAlias = FunctionTool | HostedTool
ToolsToFinalOutputFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", list[FunctionToolResult]], MaybeAwaitable[ToolsToFinalOutputResult]
]


def default_tool_error_function(ctx: "RunContextWrapper[Any]", error: Exception) -> str:
    """What a model is told when a tool failed, unless the tool has words of its own."""
    return f"An error occurred while running the tool. Please try again. Error: {error}"


async def explain_tool_error(
    error_function: ToolErrorFunction, context: "RunContextWrapper[Any]", error: Exception
) -> str:
    """What the user's function wants the model to be told about an error."""
    record_span_exception(error)
    text = await maybe_await(error_function(context, error))
    if not isinstance(text, str):
        raise UserError(f"an error function must return a string, not {type(text).__name__}")
    return text


def tool_namespace(*, name: str, description: str | None, tools: list[FunctionTool]) -> list[FunctionTool]:
    """Copies of the tools inside a namespace, so that a model can find them as a group."""
    name, description = (name or "").strip(), (description or "").strip()
    if not name or not description:
        raise UserError("a tool namespace needs a name and a description")
    found = []
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            raise InvalidDeclaration(f"tool_namespace {name!r}", f"only function tools can be in one, not {tool!r}")
        if tool.name == name:
            raise UserError(f"the namespace {name!r} may not have the name of its tool: deferred tools are called so")
        inside = copy.copy(tool)
        inside.namespace, inside.namespace_description = name, description
        found.append(inside)
    return found


def _check_tool(tool: FunctionTool) -> None:
    where = f"tool {tool.name!r}"
    if not isinstance(tool.name, str) or not tool.name:
        raise InvalidDeclaration("FunctionTool", f"the name must be a string with something in it, got {tool.name!r}")
    if not isinstance(tool.params_json_schema, Mapping):
        raise InvalidDeclaration(where, "params_json_schema must be a dict")
    check_callable(f"{where}: on_invoke_tool", tool.on_invoke_tool)
    for name in ("is_enabled", "needs_approval"):
        value = getattr(tool, name)
        if not isinstance(value, bool) and not callable(value):
            raise InvalidDeclaration(where, f"{name} must be a bool or a function, got {value!r}")
    if tool.on_uncertain not in ("ask", "retry", "fail"):
        raise InvalidDeclaration(where, f"on_uncertain must be 'ask', 'retry' or 'fail', got {tool.on_uncertain!r}")
    if tool.on_barge_in not in ("keep", "cancel", "finish_silently"):
        raise InvalidDeclaration(
            where, f"on_barge_in must be 'keep', 'cancel' or 'finish_silently', got {tool.on_barge_in!r}"
        )
    if tool.timeout_behavior not in ("error_as_result", "raise_exception"):
        raise InvalidDeclaration(where, f"timeout_behavior {tool.timeout_behavior!r} is not known")
    seconds: Any = tool.timeout_seconds
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds <= 0:
        raise InvalidDeclaration(where, f"the timeout must be a positive number of seconds, got {seconds!r}")


E = TypeVar("E")


async def filter_enabled(
    candidates: Iterable[E], context: "RunContextWrapper[Any]", agent: "AgentBase[Any]"
) -> list[E]:
    """Those whose ``is_enabled`` says so, in order; things without one are always enabled.

    Questions that have to wait for an answer are asked together. The first that fails ends the others.
    """
    kept: list[tuple[E, Any]] = []
    waiting: list[tuple[int, Awaitable[bool]]] = []
    try:
        for thing in candidates:
            asked = getattr(thing, "is_enabled", True)
            answer = asked(context, agent) if callable(asked) else asked
            if isawaitable(answer):
                waiting.append((len(kept), answer))
            kept.append((thing, answer))
    except BaseException:
        for _, question in waiting:
            if iscoroutine(question):  # nobody will wait for it now
                question.close()
        raise
    if waiting:
        answers = await _gather_answers([answer for _, answer in waiting])
        for (index, _), answer in zip(waiting, answers, strict=True):
            kept[index] = (kept[index][0], answer)
    return [thing for thing, answer in kept if answer]


async def _gather_answers(awaitables: list[Awaitable[bool]]) -> list[bool]:
    if len(awaitables) == 1:
        return [await awaitables[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_await_answer(question)) for question in awaitables]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return [task.result() for task in tasks]


async def _await_answer(awaitable: Awaitable[bool]) -> bool:
    return await awaitable
