"""Making a call: the only place where a tool of the program is called."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.agents.context import RunContextWrapper, ToolContext
from holdfast.agents.errors import AgentsException, ToolOutputGuardrailTripwireTriggered, UserError
from holdfast.agents.guardrails import ToolOutputGuardrailData, ToolOutputGuardrailResult
from holdfast.agents.hooks import RunHooks
from holdfast.agents.tools import FunctionToolCustomDataContext
from holdfast.agents.types import resolved
from holdfast.base.conversation import conversation
from holdfast.base.items import Item
from holdfast.toolcalls.call import Call, Guarded, ToolFailed, ask_guardrail, guard_input
from holdfast.toolcalls.output import output_item
from holdfast.tracing.inner import tool_span
from holdfast.tracing.spans import here

Perform: TypeAlias = Callable[[ToolContext[Any], str], Awaitable[Any]]


class Unfinished(Exception):
    """The call has to wait, for a person in a nested run. It will be made again, and goes on then."""


@dataclass
class Made:
    """A call that was made, or answered by a guardrail in the tool's place.

    It fills up while the call is made: when something fails, it says how far the call came. ``returned`` is set as
    soon as the tool has done its work, ``item`` when the model can be told what it returned.
    """

    output: Any = None
    returned: bool = False
    item: Item | None = None
    custom_data: dict[str, Any] | None = None
    results: list[Any] = field(default_factory=list)


def invoke(
    call: Call,
    context: RunContextWrapper[Any],
    made: Made,
    *,
    hooks: RunHooks[Any] | None = None,
    perform: Perform | None = None,
    again: bool = False,
) -> Coroutine[Any, Any, None]:
    """Make the call and fill in ``made``. Its guardrails are asked before and after, its hooks are told.

    ``perform`` makes calls that are more than calling a function, such as running a nested agent. A call that goes
    on ``again`` after it was unfinished has begun before.
    """
    making = _make(call, context, made, hooks, perform or call.tool.invoke, again=again)
    return making if here() is None else _traced(call, made, making)


async def _traced(call: Call, made: Made, making: Coroutine[Any, Any, None]) -> None:
    unfinished: Unfinished | None = None
    with tool_span(call.tool.qualified_name, call.id, call.arguments, description=call.tool.description) as span:
        try:
            await making
        except Unfinished as waits:
            unfinished = waits  # which is no failure of the tool
        if span is not None and span.contents:
            span.span_data.output = made.output
    if unfinished is not None:
        raise unfinished


async def _make(
    call: Call,
    context: RunContextWrapper[Any],
    made: Made,
    hooks: RunHooks[Any] | None,
    perform: Perform,
    *,
    again: bool,
) -> None:
    own, watching = call.context(context), list[Any]()
    guarded = Guarded() if again else await guard_input(call, own)
    made.results += guarded.results
    if guarded.instead is not None:
        made.output = guarded.instead
    else:
        watching = [watcher for watcher in (hooks, getattr(call.agent, "hooks", None)) if watcher]
        for watcher in () if again else watching:
            await watcher.on_tool_start(own, call.agent, call.tool)
        made.output = await _performed(call, own, perform)
        made.returned = True
        await _guard_output(call, own, made)
    adapter = call.tool.output_type_adapter if guarded.instead is None else None
    item = output_item(call.id, made.output, adapter=adapter)
    made.item = {**item, "caller": call.item["caller"]} if "caller" in call.item else item
    made.custom_data = await _custom_data(call, own, made)
    for watcher in watching:
        await watcher.on_tool_end(own, call.agent, call.tool, made.output)


async def _performed(call: Call, context: ToolContext[Any], perform: Perform) -> Any:
    outer = conversation.set(call.conversation or conversation.get())
    try:
        return await perform(context, call.arguments)
    except (AgentsException, Unfinished):
        raise
    except Exception as error:
        raise ToolFailed(call.tool.qualified_name, call.id, error) from error
    finally:
        conversation.reset(outer)


async def _guard_output(call: Call, context: ToolContext[Any], made: Made) -> None:
    for guardrail in call.tool.tool_output_guardrails or ():
        data = ToolOutputGuardrailData(context=context, agent=call.agent, output=made.output)  # type: ignore[arg-type]
        output = await ask_guardrail(guardrail, data)
        made.results.append(ToolOutputGuardrailResult(guardrail, output))
        if output.behavior["type"] == "raise_exception":
            raise ToolOutputGuardrailTripwireTriggered(guardrail, output)
        if output.behavior["type"] == "reject_content":
            made.output = output.behavior["message"]
            return


async def _custom_data(call: Call, context: ToolContext[Any], made: Made) -> dict[str, Any] | None:
    extract = call.tool.custom_data_extractor
    if extract is None:
        return None
    found = await resolved(extract(FunctionToolCustomDataContext(context, call.tool, made.output, made.item or {})))
    if found is not None and not isinstance(found, Mapping):
        raise UserError(f"the custom_data_extractor of {call.tool.name} must return a mapping, not {found!r}")
    return None if found is None else dict(found)
