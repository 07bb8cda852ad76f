"""One model call: build the request, run hooks and input guardrails, and parse the response."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from msgspec import structs

from standfast.agents.agent import Agent
from standfast.agents.errors import InputGuardrailTripwireTriggered, UserError
from standfast.agents.guardrails import InputGuardrail, InputGuardrailResult
from standfast.agents.model_settings import ModelSettings, get_implicit_settings
from standfast.agents.output import AgentOutputSchemaBase, as_output_schema
from standfast.agents.tools import FunctionTool, LocalTool
from standfast.agents.types import maybe_await
from standfast.base.item_pairs import drop_repeated_items
from standfast.base.items import Item
from standfast.lifecycle.scope import Scope
from standfast.models.interface import Model, ModelResponse, TResponseStreamEvent
from standfast.models.request import ModelRequest, call_model
from standfast.runs._loop.response_parser import drop_repeated_calls, parse_response
from standfast.runs._loop.tracing import get_model_tracing, record_response, start_model_span
from standfast.runs.active_run import ActiveRun, EmitCallback
from standfast.runs.config import CallModelData, ModelInputData
from standfast.runs.core.conversion import to_usage_record
from standfast.runs.core.state import (
    CallRecord,
    FinalOutput,
    GuardrailRecord,
    ResponseRecord,
    ServerConversation,
    State,
)
from standfast.runs.core.steps import ModelAnswered
from standfast.runs.error_handlers import format_tool_error
from standfast.runs.items import RawResponsesStreamEvent
from standfast.runs.result import get_first_input
from standfast.runs.session_io import as_items, load_history
from standfast.runs.toolbox import Toolbox
from standfast.tool_calls.output import to_plain_value
from standfast.tracing.create import maybe_guardrail_span

T = TypeVar("T")


async def ask_model(run: ActiveRun) -> ModelAnswered:
    """Call the current agent's model. If an input guardrail trips, the response is discarded."""
    state, agent = run.state, run.current_agent
    if run.recorder is not None:
        await run.recorder.before_request(run)
    await load_history(run)
    items = run.model_input.build_input(state)
    run.context.model_input, run.context.turn_input = items, as_items(get_first_input(run))
    schema = as_output_schema(agent.output_type)
    (response, toolbox, model_name), guardrails = await _run_guarded(
        run, agent, partial(_request_response, run, items, schema)
    )
    response = drop_repeated_calls(response)
    run.context.usage.add(response.usage)
    hook_error = await _run_llm_end_hooks(run, agent, response)
    entries, calls, answer = parse_response(
        response.items,
        agent=state.agent,
        agent_name=agent.name,
        toolbox=toolbox,
        plain_text=schema is None or schema.is_plain_text(),
        lenient=run.config.tool_not_found_behavior == "return_error_to_model",
    )
    if not calls and answer is None and "invalid_final_output" in run.error_handlers:
        answer = FinalOutput(text="")  # no output at all: the program's handler is asked before the model is
    calls = [await _format_missing_tool(run, call) if call.status == "rejected" else call for call in calls]
    start = len(state.transcript)
    run.raw_items.update((start + index, raw) for index, raw in enumerate(response.output))
    return ModelAnswered(
        tuple(entries),
        _make_response_record(response),
        tuple(calls),
        answer,
        guardrails,
        hook_error,
        model_name,
    )


async def _run_llm_end_hooks(run: ActiveRun, agent: Agent[Any], response: ModelResponse) -> Exception | None:
    """Run the end hooks. Returns the error of a hook, to be raised when the response is recorded."""
    try:
        for hooks in reversed(_collect_hooks(run, agent)):
            await hooks.on_llm_end(run.context, agent, response)
    except Exception as error:  # noqa: BLE001 - raised when the response is recorded
        return error
    return None


async def _format_missing_tool(run: ActiveRun, call: CallRecord) -> CallRecord:
    """Return the call of an unknown tool with the message that the model receives as its output."""
    return structs.replace(call, message=await format_tool_error(run, "tool_not_found", call, call.message or ""))


