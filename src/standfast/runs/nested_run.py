"""Run an agent as a tool of another agent. The nested run's state is kept in the record of the call."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from standfast.agents.agent_tool import AgentToolInvocation, AgentToolStreamEvent
from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper, ToolContext
from standfast.agents.tools import explain_tool_error
from standfast.agents.types import maybe_await
from standfast.base.ids import new_id
from standfast.runs.active_run import ActiveRun, EmitCallback
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from standfast.runs.core.state import InlineConversation, ServerConversation, State, UsageRecord
from standfast.runs.core.steps import NestedRunStarted
from standfast.runs.core.transitions import is_waiting
from standfast.runs.items import StreamEvent
from standfast.tool_calls.call import CallSuspended, ToolCall


async def run_nested(
    run: ActiveRun,
    call: ToolCall,
    save_state: Callable[[State], None],
    state: State | None,
    context: ToolContext[Any],
    arguments: str,
) -> Any:
    """Run the nested agent and return its final output.

    When it waits for an approval, its state is passed to ``save_state`` and :class:`CallSuspended` is raised. A nested
    run shares the program's context and the usage with its outer run, but not the approvals.
    """
    from standfast.runs.driver import drive  # imported here: the driver imports the step that imports this
    from standfast.runs.result import RunResult, get_final_output

    nested = call.tool.agent_tool
    assert nested is not None  # noqa: S101 - checked by the caller
    child: ActiveRun | None = None
    try:
        if state is None:
            nested_input = await nested.build_nested_input(arguments)
            state = _make_state(run, nested, nested_input.input, nested_input.tool_input)
            if run.recorder is not None:
                await run.recorder.record_outcome(run, NestedRunStarted(call.id, state))
        child = _make_child_run(run, call, state, context)
        await drive(child)
        if is_waiting(child.state):
            save_state(_capture_child_state(child))
            raise CallSuspended
        if nested.custom_output_extractor is not None:
            return await nested.custom_output_extractor(RunResult.from_run(child))
        return get_final_output(child)
    except CallSuspended:
        raise
    except BaseException as error:
        explain = call.tool.failure_error_function
        if explain is not None and isinstance(error, Exception):
            return await explain_tool_error(explain, context, error)
        if child is not None:
            save_state(_capture_child_state(child))
        raise


def _make_state(run: ActiveRun, nested: Any, input: Any, tool_input: Any) -> State:
    server = nested.conversation_id or nested.previous_response_id
    return State(
        run_id=new_id("run"),
        input=input,
        agent=run.get_agent_path(nested.agent),
        max_turns=DEFAULT_MAX_TURNS if nested.max_turns is None else nested.max_turns,
        conversation=ServerConversation(nested.conversation_id, nested.previous_response_id)
        if server
        else InlineConversation(),
        tool_input=tool_input,
    )


def _make_child_run(run: ActiveRun, call: ToolCall, state: State, context: ToolContext[Any]) -> ActiveRun:
    nested = call.tool.agent_tool
    assert nested is not None  # noqa: S101 - checked by the caller
    context_wrapper: RunContextWrapper[Any] = RunContextWrapper(
        run.context.context,
        usage=run.context.usage,
        approvals=Approvals([*run.standing_decisions, *state.approvals]),
        tool_input=state.tool_input,
        sandbox=run.context.sandbox,
    )
    child = ActiveRun(
        state,
        graph=run.graph,
        context=context_wrapper,
        config=run.config if nested.run_config is None else RunConfig.coerce(nested.run_config),
        hooks=nested.hooks,
        session=nested.session,
        emit=None if nested.on_stream is None else _make_emitter(call, nested),
        recorder=run.recorder,
        route=(*run.route, call.id),
        outer_conversation_key=run.conversation_key,
        workspace=run.workspace,
    )
    child.share_unlisted_agents(run)
    child.standing_decisions = run.standing_decisions
    child.invocation = AgentToolInvocation(call.tool.name, call.id, context.tool_arguments)
    return child


def _make_emitter(call: ToolCall, nested: Any) -> EmitCallback:
    async def emit(event: StreamEvent) -> None:
        await maybe_await(nested.on_stream(AgentToolStreamEvent(event=event, agent=nested.agent, tool_call=call.raw)))

    return emit


def _capture_child_state(child: ActiveRun) -> State:
    # Usage is counted once, in the outer run, which also refers to the workspace.
    return replace(child.capture_state(), usage=UsageRecord(), workspace=None)
