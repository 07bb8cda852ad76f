"""Guardrails: user functions that check the input and the output of agents and tools.

A guardrail of an agent can end the run by its tripwire; a guardrail of a tool can also replace the content of a call.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, overload

from typing_extensions import TypeVar

from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.types import MaybeAwaitable, TContext, maybe_await
from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.agent import Agent
    from standfast.agents.context import RunContextWrapper, ToolContext

TData = TypeVar("TData", default=Any)


@dataclass
class GuardrailFunctionOutput:
    """The verdict of a guardrail. ``output_info`` is any information for logs and user interfaces."""

    output_info: Any
    tripwire_triggered: bool


@dataclass
class InputGuardrailResult:
    """What an input guardrail found."""

    guardrail: "InputGuardrail[Any]"
    output: GuardrailFunctionOutput


@dataclass
class OutputGuardrailResult:
    """What an output guardrail found about an output of an agent."""

    guardrail: "OutputGuardrail[Any]"
    agent_output: Any
    agent: "Agent[Any]"
    output: GuardrailFunctionOutput


@dataclass
class InputGuardrail(Generic[TContext]):
    """Checks the input of a run, once, for its first agent.

    With ``run_in_parallel`` it runs concurrently with the model, whose response is discarded if the tripwire is
    triggered; otherwise the model is called only after the guardrail has passed.
    """

    guardrail_function: (
        "Callable[[RunContextWrapper[TContext], Agent[Any], str | list[Item]], MaybeAwaitable[GuardrailFunctionOutput]]"
    )
    """Gets the context, the agent and the input, and returns a verdict."""
    name: str | None = None
    """The name in traces and errors. None: that of the function."""
    run_in_parallel: bool = True
    """Whether it runs beside the model or before it."""

    def __post_init__(self) -> None:
        check_callable("InputGuardrail", self.guardrail_function)

    def get_name(self) -> str:
        """Return the name of the guardrail: the given one, or that of its function."""
        return self.name or get_callable_name(self.guardrail_function)

    async def run(
        self, agent: "Agent[Any]", input: "str | list[Item]", context: "RunContextWrapper[TContext]"
    ) -> InputGuardrailResult:
        """Check an input, and return the verdict with what the function has found."""
        output = await maybe_await(self.guardrail_function(context, agent, input))
        return InputGuardrailResult(self, _validate_output(self.get_name(), output, GuardrailFunctionOutput))


@dataclass
class OutputGuardrail(Generic[TContext]):
    """Checks the final output of the agent that produced it."""

    guardrail_function: (
        "Callable[[RunContextWrapper[TContext], Agent[Any], Any], MaybeAwaitable[GuardrailFunctionOutput]]"
    )
    """Gets the context, the agent and its output, and returns a verdict."""
    name: str | None = None
    """The name in traces and errors. None: that of the function."""

    def __post_init__(self) -> None:
        check_callable("OutputGuardrail", self.guardrail_function)

    def get_name(self) -> str:
        """Return the name of the guardrail: the given one, or that of its function."""
        return self.name or get_callable_name(self.guardrail_function)

    async def run(
        self, context: "RunContextWrapper[TContext]", agent: "Agent[Any]", agent_output: Any
    ) -> OutputGuardrailResult:
        """Check an output, and return the verdict with what the function has found."""
        output = await maybe_await(self.guardrail_function(context, agent, agent_output))
        verdict = _validate_output(self.get_name(), output, GuardrailFunctionOutput)
        return OutputGuardrailResult(self, agent_output, agent, verdict)


class AllowBehavior(TypedDict):
    type: Literal["allow"]


class RejectContentBehavior(TypedDict):
    type: Literal["reject_content"]
    message: str


class RaiseExceptionBehavior(TypedDict):
    type: Literal["raise_exception"]


def _make_allow_behavior() -> RejectContentBehavior | RaiseExceptionBehavior | AllowBehavior:
    return {"type": "allow"}


@dataclass
class ToolGuardrailFunctionOutput:
    """The verdict on a tool call: allow it, send the model a message in its place, or end the run."""

    output_info: Any
    behavior: RejectContentBehavior | RaiseExceptionBehavior | AllowBehavior = field(
        default_factory=_make_allow_behavior
    )

    @classmethod
    def allow(cls, output_info: Any = None) -> "ToolGuardrailFunctionOutput":
        """Let the call or its output pass."""
        return cls(output_info, {"type": "allow"})

    @classmethod
    def reject_content(cls, message: str, output_info: Any = None) -> "ToolGuardrailFunctionOutput":
        """Send ``message`` to the model: the call is not made, or its output is withheld."""
        return cls(output_info, {"type": "reject_content", "message": message})

    @classmethod
    def raise_exception(cls, output_info: Any = None) -> "ToolGuardrailFunctionOutput":
        """End the run with a tripwire error."""
        return cls(output_info, {"type": "raise_exception"})


@dataclass
class ToolInputGuardrailData:
    """A call before it is made; its arguments are in ``context.tool_arguments``."""

    context: "ToolContext[Any]"
    agent: "Agent[Any]"


@dataclass
class ToolOutputGuardrailData(ToolInputGuardrailData):
    """A call after it was made, with its output."""

    output: Any


@dataclass
class ToolGuardrail(Generic[TData]):
    """The base class of tool guardrails."""

    guardrail_function: Callable[[TData], MaybeAwaitable[ToolGuardrailFunctionOutput]]
    name: str | None = None

    def __post_init__(self) -> None:
        check_callable(type(self).__name__, self.guardrail_function)

    def get_name(self) -> str:
        """Return the name of the guardrail: the given one, or that of its function."""
        return self.name or get_callable_name(self.guardrail_function)

    async def run(self, data: TData) -> ToolGuardrailFunctionOutput:
        """Check a call or its output."""
        output = await maybe_await(self.guardrail_function(data))
        return _validate_output(self.get_name(), output, ToolGuardrailFunctionOutput)


class ToolInputGuardrail(ToolGuardrail[ToolInputGuardrailData], Generic[TContext]):
    """Checks a call before it is made. It runs again when a call that waited for approval is made."""


class ToolOutputGuardrail(ToolGuardrail[ToolOutputGuardrailData], Generic[TContext]):
    """Checks the output of a call before it is sent to the model."""


@dataclass
class ToolInputGuardrailResult:
    """What a guardrail found about the arguments of a call."""

    guardrail: ToolInputGuardrail[Any]
    output: ToolGuardrailFunctionOutput


@dataclass
class ToolOutputGuardrailResult:
    """What a guardrail found about the output of a call."""

    guardrail: ToolOutputGuardrail[Any]
    output: ToolGuardrailFunctionOutput


@overload
def input_guardrail(func: Callable[..., Any], /) -> InputGuardrail[Any]: ...
@overload
def input_guardrail(
    *, name: str | None = None, run_in_parallel: bool = True
) -> Callable[[Callable[..., Any]], InputGuardrail[Any]]: ...
def input_guardrail(
    func: Callable[..., Any] | None = None, *, name: str | None = None, run_in_parallel: bool = True
) -> InputGuardrail[Any] | Callable[[Callable[..., Any]], InputGuardrail[Any]]:
    """Make an :class:`InputGuardrail` from a sync or async function of ``(context, agent, input)``."""
    if func is not None:
        return InputGuardrail(func, name or get_callable_name(func), run_in_parallel)
    return lambda func: InputGuardrail(func, name or get_callable_name(func), run_in_parallel)


@overload
def output_guardrail(func: Callable[..., Any], /) -> OutputGuardrail[Any]: ...
@overload
def output_guardrail(*, name: str | None = None) -> Callable[[Callable[..., Any]], OutputGuardrail[Any]]: ...
def output_guardrail(
    func: Callable[..., Any] | None = None, *, name: str | None = None
) -> OutputGuardrail[Any] | Callable[[Callable[..., Any]], OutputGuardrail[Any]]:
    """Make an :class:`OutputGuardrail` from a sync or async function of ``(context, agent, output)``."""
    if func is not None:
        return OutputGuardrail(func, name or get_callable_name(func))
    return lambda func: OutputGuardrail(func, name or get_callable_name(func))


@overload
def tool_input_guardrail(func: Callable[..., Any], /) -> ToolInputGuardrail[Any]: ...
@overload
def tool_input_guardrail(*, name: str | None = None) -> Callable[[Callable[..., Any]], ToolInputGuardrail[Any]]: ...
def tool_input_guardrail(
    func: Callable[..., Any] | None = None, *, name: str | None = None
) -> ToolInputGuardrail[Any] | Callable[[Callable[..., Any]], ToolInputGuardrail[Any]]:
    """Make a :class:`ToolInputGuardrail` from a sync or async function of :class:`ToolInputGuardrailData`."""
    if func is not None:
        return ToolInputGuardrail(func, name or get_callable_name(func))
    return lambda func: ToolInputGuardrail(func, name or get_callable_name(func))


@overload
def tool_output_guardrail(func: Callable[..., Any], /) -> ToolOutputGuardrail[Any]: ...
@overload
def tool_output_guardrail(*, name: str | None = None) -> Callable[[Callable[..., Any]], ToolOutputGuardrail[Any]]: ...
def tool_output_guardrail(
    func: Callable[..., Any] | None = None, *, name: str | None = None
) -> ToolOutputGuardrail[Any] | Callable[[Callable[..., Any]], ToolOutputGuardrail[Any]]:
    """Make a :class:`ToolOutputGuardrail` from a sync or async function of :class:`ToolOutputGuardrailData`."""
    if func is not None:
        return ToolOutputGuardrail(func, name or get_callable_name(func))
    return lambda func: ToolOutputGuardrail(func, name or get_callable_name(func))


def get_callable_name(func: Any) -> str:
    """Return the name of a function, or of a partial or callable object."""
    while hasattr(func, "func") and not hasattr(func, "__name__"):
        func = func.func
    return getattr(func, "__name__", None) or type(func).__name__


def check_callable(where: str, func: Any) -> None:
    """Raise :class:`InvalidDeclaration` unless ``func`` is callable and not a class."""
    if not callable(func) or inspect.isclass(func):
        raise InvalidDeclaration(where, f"needs a function, got {func!r}")


V = TypeVar("V")


def _validate_output(name: str, output: object, kind: type[V]) -> V:
    if not isinstance(output, kind):
        raise UserError(f"the guardrail {name!r} must return {kind.__name__}, got {type(output).__name__}")
    return output