async def _build_request(
    run: ActiveRun, agent: Agent[Any], items: list[Item], schema: AgentOutputSchemaBase | None
) -> tuple[ModelRequest, Toolbox]:
    """Return the request, and the tools that are offered in it."""
    state = run.state
    instructions = await agent.get_system_prompt(run.context)
    edit = run.config.call_model_input_filter
    if edit is not None:
        data = CallModelData(ModelInputData(items, instructions), agent, run.context.context)
        edited = await maybe_await(edit(data))
        if not isinstance(edited, ModelInputData) or not isinstance(edited.input, list):
            problem = UserError("call_model_input_filter must return a ModelInputData instance")
            problem.add_note(f"its input must be a list; the filter returned {edited!r}")
            raise problem
        items, instructions = drop_repeated_items(edited.input), edited.instructions
    server = state.conversation if isinstance(state.conversation, ServerConversation) else ServerConversation()
    items, settings = await agent.prepare_request(run.context, items, _resolve_settings(run, agent, state))
    prompt = await agent.get_prompt(run.context)
    toolbox = await run.get_toolbox(state.agent, refresh=True)
    tools = [
        tool if isinstance(tool, FunctionTool) or not isinstance(tool, LocalTool) else await tool.bind(run.context)
        for tool in toolbox.tools
    ]
    request = ModelRequest(
        input=items,
        system_instructions=instructions,
        model_settings=settings,
        output_schema=schema,
        previous_response_id=None if server.conversation_id else server.previous_response_id,
        conversation_id=server.conversation_id,
        prompt=prompt,
        tools=tools,
        handoffs=toolbox.handoffs,
    )
    return request, toolbox


def _resolve_settings(run: ActiveRun, agent: Agent[Any], state: State) -> ModelSettings:
    settings = agent.model_settings
    if run.config.model is not None and settings == get_implicit_settings(agent.model):
        settings = get_implicit_settings(run.config.model)
    settings = settings.resolve(run.config.model_settings)
    if agent.reset_tool_choice and settings.tool_choice is not None and state.tools_used.get(state.agent):
        # The model was made to use a tool and has done so; forcing it again would loop until the limit of turns.
        return replace(settings, tool_choice=None)
    return settings


def _resolve_model(run: ActiveRun, agent: Agent[Any]) -> Model:
    model: Any = run.config.model if run.config.model is not None else agent.model
    return run.config.model_provider.get_model(model) if model is None or isinstance(model, str) else model


def _get_model_name(model: Model) -> str:
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__


async def _run_start_hooks(run: ActiveRun, agent: Agent[Any]) -> None:
    """Run the start hooks, unless they have run for this agent."""
    if run.state.start_hooks_run and not run.start_hooks_due:
        return
    run.start_hooks_due = False
    if run.hooks is None and agent.hooks is None:
        return
    context = run.make_hook_context(as_items(get_first_input(run)))
    if run.hooks is not None:
        await run.hooks.on_agent_start(context, agent)
    if agent.hooks is not None:
        await agent.hooks.on_start(context, agent)


def _collect_hooks(run: ActiveRun, agent: Agent[Any]) -> list[Any]:
    return [hooks for hooks in (run.hooks, agent.hooks) if hooks is not None]


async def _request_response(
    run: ActiveRun, items: list[Item], schema: AgentOutputSchemaBase | None
) -> tuple[ModelResponse, Toolbox, str]:
    """Return the response of the current agent's model, the tools that it could call, and the model's name."""
    agent = run.current_agent
    request, toolbox = await _build_request(run, agent, items, schema)
    model = _resolve_model(run, agent)
    return await _call_model(run, agent, model, request), toolbox, _get_model_name(model)


