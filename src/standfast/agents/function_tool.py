"""The ``function_tool`` decorator, which makes a tool from a Python function."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, overload

from pydantic import TypeAdapter

from standfast.agents.docstrings import DocstringStyle
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.function_schema import FuncSchema, function_schema, get_hints
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail, check_callable
from standfast.agents.strict_schema import to_strict_schema
from standfast.agents.tools import (
    FunctionTool,
    FunctionToolCustomDataExtractor,
    OnBargeIn,
    OnUncertain,
    ToolCaller,
    ToolOrigin,
    ToolOriginType,
    ToolTimeoutBehavior,
    default_tool_error_function,
    explain_tool_error,
    make_cancellation_error,
)
from standfast.agents.types import Enabled, NeedsApproval, ToolErrorFunction, is_async

if TYPE_CHECKING:
    from standfast.agents.context import ToolContext

_UNSET: Final[Any] = object()


class FunctionToolOptions(TypedDict, total=False):
    """The options of :func:`function_tool`."""

    name_override: str | None
    description_override: str | None
    docstring_style: DocstringStyle | None
    use_docstring_info: bool
    failure_error_function: ToolErrorFunction | None
    strict_mode: bool
    is_enabled: Enabled
    needs_approval: NeedsApproval
    tool_input_guardrails: list[ToolInputGuardrail[Any]] | None
    tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None
    timeout: float | None
    timeout_behavior: ToolTimeoutBehavior
    timeout_error_function: ToolErrorFunction | None
    defer_loading: bool
    custom_data_extractor: FunctionToolCustomDataExtractor | None
    allowed_callers: list[ToolCaller] | None
    output_type: Any | None
    output_json_schema: dict[str, Any] | None
    idempotent: bool
    on_uncertain: OnUncertain
    on_barge_in: OnBargeIn


@overload
def function_tool(func: Callable[..., Any], **options: Unpack[FunctionToolOptions]) -> FunctionTool: ...
@overload
def function_tool(
    func: None = None, **options: Unpack[FunctionToolOptions]
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def function_tool(
    func: Callable[..., Any] | None = None,
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    docstring_style: DocstringStyle | None = None,
    use_docstring_info: bool = True,
    failure_error_function: ToolErrorFunction | None = _UNSET,
    strict_mode: bool = True,
    is_enabled: Enabled = True,
    needs_approval: NeedsApproval = False,
    tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None,
    tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None,
    timeout: float | None = None,
    timeout_behavior: ToolTimeoutBehavior = "error_as_result",
    timeout_error_function: ToolErrorFunction | None = None,
    defer_loading: bool = False,
    custom_data_extractor: FunctionToolCustomDataExtractor | None = None,
    allowed_callers: list[ToolCaller] | None = None,
    output_type: Any | None = None,
    output_json_schema: dict[str, Any] | None = None,
    idempotent: bool = False,
    on_uncertain: OnUncertain = "ask",
    on_barge_in: OnBargeIn = "keep",
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool from a function. The model sees its name, its docstring and a schema of its parameters.

    If the function raises, ``failure_error_function`` turns the exception into a message for the model, by default
    :func:`default_tool_error_function`; with ``None`` the exception ends the run. Programs that call the tool get JSON
    of the annotated result or of ``output_type``, and its schema. Most other options are fields of
    :class:`FunctionTool`. A timeout requires an async function, because a thread cannot be stopped.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        check_callable("function_tool", function)
        schema = function_schema(
            function, docstring_style, name_override, description_override, use_docstring_info, strict_mode
        )
        _check_function(function, f"tool {schema.name!r}", timeout)
        explain = default_tool_error_function if failure_error_function is _UNSET else failure_error_function
        kind = output_type
        if kind is None and output_json_schema is None and "programmatic" in (allowed_callers or ()):
            kind = _get_output_type(function, schema.name)
        adapter = None if kind is None else TypeAdapter(kind)
        output_schema = output_json_schema or (None if adapter is None else _build_object_schema(schema.name, adapter))
        tool = FunctionTool(
            name=schema.name,
            description=schema.description or "",
            params_json_schema=schema.params_json_schema,
            on_invoke_tool=_make_invoker(function, schema, explain),
            strict_json_schema=strict_mode,
            is_enabled=is_enabled,
            tool_input_guardrails=tool_input_guardrails,
            tool_output_guardrails=tool_output_guardrails,
            needs_approval=needs_approval,
            timeout_seconds=timeout,
            timeout_behavior=timeout_behavior,
            timeout_error_function=timeout_error_function,
            defer_loading=defer_loading,
            custom_data_extractor=custom_data_extractor,
            allowed_callers=allowed_callers,
            output_json_schema=output_schema,
            idempotent=idempotent,
            on_uncertain=on_uncertain,
            on_barge_in=on_barge_in,
            failure_error_function=explain,
            origin=ToolOrigin(ToolOriginType.FUNCTION),
            output_type_adapter=adapter,
            arguments_parser=schema.make_parser(),
        )
        tool.__wrapped__ = function  # type: ignore[attr-defined]
        return tool

    return make if func is None else make(func)


def _check_function(function: Callable[..., Any], where: str, timeout: float | None) -> None:
    if timeout is not None and not is_async(function):
        raise InvalidDeclaration(where, "only an async function can have a timeout")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidDeclaration(where, "a tool cannot be a generator: return the complete output")


def _make_invoker(
    function: Callable[..., Any], schema: FuncSchema, error_function: ToolErrorFunction | None
) -> Callable[["ToolContext[Any]", str], Awaitable[Any]]:
    in_thread = not is_async(function)

    async def on_invoke_tool(context: "ToolContext[Any]", arguments: str) -> Any:
        try:
            return await schema.call(function, context, arguments, in_thread=in_thread)
        except asyncio.CancelledError as cancelled:
            failure: Exception = make_cancellation_error(schema.name, cancelled)
        except Exception as error:  # noqa: BLE001 - raised below unless it is explained to the model
            failure = error
        if error_function is None:
            raise failure
        return await explain_tool_error(error_function, context, failure)

    return on_invoke_tool


def _get_output_type(function: Callable[..., Any], name: str) -> Any | None:
    """Return the annotation of the result, or ``None`` if it is text or not known."""
    kind = get_hints(function, name).get("return", Any)
    return None if kind in (str, Any, type(None)) else kind


def _build_object_schema(name: str, adapter: TypeAdapter[Any]) -> dict[str, Any]:
    schema = adapter.json_schema(mode="serialization")
    if schema.get("type") != "object":
        raise InvalidDeclaration(
            f"tool {name!r}",
            "output_type must be an object type: a pydantic model, TypedDict or dataclass. So must the annotated "
            "result of a tool for programs, unless it is str or Any",
        )
    return to_strict_schema(schema, where=f"output_type of {name}")
