"""Making a call: the only place where a tool of the program is called."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from standfast.agents.context import RunContextWrapper, ToolContext
from standfast.agents.errors import AgentsException, ToolOutputGuardrailTripwireTriggered, UserError
from standfast.agents.guardrails import ToolOutputGuardrailData, ToolOutputGuardrailResult
from standfast.agents.hooks import RunHooks
from standfast.agents.tools import FunctionToolCustomDataContext
from standfast.agents.types import maybe_await
from standfast.base.context import current_conversation
from standfast.base.items import Item
from standfast.tool_calls.call import (
    ToolCall,
    ToolFailed,
    ToolGuardrailOutcome,
    run_input_guardrails,
    run_tool_guardrail,
)
from standfast.tool_calls.output import make_output_item
from standfast.tracing.instrumentation import maybe_tool_span
from standfast.tracing.spans import get_recorded_parent

ToolInvoker: TypeAlias = Callable[[ToolContext[Any], str], Awaitable[Any]]


class CallSuspended(Exception):
    """The call has to wait, for a person in a nested run. It will be made again, and goes on then."""


@dataclass
class ToolCallOutcome:
    """A call that was made, or answered by a guardrail in the tool's place.

    It fills up while the call is made: when something fails, it says how far the call came. ``returned`` is set as
    soon as the tool has done its work, ``item`` when the model can be told what it returned.
    """

    output: Any = None
    returned: bool = False
    item: Item | None = None
    custom_data: dict[str, Any] | None = None
    guardrail_results: list[Any] = field(default_factory=list)


def invoke_tool(
    call: ToolCall,
    context: RunContextWrapper[Any],
    outcome: ToolCallOutcome,
    *,
    hooks: RunHooks[Any] | None = None,
    invoker: ToolInvoker | None = None,
    resumed: bool = False,
) -> Coroutine[Any, Any, None]:
    """Make the call and fill in ``made``. Its guardrails are asked before and after, its hooks are told.

    ``perform`` makes calls that are more than calling a function, such as running a nested agent. A call that goes
    on ``again`` after it was unfinished has begun before.
    """
    making = _execute(call, context, outcome, hooks, invoker or call.tool.invoke, resumed=resumed)
    return making if get_recorded_parent() is None else _execute_traced(call, outcome, making)


async def _execute_traced(call: ToolCall, outcome: ToolCallOutcome, execution: Coroutine[Any, Any, None]) -> None:
    unfinished: CallSuspended | None = None
    with maybe_tool_span(call.tool.qualified_name, call.id, call.arguments, description=call.tool.description) as span:
        try:
            await execution
        except CallSuspended as waits:
            unfinished = waits  # which is no failure of the tool
        if span is not None and span.include_sensitive_data:
            span.span_data.output = outcome.output
    if unfinished is not None:
        raise unfinished


async def _execute(
    call: ToolCall,
    context: RunContextWrapper[Any],
    outcome: ToolCallOutcome,
    hooks: RunHooks[Any] | None,
    invoker: ToolInvoker,
    *,
    resumed: bool,
) -> None:
    own, watching = call.make_context(context), list[Any]()
    guarded = ToolGuardrailOutcome() if resumed else await run_input_guardrails(call, own)
    outcome.guardrail_results += guarded.guardrail_results
    if guarded.replacement is not None:
        outcome.output = guarded.replacement
    else:
        watching = [watcher for watcher in (hooks, getattr(call.agent, "hooks", None)) if watcher]
        for watcher in () if resumed else watching:
            await watcher.on_tool_start(own, call.agent, call.tool)
        outcome.output = await _call_invoker(call, own, invoker)
        outcome.returned = True
        await _run_output_guardrails(call, own, outcome)
    adapter = call.tool.output_type_adapter if guarded.replacement is None else None
    item = make_output_item(call.id, outcome.output, adapter=adapter)
    outcome.item = {**item, "caller": call.item["caller"]} if "caller" in call.item else item
    outcome.custom_data = await _extract_custom_data(call, own, outcome)
    for watcher in watching:
        await watcher.on_tool_end(own, call.agent, call.tool, outcome.output)


async def _call_invoker(call: ToolCall, context: ToolContext[Any], invoker: ToolInvoker) -> Any:
    outer = current_conversation.set(call.conversation_key or current_conversation.get())
    try:
        return await invoker(context, call.arguments)
    except (AgentsException, CallSuspended):
        raise
    except Exception as error:
        raise ToolFailed(call.tool.qualified_name, call.id, error) from error
    finally:
        current_conversation.reset(outer)


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
    call: ToolCall, context: ToolContext[Any], outcome: ToolCallOutcome
) -> dict[str, Any] | None:
    extract = call.tool.custom_data_extractor
    if extract is None:
        return None
    found = await maybe_await(
        extract(FunctionToolCustomDataContext(context, call.tool, outcome.output, outcome.item or {}))
    )
    if found is not None and not isinstance(found, Mapping):
        raise UserError(f"the custom_data_extractor of {call.tool.name} must return a mapping, not {found!r}")
    return None if found is None else dict(found)


T = TypeVar("T")


class NotStarted(Exception):
    """The work was not begun, because other work had failed or everything was cancelled before its turn came."""


async def run_all(
    work: Sequence[Callable[[], Awaitable[T]]], *, limit: int | None = None
) -> tuple[list[T | BaseException], asyncio.CancelledError | None]:
    """What each piece of work came to, in order: its result or its error; at most ``limit`` at a time.

    After an error nothing more is begun, but what is under way may end. When the caller is cancelled, so is all that
    is under way; what had ended by then is kept, and the cancellation is returned for the caller to raise later.
    """
    if len(work) == 1:
        try:
            return [await work[0]()], None
        except asyncio.CancelledError as cancelled:
            return [cancelled], cancelled
        except Exception as error:  # noqa: BLE001 - it is given back
            return [error], None
    turns = asyncio.Semaphore(limit or len(work))
    stopped = False

    async def one(begin: Callable[[], Awaitable[T]]) -> T:
        nonlocal stopped
        async with turns:
            if stopped:
                raise NotStarted
            try:
                return await begin()
            except BaseException:
                stopped = True
                raise

    tasks = [asyncio.ensure_future(one(begin)) for begin in work]
    told = await _wait_all(tasks)
    results: list[T | BaseException] = [_get_result(task) for task in tasks]
    return results, told


async def _wait_all(tasks: Sequence["asyncio.Task[T]"]) -> asyncio.CancelledError | None:
    cancelled = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as told:
            cancelled = cancelled or told
            for task in tasks:
                task.cancel()
    return cancelled


def _get_result(task: "asyncio.Task[T]") -> T | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error
