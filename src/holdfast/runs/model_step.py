"""One answer of a model: everything that it is told, who looks on, and what it said."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from holdfast.agents.agent import Agent
from holdfast.agents.errors import InputGuardrailTripwireTriggered, UserError
from holdfast.agents.guardrails import InputGuardrail, InputGuardrailResult
from holdfast.agents.model_settings import ModelSettings
from holdfast.agents.output import AgentOutputSchemaBase, output_schema_of
from holdfast.agents.types import resolved
from holdfast.base.items import Item
from holdfast.lifecycle.scope import Scope
from holdfast.models.asking import ModelRequest, ask
from holdfast.models.contract import Model, ModelResponse, TResponseStreamEvent
from holdfast.runs.config import CallModelData, ModelInputData
from holdfast.runs.error_handling import formatted
from holdfast.runs.events import RawResponsesStreamEvent
from holdfast.runs.live import Emit, Live
from holdfast.runs.model_spans import answered, asking_span, model_tracing
from holdfast.runs.persistence import load_history
from holdfast.runs.reading import read
from holdfast.runs.state import CallRecord, Entry, GuardrailRecord, OnServer, ResponseRecord, State
from holdfast.runs.steps import Answered
from holdfast.runs.usage import usage_record
from holdfast.runs.verdicts import verdict_record
from holdfast.toolcalls.output import plain_value
from holdfast.tracing.inner import guarding_span


async def ask_model(run: Live) -> Answered:
    """Let the current agent's model answer. A guardrail that trips throws the answer away, wherever it is."""
    state, agent = run.state, run.current_agent
    await load_history(run)
    items = run.view.input(state)
    run.context.turn_input = items
    if not state.greeted:
        await _greet(run, agent)
    box = await run.toolbox(state.agent, anew=True)
    schema = output_schema_of(agent.output_type)
    request = await _request(run, agent, items, schema)
    request = replace(request, tools=box.tools, handoffs=box.handoffs)
    model = _model(run, agent)
    response, verdicts = await _guarded(run, agent, model, request)
    run.context.usage.add(response.usage)
    failed = await _told(run, agent, response)
    entries, calls, answer = read(
        response.items,
        agent=state.agent,
        agent_name=agent.name,
        box=box,
        plain_text=schema is None or schema.is_plain_text(),
        lenient=run.config.tool_not_found_behavior == "return_error_to_model",
    )
    calls = [await _excused(run, call) if call.status == "rejected" else call for call in calls]
    start = len(state.transcript)
    run.raws.update((start + index, raw) for index, raw in enumerate(response.output))
    return Answered(tuple(entries), _record(response), tuple(calls), answer, verdicts, failed)


async def _told(run: Live, agent: Agent[Any], response: ModelResponse) -> Exception | None:
    """Tell who looks on what the model answered; gives the error of one that fails, for later."""
    try:
        for watcher in _watchers(run, agent):
            await watcher.on_llm_end(run.context, agent, response)
    except Exception as error:  # noqa: BLE001 - it is raised when the answer is kept
        return error
    return None


async def _excused(run: Live, call: CallRecord) -> CallRecord:
    """A call of a tool that there is not, with what the model is told about it."""
    return structs.replace(call, message=await formatted(run, "tool_not_found", call, call.message or ""))


async def _request(
    run: Live, agent: Agent[Any], items: list[Item], schema: AgentOutputSchemaBase | None
) -> ModelRequest:
    state = run.state
    instructions = await agent.get_system_prompt(run.context)
    edit = run.config.call_model_input_filter
    if edit is not None:
        data = CallModelData(ModelInputData(items, instructions), agent, run.context.context)
        edited = await resolved(edit(data))
        if not isinstance(edited, ModelInputData) or not isinstance(edited.input, list):
            raise UserError(f"call_model_input_filter must return ModelInputData with a list, not {edited!r}")
        items, instructions = edited.input, edited.instructions
    server = state.conversation if isinstance(state.conversation, OnServer) else OnServer()
    return ModelRequest(
        input=items,
        system_instructions=instructions,
        model_settings=_settings(run, agent, state),
        output_schema=schema,
        previous_response_id=None if server.conversation_id else server.previous_response_id,
        conversation_id=server.conversation_id,
        prompt=await agent.get_prompt(run.context),
    )