async def _call_model(run: ActiveRun, agent: Agent[Any], model: Model, request: ModelRequest) -> ModelResponse:
    for hooks in _collect_hooks(run, agent):
        await hooks.on_llm_start(run.context, agent, request.system_instructions, request.input)
    with start_model_span(run, model, request) as span:
        if span is not None:
            request = replace(request, tracing=get_model_tracing(span))
        response = await call_model(
            model, request, emit=None if run.emit is None else partial(_emit_raw_event, run.emit)
        )
        if span is not None:
            record_response(span, response)
    if run.catch_up is not None:
        await run.catch_up(False)  # a reader that cancels while the response arrives does not want it
    return response


async def _emit_raw_event(emit: EmitCallback, event: TResponseStreamEvent) -> None:
    await emit(RawResponsesStreamEvent(event))


async def _run_guarded(
    run: ActiveRun, agent: Agent[Any], ask: Callable[[], Awaitable[T]]
) -> tuple[T, tuple[GuardrailRecord, ...]]:
    """Run the input guardrails, some before the start hooks and the others in parallel to ``ask``."""
    guards = [] if run.state.input_checked else [*agent.input_guardrails, *(run.config.input_guardrails or ())]
    if not guards:
        await _run_start_hooks(run, agent)
        return await ask(), ()
    before = [guard for guard in guards if not guard.run_in_parallel]
    parallel = [guard for guard in guards if guard.run_in_parallel]
    checked = get_guardrail_input(run)
    tasks: list[asyncio.Task[InputGuardrailResult]] = []
    try:
        async with Scope() as scope:
            tasks += [scope.start(_run_input_guardrail(run, guard, agent, checked)) for guard in before]
        await _run_start_hooks(run, agent)
        async with Scope() as scope:
            tasks += [scope.start(_run_input_guardrail(run, guard, agent, checked)) for guard in parallel]
            if parallel:
                await asyncio.sleep(0)  # a guardrail that trips at once is noticed before the model can fail
            answer = await ask()
    except BaseException as error:
        run.unrecorded_results = _collect_finished_results(tasks)
        if isinstance(error, BaseExceptionGroup):
            tripped = [one for one in error.exceptions if isinstance(one, InputGuardrailTripwireTriggered)]
            raise (tripped or error.exceptions)[0] from None
        raise
    return answer, run.record_guardrails([task.result() for task in tasks])


def _collect_finished_results(tasks: "Sequence[asyncio.Task[InputGuardrailResult]]") -> list[InputGuardrailResult]:
    """Return the results of the guardrails that came to one, in their order."""
    results = []
    for task in tasks:
        error = task.exception() if task.done() and not task.cancelled() else None
        if isinstance(error, InputGuardrailTripwireTriggered):
            results.append(error.guardrail_result)
        elif error is None and task.done() and not task.cancelled():
            results.append(task.result())
    return results


async def _run_input_guardrail(
    run: ActiveRun, guard: InputGuardrail[Any], agent: Agent[Any], guardrail_input: str | list[Item]
) -> InputGuardrailResult:
    with maybe_guardrail_span(guard.get_name()) as span:
        result = await guard.run(agent, guardrail_input, run.context)
        if span is not None:
            span.span_data.triggered = result.output.tripwire_triggered
    if result.output.tripwire_triggered:
        raise InputGuardrailTripwireTriggered(result)
    return result


def get_guardrail_input(run: ActiveRun) -> str | list[Item]:
    """Return what the input guardrails check: the input of the run after the session's history, or what was added."""
    state, staged = run.state, list[Item]()
    if state.turn:
        staged = [entry.item for entry in state.transcript[state.responses[-1].stop :] if entry.kind == "input"]
    return staged or get_first_input(run)


def _make_response_record(response: ModelResponse) -> ResponseRecord:
    return ResponseRecord(
        start=0,
        stop=0,
        usage=to_usage_record(response.usage),
        response_id=response.response_id,
        request_id=response.request_id,
        raw_usage=None if response.raw_usage is None else to_plain_value(response.raw_usage),
    )
