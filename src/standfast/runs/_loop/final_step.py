"""How a run comes to its end: tools whose output is the answer, output guardrails, and running out of turns."""

from typing import Any

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.errors import (
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    UserError,
)
from standfast.agents.guardrails import OutputGuardrail, OutputGuardrailResult
from standfast.agents.tools import FunctionToolResult, ToolsToFinalOutputResult
from standfast.agents.types import maybe_await
from standfast.lifecycle.scope import Scope
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.state import FinalOutput, TranscriptEntry
from standfast.runs.core.steps import Finished, ToolOutputChecked
from standfast.runs.error_handlers import call_error_handler
from standfast.runs.result import parse_output
from standfast.tool_calls.output import to_plain_value
from standfast.tracing.instrumentation import maybe_guardrail_span

WITHHELD_MESSAGE = "This output was withheld by a guardrail."


async def check_tool_output(run: ActiveRun) -> ToolOutputChecked:
    """Whether the tools have given the final output already, by the agent's ``tool_use_behavior``."""
    behavior: Any = run.current_agent.tool_use_behavior
    if behavior == "run_llm_again":
        return ToolOutputChecked(None)
    results = await _collect_tool_results(run)
    if not results:
        return ToolOutputChecked(None)
    if callable(behavior):
        found = await maybe_await(behavior(run.context, list(results.values())))
        if not isinstance(found, ToolsToFinalOutputResult):
            raise UserError(f"tool_use_behavior must return ToolsToFinalOutputResult, not {found!r}")
        if not found.is_final_output:
            return ToolOutputChecked(None)
        run.final_output = found.final_output
        return ToolOutputChecked(FinalOutput(value=to_plain_value(found.final_output), call_id=""))
    names = None if behavior == "stop_on_first_tool" else behavior["stop_at_tool_names"]
    for call_id, result in results.items():
        if names is None or result.tool.name in names or result.tool.qualified_name in names:
            run.final_output = result.output
            return ToolOutputChecked(FinalOutput(value=to_plain_value(result.output), call_id=call_id))
    return ToolOutputChecked(None)


async def _collect_tool_results(run: ActiveRun) -> dict[str, FunctionToolResult]:
    """What the tools of this turn returned, in the model's order."""
    box = await run.get_toolbox(run.state.agent)
    state, found = run.state, {}
    outputs = {
        entry.item.get("call_id"): start
        for start, entry in enumerate(state.transcript[state.turn_start :], state.turn_start)
        if entry.kind == "output"
    }
    for call in state.calls:
        tool = box.find_tool(call.tool)
        if call.kind == "function" and tool is not None and call.id in outputs:
            item: Any = run.get_item(outputs[call.id])
            found[call.id] = FunctionToolResult(tool, item.output, item)
    return found


async def finish_run(run: ActiveRun) -> Finished:
    """Read the final output and let the output guardrails judge it.

    The output that they refuse is no part of the conversation. What the tools did before it is.
    """
    answer, agent = run.state.answer, run.current_agent
    assert answer is not None  # noqa: S101 - decide looked
    if answer.refusal is not None:
        return await handle_run_error(run, "model_refusal", ModelRefusalError(answer.refusal))
    if answer.text is not None:
        try:
            run.final_output = parse_output(agent, answer.text)
        except ModelBehaviorError as error:
            return await handle_run_error(run, "invalid_final_output", error)
    elif run.final_output is None:
        run.final_output = answer.value
    return await _check_and_finish(run, answer, withheld=None if answer.text else WITHHELD_MESSAGE)


async def _check_and_finish(
    run: ActiveRun, answer: FinalOutput, entries: tuple[TranscriptEntry, ...] = (), *, withheld: str | None = None
) -> Finished:
    """The end with this answer, whoever gave it, if the output guardrails agree."""
    agent = run.current_agent
    results = await _run_output_guardrails(run, agent)
    records = run.record_guardrails(results)
    for result in results:
        if result.output.tripwire_triggered:
            tripped = OutputGuardrailTripwireTriggered(result)
            run.discard_from(run.state.turn_start)
            return Finished(run.state.answer, guardrails=records, error=tripped, withheld=withheld)
    await _run_end_hooks(run, agent)
    return Finished(replace(answer, settled=True), entries, guardrails=records)


async def handle_max_turns(run: ActiveRun) -> Finished:
    """The turns are used up: the program's handler may still give an answer."""
    return await handle_run_error(run, "max_turns", MaxTurnsExceeded(f"Max turns ({run.state.max_turns}) exceeded"))


async def handle_run_error(run: ActiveRun, kind: str, error: Any) -> Finished:
    """What the program's handler makes of an error, or the error itself."""
    found = await call_error_handler(run, kind, error)
    if found is None:
        return Finished(run.state.answer, error=error)
    run.final_output = found.value
    return await _check_and_finish(run, found.answer, found.entries)


async def _run_output_guardrails(run: ActiveRun, agent: Agent[Any]) -> list[OutputGuardrailResult]:
    guards = [*(run.config.output_guardrails or ()), *agent.output_guardrails]
    if not guards:
        return []
    try:
        async with Scope() as scope:
            tasks = [scope.start(_run_output_guardrail(run, guard, agent)) for guard in guards]
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


async def _run_output_guardrail(
    run: ActiveRun, guard: OutputGuardrail[Any], agent: Agent[Any]
) -> OutputGuardrailResult:
    with maybe_guardrail_span(guard.get_name()) as span:
        result = await guard.run(run.context, agent, run.final_output)
        if span is not None:
            span.span_data.triggered = result.output.tripwire_triggered
        return result


async def _run_end_hooks(run: ActiveRun, agent: Agent[Any]) -> None:
    if run.hooks is None and agent.hooks is None:
        return
    own = run.make_hook_context()
    if run.hooks is not None:
        await run.hooks.on_agent_end(own, agent, run.final_output)
    if agent.hooks is not None:
        await agent.hooks.on_end(own, agent, run.final_output)
