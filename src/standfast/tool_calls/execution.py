"""Execution of tool calls: one call with its guardrails and hooks, and several calls concurrently.

This is the only place that calls a tool of the program.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from standfast.agents.context import RunContextWrapper, RunHooksBase, ToolContext
from standfast.agents.errors import (
    InvalidArguments,
    ToolCancelled,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
)
from standfast.agents.guardrails import ToolOutputGuardrailData, ToolOutputGuardrailResult
from standfast.agents.tools import FunctionToolCustomDataContext, LocalToolResult, make_cancellation_error
from standfast.agents.types import maybe_await
from standfast.base.ids import current_conversation
from standfast.base.items import Item
from standfast.base.text import sanitize_json
from standfast.tool_calls.call import (
    CallSuspended,
    ToolCall,
    ToolFailed,
    ToolGuardrailOutcome,
    explain_invalid_arguments,
    run_input_guardrails,
    run_tool_guardrail,
    wrap_tool_errors,
)
from standfast.tool_calls.loop_watch import watch_loop
from standfast.tool_calls.output import make_output_item, make_rejection
from standfast.tracing.create import maybe_tool_span
from standfast.tracing.spans import get_recorded_parent

ToolInvoker: TypeAlias = Callable[[ToolContext[Any], str], Awaitable[Any]]


@dataclass
class ToolCallOutcome:
    """The outcome of a call, whose output came from the tool or from a guardrail that rejected the call.

    It is filled in during the call, so after an exception it shows how far the call got: ``invoked`` is set just before
    the tool is called, ``returned`` when it has returned, ``item`` when the output for the model is complete.
    """

    output: Any = None
    invoked: bool = False
    returned: bool = False
    item: Item | None = None
    custom_data: dict[str, Any] | None = None
    guardrail_results: list[Any] = field(default_factory=list)


def invoke_tool(
    call: ToolCall,
    context: RunContextWrapper[Any],
    outcome: ToolCallOutcome,
    *,
    hooks: RunHooksBase[Any, Any] | None = None,
    invoker: ToolInvoker | None = None,
    resumed: bool = False,
) -> Coroutine[Any, Any, None]:
    """Invoke the tool with its guardrails and hooks, and fill in ``outcome``.

    ``invoker`` replaces ``tool.invoke`` for calls that are more than a function call, such as nested agents.
    ``resumed`` continues a call that raised :class:`CallSuspended`: input guardrails and start hooks do not run again.
    """

    async def invoke_watched(tool_context: ToolContext[Any], arguments: str) -> Any:
        return await watch_loop(call.tool.invoke(tool_context, arguments), call.tool.qualified_name)

    execution = _execute(call, context, outcome, hooks, invoker or invoke_watched, resumed=resumed)
    return execution if get_recorded_parent() is None else _execute_traced(call, outcome, execution)


async def _execute_traced(call: ToolCall, outcome: ToolCallOutcome, execution: Coroutine[Any, Any, None]) -> None:
    suspended: CallSuspended | None = None
    with maybe_tool_span(call.tool.qualified_name, call.id, call.arguments, description=call.tool.description) as span:
        origin = call.tool.origin
        if span is not None and origin is not None and origin.mcp_server_name is not None:
            span.span_data.mcp_data = {"server": origin.mcp_server_name}
        try:
            await execution
        except CallSuspended as signal:
            suspended = signal  # raised outside the span, which would record it as an error of the tool
        if span is not None and span.include_sensitive_data:
            span.span_data.output = outcome.output
    if suspended is not None:
        raise suspended


async def _execute(
    call: ToolCall,
    context: RunContextWrapper[Any],
    outcome: ToolCallOutcome,
    hooks: RunHooksBase[Any, Any] | None,
    invoker: ToolInvoker,
    *,
    resumed: bool,
) -> None:
    try:
        tool_context = call.make_context(context)
    except InvalidArguments as error:  # the tool has changed since the call was checked
        outcome.output = await explain_invalid_arguments(call, context, error)
        outcome.item = make_rejection(call.ref, call.id, outcome.output)
        return
    with wrap_tool_errors(call):
        await _execute_checked(call, tool_context, outcome, hooks, invoker, resumed=resumed)


async def _execute_checked(
    call: ToolCall,
    tool_context: ToolContext[Any],
    outcome: ToolCallOutcome,
    hooks: RunHooksBase[Any, Any] | None,
    invoker: ToolInvoker,
    *,
    resumed: bool,
) -> None:
    active_hooks: list[Any] = []
    guarded = ToolGuardrailOutcome() if resumed else await run_input_guardrails(call, tool_context)
    outcome.guardrail_results += guarded.guardrail_results
    if guarded.replacement is not None:
        outcome.output = guarded.replacement
    else:
        active_hooks = [each for each in (hooks, getattr(call.agent, "hooks", None)) if each]
        for each in () if resumed else active_hooks:
            await each.on_tool_start(tool_context, call.agent, call.declared_tool)
        outcome.invoked = True
        outcome.output = await _call_invoker(call, tool_context, invoker)
        outcome.returned = True
        await _run_output_guardrails(call, tool_context, outcome)
    adapter = call.tool.output_type_adapter if guarded.replacement is None else None
    local = outcome.output if isinstance(outcome.output, LocalToolResult) else None
    if local is None:
        item = make_output_item(call.id, outcome.output, adapter=adapter)
    else:
        outcome.output, item = local.output, sanitize_json({"call_id": call.id, **local.item})
    outcome.item = {**item, "caller": call.item["caller"]} if "caller" in call.item else item
    outcome.custom_data = await _extract_custom_data(call, tool_context, outcome, local)
    for each in active_hooks:
        await each.on_tool_end(tool_context, call.agent, call.declared_tool, outcome.output)


async def _call_invoker(call: ToolCall, context: ToolContext[Any], invoker: ToolInvoker) -> Any:
    token = current_conversation.set(call.conversation_key or current_conversation.get())
    try:
        return await invoker(context, call.arguments)
    except ToolCancelled as error:
        raise ToolFailed(call.tool.qualified_name, call.id, error) from error
    except asyncio.CancelledError as cancelled:
        failure = make_cancellation_error(call.tool.qualified_name, cancelled)
        raise ToolFailed(call.tool.qualified_name, call.id, failure) from cancelled
    finally:
        current_conversation.reset(token)


async def _run_output_guardrails(call: ToolCall, context: ToolContext[Any], outcome: ToolCallOutcome) -> None:
    for guardrail in call.tool.tool_output_guardrails or ():
        data = ToolOutputGuardrailData(context=context, agent=call.agent, output=outcome.output)  # type: ignore[arg-type]
        output = await run_tool_guardrail(guardrail, data)
        outcome.guardrail_results.append(ToolOutputGuardrailResult(guardrail, output))
        if output.behavior["type"] == "raise_exception":
            raise ToolOutputGuardrailTripwireTriggered(guardrail, output)
        if output.behavior["type"] == "reject_content":
            outcome.output = output.behavior["message"]
            return


async def _extract_custom_data(
    call: ToolCall, context: ToolContext[Any], outcome: ToolCallOutcome, local: LocalToolResult | None
) -> dict[str, Any] | None:
    extract, data = call.tool.custom_data_extractor, None if local is None else local.custom_data
    if extract is not None:
        item = deepcopy(outcome.item or {})
        data = await maybe_await(extract(FunctionToolCustomDataContext(context, call.tool, outcome.output, item)))
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise UserError(f"the custom_data_extractor of {call.tool.name} must return a mapping, got {data!r}")
    try:
        json.dumps(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the custom_data_extractor of {call.tool.name} must return JSON values: {error}") from error
    return dict(data)


T = TypeVar("T")


class NotStarted(Exception):
    """The job was not started, because another job had already failed or been cancelled."""


async def run_all(
    work: Sequence[Callable[[], Awaitable[T]]], *, limit: int | None = None
) -> tuple[list[T | BaseException], asyncio.CancelledError | None]:
    """Run the jobs concurrently, at most ``limit`` at a time, and return their results or exceptions in order.

    After an exception no further job is started, but those that are running finish. If the caller is cancelled, all
    running jobs are cancelled; finished results are kept, and the cancellation is returned for the caller to raise.
    """
    if len(work) == 1:
        try:
            return [await work[0]()], None
        except asyncio.CancelledError as cancelled:
            return [cancelled], cancelled
        except Exception as error:  # noqa: BLE001 - it is returned
            return [error], None
    slots = asyncio.Semaphore(limit or len(work))
    stopped = False

    async def run_one(job: Callable[[], Awaitable[T]]) -> T:
        nonlocal stopped
        async with slots:
            if stopped:
                raise NotStarted
            try:
                return await job()
            except BaseException:
                stopped = True
                raise

    tasks = [asyncio.ensure_future(run_one(job)) for job in work]
    cancelled_error = await _wait_all(tasks)
    results: list[T | BaseException] = [_get_result(task) for task in tasks]
    return results, cancelled_error


async def _wait_all(tasks: Sequence["asyncio.Task[T]"]) -> asyncio.CancelledError | None:
    cancelled = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            for task in tasks:
                task.cancel()
    return cancelled


def _get_result(task: "asyncio.Task[T]") -> T | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error