def _settings(run: Live, agent: Agent[Any], state: State) -> ModelSettings:
    settings = agent.model_settings.resolve(run.config.model_settings)
    if agent.reset_tool_choice and settings.tool_choice is not None and state.tools_used.get(state.agent):
        # It was told to use a tool and it did; told so again, it would never come to an end.
        return replace(settings, tool_choice=None)
    return settings


def _model(run: Live, agent: Agent[Any]) -> Model:
    wanted: Any = run.config.model if run.config.model is not None else agent.model
    return run.config.model_provider.get_model(wanted) if wanted is None or isinstance(wanted, str) else wanted


async def _greet(run: Live, agent: Agent[Any]) -> None:
    if run.hooks is None and agent.hooks is None:
        return
    own = run.hook_context()
    if run.hooks is not None:
        await run.hooks.on_agent_start(own, agent)
    if agent.hooks is not None:
        await agent.hooks.on_start(own, agent)


def _watchers(run: Live, agent: Agent[Any]) -> list[Any]:
    return [watcher for watcher in (run.hooks, agent.hooks) if watcher is not None]


async def _ask(run: Live, agent: Agent[Any], model: Model, request: ModelRequest) -> ModelResponse:
    for watcher in _watchers(run, agent):
        await watcher.on_llm_start(run.context, agent, request.system_instructions, request.input)
    with asking_span(run, model, request) as span:
        if span is not None:
            request = replace(request, tracing=model_tracing(span))
        response = await ask(model, request, emit=None if run.emit is None else partial(_pass_on, run.emit))
        if span is not None:
            answered(span, response)
        return response


async def _pass_on(emit: Emit, event: TResponseStreamEvent) -> None:
    await emit(RawResponsesStreamEvent(event))


async def _guarded(
    run: Live, agent: Agent[Any], model: Model, request: ModelRequest
) -> tuple[ModelResponse, tuple[GuardrailRecord, ...]]:
    """The model's answer, when every input guardrail agreed: some before it is asked, the others beside it."""
    guards = [] if run.state.guarded else [*(run.config.input_guardrails or ()), *agent.input_guardrails]
    if not guards:
        return await _ask(run, agent, model, request), ()
    before = [guard for guard in guards if not guard.run_in_parallel]
    beside = [guard for guard in guards if guard.run_in_parallel]
    judged = judged_input(run.state)
    try:
        async with Scope() as scope:
            first = [scope.start(_judge(run, guard, agent, judged)) for guard in before]
        async with Scope() as scope:
            second = [scope.start(_judge(run, guard, agent, judged)) for guard in beside]
            response = await _ask(run, agent, model, request)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    results = [task.result() for task in (*first, *second)]
    return response, _recorded(run, results)


async def _judge(
    run: Live, guard: InputGuardrail[Any], agent: Agent[Any], judged: str | list[Item]
) -> InputGuardrailResult:
    with guarding_span(guard.get_name()) as span:
        result = await guard.run(agent, judged, run.context)
        if span is not None:
            span.span_data.triggered = result.output.tripwire_triggered
    if result.output.tripwire_triggered:
        run.tripped.append(result)
        raise InputGuardrailTripwireTriggered(result)
    return result


def judged_input(state: State) -> str | list[Item]:
    """What input guardrails look at: the input of the run, or what was said to it since."""
    staged: Sequence[Entry] = []
    if state.turn:
        staged = [entry for entry in state.transcript[state.responses[-1].stop :] if entry.kind == "input"]
    return [entry.item for entry in staged] or state.input


def _recorded(run: Live, results: list[InputGuardrailResult]) -> tuple[GuardrailRecord, ...]:
    start = len(run.state.guardrails)
    run.verdicts.update((start + index, result) for index, result in enumerate(results))
    return tuple(verdict_record(result, agent=run.state.agent) for result in results)


def _record(response: ModelResponse) -> ResponseRecord:
    return ResponseRecord(
        start=0,
        stop=0,
        usage=usage_record(response.usage),
        response_id=response.response_id,
        request_id=response.request_id,
        raw_usage=None if response.raw_usage is None else plain_value(response.raw_usage),
    )
