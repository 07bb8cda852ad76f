"""Call an agent tool by hand, outside of a run of another agent."""

from typing import Any

from standfast.agents.agent_tool import AgentTool, AgentToolInvocation, AgentToolStreamEvent
from standfast.agents.context import RunContextWrapper, ToolContext
from standfast.agents.errors import UserError
from standfast.agents.tools import explain_tool_error
from standfast.agents.types import ToolErrorFunction, maybe_await
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runs.core.transitions import is_waiting
from standfast.runs.driver import drive
from standfast.runs.items import StreamEvent
from standfast.runs.result import RunResult
from standfast.runs.runner import prepare_run


async def call_agent_tool(
    nested: AgentTool, error_function: ToolErrorFunction | None, context: ToolContext[Any], arguments: str
) -> Any:
    """Run the agent and return its output. It shares context object and usage, and is no part of a saved run."""
    try:
        return await _run_agent(nested, context, arguments)
    except Exception as error:
        if error_function is None:
            raise
        return await explain_tool_error(error_function, context, error)


async def _run_agent(nested: AgentTool, context: ToolContext[Any], arguments: str) -> Any:
    nested_input = await nested.build_nested_input(arguments)
    run = prepare_run(
        nested.agent,
        nested_input.input,
        context=RunContextWrapper(context.context, usage=context.usage, tool_input=nested_input.tool_input),
        max_turns=DEFAULT_MAX_TURNS if nested.max_turns is None else nested.max_turns,
        hooks=nested.hooks,
        run_config=nested.run_config or context.run_config,
        previous_response_id=nested.previous_response_id,
        conversation_id=nested.conversation_id,
        session=nested.session,
    )
    run.invocation = AgentToolInvocation(context.tool_name, context.tool_call_id, context.tool_arguments)
    listen = nested.on_stream
    if listen is not None:

        async def emit(event: StreamEvent) -> None:
            notification = AgentToolStreamEvent(event=event, agent=nested.agent, tool_call=context.tool_call)
            await maybe_await(listen(notification))

        run.emit = emit
    await drive(run)
    if is_waiting(run.state):
        raise UserError(f"the agent {nested.agent.name!r} waits for an approval: only a run can be resumed")
    result = RunResult.from_run(run)
    return (
        result.final_output if nested.custom_output_extractor is None else await nested.custom_output_extractor(result)
    )
