"""An agent that is a tool of another one: the same driver, with its state inside the call's record."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.agents.agent_tool import AgentToolInvocation, AgentToolStreamEvent
from holdfast.agents.approvals import Approvals
from holdfast.agents.context import RunContextWrapper, ToolContext
from holdfast.agents.tools import explained
from holdfast.agents.types import resolved
from holdfast.base.ids import new_id
from holdfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from holdfast.runs.decide import is_waiting
from holdfast.runs.events import StreamEvent
from holdfast.runs.live import Emit, Live
from holdfast.runs.state import Inline, OnServer, State, UsageRecord
from holdfast.runs.steps import NestedBegun
from holdfast.toolcalls.call import Call
from holdfast.toolcalls.invoke import Unfinished


async def run_nested(
    run: Live,
    call: Call,
    keep: Callable[[State], None],
    state: State | None,
    context: ToolContext[Any],
    arguments: str,
) -> Any:
    """The nested agent's answer. When it waits for a person, its state is kept and :class:`Unfinished` raised.

    Nested runs share the program's context and the usage; decisions about their calls are their own.
    """
    from holdfast.runs.driver import drive  # the driver makes calls, and some calls drive
    from holdfast.runs.result import RunResult

    nested = call.tool.agent_tool
    assert nested is not None  # noqa: S101 - the caller looked
    child: Live | None = None
    try:
        if state is None:
            given = await nested.nested_input(arguments)
            state = _fresh(run, nested, given.input, given.tool_input)
            if run.keeper is not None:
                await run.keeper.keep(run, NestedBegun(call.id, state))
        child = _live(run, call, state, context)
        await drive(child)
        if is_waiting(child.state):
            keep(_frozen(child))
            raise Unfinished
        if nested.custom_output_extractor is not None:
            return await nested.custom_output_extractor(RunResult.of(child))
        return child.final_output
    except Unfinished:
        raise
    except BaseException as error:
        explain = call.tool.failure_error_function
        if explain is not None and isinstance(error, Exception):
            return await explained(explain, context, error)
        if child is not None:
            keep(_frozen(child))
        raise


def _fresh(run: Live, nested: Any, input: Any, tool_input: Any) -> State:
    server = nested.conversation_id or nested.previous_response_id
    return State(
        run_id=new_id("run"),
        input=input,
        agent=run.path(nested.agent),
        max_turns=DEFAULT_MAX_TURNS if nested.max_turns is None else nested.max_turns,
        conversation=OnServer(nested.conversation_id, nested.previous_response_id) if server else Inline(),
        tool_input=tool_input,
    )


def _live(run: Live, call: Call, state: State, context: ToolContext[Any]) -> Live:
    nested = call.tool.agent_tool
    assert nested is not None  # noqa: S101 - the caller looked
    own: RunContextWrapper[Any] = RunContextWrapper(
        run.context.context,
        usage=run.context.usage,
        approvals=Approvals([*run.standing, *state.approvals]),
        tool_input=state.tool_input,
    )
    child = Live(
        state,
        graph=run.graph,
        context=own,
        config=run.config if nested.run_config is None else RunConfig.of(nested.run_config),
        hooks=nested.hooks,
        session=nested.session,
        emit=None if nested.on_stream is None else _passing_on(call, nested),
        keeper=run.keeper,
        route=(*run.route, call.id),
        outer_conversation=run.conversation,
    )
    child.unlisted_from(run)
    child.standing = run.standing
    child.invocation = AgentToolInvocation(call.tool.name, call.id, context.tool_arguments)
    return child


def _passing_on(call: Call, nested: Any) -> Emit:
    async def emit(event: StreamEvent) -> None:
        await resolved(nested.on_stream(AgentToolStreamEvent(event=event, agent=nested.agent, tool_call=call.raw)))

    return emit


def _frozen(child: Live) -> State:
    # What was consumed is counted once, in the outer run.
    return replace(child.frozen(), usage=UsageRecord())
