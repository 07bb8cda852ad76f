"""The last steps of a run: tool outputs as final output, output guardrails, and the limit of turns."""

import asyncio
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
from standfast.base.log import log
from standfast.lifecycle.scope import Scope, is_cancelling
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import OutputGuardrailBlockedMessageArgs
from standfast.runs.core.state import FinalOutput, TranscriptEntry
from standfast.runs.core.steps import Finished, ToolOutputChecked
from standfast.runs.error_handlers import call_error_handler
from standfast.runs.result import get_first_input, parse_output
from standfast.runs.session_io import as_items
from standfast.tool_calls.output import to_plain_value
from standfast.tracing.create import maybe_guardrail_span

WITHHELD_MESSAGE = "Output withheld by an output guardrail."


async def check_tool_output(run: ActiveRun) -> ToolOutputChecked:
    """Determine by the agent's ``tool_use_behavior`` whether a tool output is the final output."""
    behavior: Any = run.current_agent.tool_use_behavior
    if behavior == "run_llm_again":
        return ToolOutputChecked(None)
    results = await _collect_tool_results(run)
    if not results:
        return ToolOutputChecked(None)
    if callable(behavior):
        decision = await maybe_await(behavior(run.context, list(results.values())))
        if not isinstance(decision, ToolsToFinalOutputResult):
            raise UserError(f"tool_use_behavior must return ToolsToFinalOutputResult, not {decision!r}")
        if not decision.is_final_output:
            return ToolOutputChecked(None)
        return ToolOutputChecked(_take_final_output(run, decision.final_output, ""))
    names = None if behavior == "stop_on_first_tool" else behavior["stop_at_tool_names"]
    for call_id, result in results.items():
        if names is None or result.tool.name in names or result.tool.qualified_name in names:
            return ToolOutputChecked(_take_final_output(run, result.output, call_id))
    return ToolOutputChecked(None)


def _take_final_output(run: ActiveRun, value: Any, call_id: str) -> FinalOutput:
    """Return a tool's output as the final output; it is a text unless the agent has another output type."""
    if run.current_agent.output_type in (None, str):
        value = str(value)
    run.final_output = value
    return FinalOutput(value=to_plain_value(value), call_id=call_id)


async def _collect_tool_results(run: ActiveRun) -> dict[str, FunctionToolResult]:
    """Return the results of this turn's tools by call id, in the model's order."""
    toolbox = await run.get_toolbox(run.state.agent)
    state, results = run.state, {}
    outputs = {
        entry.item.get("call_id"): start
        for start, entry in enumerate(state.transcript[state.turn_start :], state.turn_start)
        if entry.kind == "output"
    }
    for call in state.calls:
        tool = toolbox.find_tool(call.tool)
        if call.kind == "function" and tool is not None and tool.local_tool is None and call.id in outputs:
            item: Any = run.get_item(outputs[call.id])
            results[call.id] = FunctionToolResult(tool, item.output, item)
    return results


async def finish_run(run: ActiveRun) -> Finished:
    """Parse the final output and check it with the output guardrails.

    An output that they refuse does not become part of the conversation; the tool calls before it do.
    """
    answer, agent = run.state.answer, run.current_agent
    assert answer is not None  # noqa: S101 - checked by choose_next_step
    if answer.refusal is not None:
        run.on_output_parsed()
        return await handle_run_error(run, "model_refusal", ModelRefusalError(answer.refusal))
    if answer.text is not None:
        try:
            run.final_output = parse_output(agent, answer.text)
        except ModelBehaviorError as error:
            if "invalid_final_output" in run.error_handlers:
                run.on_output_parsed()
            return await handle_run_error(run, "invalid_final_output", error)
    elif run.final_output is None:
        run.final_output = answer.value
    run.on_output_parsed()
    return await _check_and_finish(run, answer, replace_output=not answer.text)


async def _check_and_finish(
    run: ActiveRun,
    answer: FinalOutput,
    entries: tuple[TranscriptEntry, ...] = (),
    *,
    replace_output: bool = False,
) -> Finished:
    """Finish with this final output if the output guardrails accept it."""
    agent = run.current_agent
    await _run_end_hooks(run, agent)
    results, failure = await _run_output_guardrails(run, agent)
    records = run.record_guardrails(results)
    if failure is not None:  # recorded with the calls of this turn, which were made all the same
        return Finished(run.state.answer, guardrails=records, error=failure)
    for result in results:
        if result.output.tripwire_triggered:
            tripped = OutputGuardrailTripwireTriggered(result)
            run.discard_from(run.state.turn_start)
            replacement = _make_blocked_message(run, result) if replace_output else None
            return Finished(run.state.answer, guardrails=records, error=tripped, output_replacement=replacement)
    return Finished(replace(answer, accepted=True), entries, guardrails=records)


def _make_blocked_message(run: ActiveRun, result: OutputGuardrailResult) -> str:
    """Return the text that takes the place of a refused tool output: the program's, if that is usable."""
    message: Any = run.config.output_guardrail_blocked_message
    if callable(message):
        name = result.guardrail.get_name()
        arguments = OutputGuardrailBlockedMessageArgs(WITHHELD_MESSAGE, name, run.current_agent, run.context)
        try:
            message = message(arguments)
        except Exception as error:  # noqa: BLE001 - the refused output must be replaced all the same
            log.warning("output_guardrail_blocked_message failed: %s", type(error).__name__)
            message = None
    return message if isinstance(message, str) and message.strip() else WITHHELD_MESSAGE


async def handle_max_turns(run: ActiveRun) -> Finished:
    """End a run that has reached its limit of turns; the program's handler may provide a final output."""
    return await handle_run_error(run, "max_turns", MaxTurnsExceeded(f"Max turns ({run.state.max_turns}) exceeded"))


async def handle_run_error(run: ActiveRun, kind: str, error: Any) -> Finished:
    """Finish with the final output of the program's error handler, or with the error itself."""
    handled = await call_error_handler(run, kind, error)
    if handled is None:
        return Finished(run.state.answer, error=error)
    run.final_output = handled.value
    return await _check_and_finish(run, handled.answer, handled.entries)


async def _run_output_guardrails(
    run: ActiveRun, agent: Agent[Any]
) -> tuple[list[OutputGuardrailResult], Exception | None]:
    """Return the results of the output guardrails, and the exception of one that failed."""
    guards = [*agent.output_guardrails, *(run.config.output_guardrails or ())]
    if not guards:
        return [], None
    tasks, failure = [], None
    try:
        async with Scope() as scope:
            tasks = [scope.start(_run_output_guardrail(run, guard, agent)) for guard in guards]
    except ExceptionGroup as group:
        failure = group.exceptions[0]
    except Exception as error:  # noqa: BLE001 - raised when what was done before is recorded
        failure = error
    finished = [task for task in tasks if not task.cancelled() and task.exception() is None]
    return [task.result() for task in finished], failure


async def _run_output_guardrail(
    run: ActiveRun, guard: OutputGuardrail[Any], agent: Agent[Any]
) -> OutputGuardrailResult:
    with maybe_guardrail_span(guard.get_name()) as span:
        try:
            result = await guard.run(run.context, agent, run.final_output)
        except asyncio.CancelledError as error:
            if is_cancelling():
                raise
            # Of its own, and nothing waits for it any more: the output was not checked.
            raise UserError(f"the guardrail {guard.get_name()!r} was cancelled and has not decided") from error
        if span is not None:
            span.span_data.triggered = result.output.tripwire_triggered
        return result


async def _run_end_hooks(run: ActiveRun, agent: Agent[Any]) -> None:
    if run.hooks is None and agent.hooks is None:
        return
    context = run.make_hook_context(as_items(get_first_input(run)))
    if run.hooks is not None:
        await run.hooks.on_agent_end(context, agent, run.final_output)
    if agent.hooks is not None:
        await agent.hooks.on_end(context, agent, run.final_output)
