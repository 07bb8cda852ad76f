"""The program's handlers for errors that would end a run, and the run data attached to every error of a run."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypedDict

from standfast.agents.agent import Agent
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import MaxTurnsExceeded, ModelBehaviorError, ModelRefusalError, RunErrorDetails, UserError
from standfast.agents.output import as_output_schema
from standfast.agents.tools import ToolErrorFormatterArgs
from standfast.agents.types import TContext, maybe_await
from standfast.base.items import Item
from standfast.models.interface import ModelResponse
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.state import CallRecord, FinalOutput, TranscriptEntry
from standfast.runs.items import RunItem
from standfast.runs.result import get_guardrail_results, get_responses
from standfast.runs.run_state import RunState
from standfast.runs.session_io import as_items
from standfast.tool_calls.output import format_output, to_plain_value


@dataclass
class RunErrorData:
    """The run at the time of an error; ``history`` is its input followed by ``output``."""

    input: str | list[Item]
    new_items: list[RunItem]
    history: list[Item]
    output: list[Item]
    raw_responses: list[ModelResponse]
    last_agent: Agent[Any]


@dataclass
class RunErrorHandlerInput(Generic[TContext]):
    """What a handler gets: the error, the context, and the run so far."""

    error: MaxTurnsExceeded | ModelRefusalError | ModelBehaviorError
    context: RunContextWrapper[TContext]
    run_data: RunErrorData


@dataclass
class RunErrorHandlerResult:
    """The final output to use instead of raising; ``include_in_history`` adds it to the conversation as a message."""

    final_output: Any
    include_in_history: bool = True


RunErrorHandler: TypeAlias = Callable[
    [RunErrorHandlerInput[Any]], Awaitable[RunErrorHandlerResult | Any | None] | RunErrorHandlerResult | Any | None
]


class RunErrorHandlers(TypedDict, Generic[TContext], total=False):
    """Handlers by kind of error. If a handler returns ``None``, the error is raised."""

    max_turns: RunErrorHandler
    model_refusal: RunErrorHandler
    invalid_final_output: RunErrorHandler


HANDLER_NAMES = ("max_turns", "model_refusal", "invalid_final_output")


def validate_handlers(handlers: Any) -> Mapping[str, RunErrorHandler]:
    """Return the handlers, or raise :class:`UserError` for an unknown kind of error."""
    unknown = set(handlers or ()) - set(HANDLER_NAMES)
    if unknown:
        raise UserError(f"unknown error handler {', '.join(sorted(unknown))}; expected {', '.join(HANDLER_NAMES)}")
    return handlers or {}


@dataclass(frozen=True)
class HandlerOutcome:
    """The final output returned by a handler, and the message that adds it to the conversation."""

    value: Any
    answer: FinalOutput
    entries: tuple[TranscriptEntry, ...]


async def call_error_handler(run: ActiveRun, kind: str, error: Any) -> HandlerOutcome | None:
    """Return the result of the program's handler, or ``None`` if there is no handler or it returned ``None``."""
    handler = run.error_handlers.get(kind)
    if handler is None:
        return None
    result = await maybe_await(handler(RunErrorHandlerInput(error, run.context, _make_error_data(run))))
    if result is None:
        return None
    fields = {"final_output", "include_in_history"}
    if isinstance(result, Mapping) and "final_output" in result and set(result) <= fields:
        result = RunErrorHandlerResult(**result)
    if not isinstance(result, RunErrorHandlerResult):
        result = RunErrorHandlerResult(result)
    value, text = _validate_output(run, result.final_output)
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
    entry = TranscriptEntry(message, "message", agent=run.state.agent)
    entries = (entry,) if result.include_in_history else ()
    return HandlerOutcome(value, FinalOutput(value=to_plain_value(value), accepted=True), entries)


def _validate_output(run: ActiveRun, value: Any) -> tuple[Any, str]:
    schema = as_output_schema(run.current_agent.output_type)
    if schema is None or schema.is_plain_text():
        return value, value if isinstance(value, str) else str(format_output(value))
    from pydantic import TypeAdapter

    kind: Any = getattr(schema, "output_type", None) or type(value)
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        valid = adapter.validate_python(value)
        text = adapter.dump_json(valid).decode()
        return valid, f'{{"response":{text}}}' if getattr(schema, "is_wrapped", False) else text
    except ValueError as error:
        raise UserError(f"the error handler's final output does not fit {schema.name()}: {error}") from error


def _make_error_data(run: ActiveRun) -> RunErrorData:
    output = [entry.item for entry in run.state.transcript if entry.kind != "given"]
    return RunErrorData(
        run.state.input,
        run.get_items(),
        [*as_items(run.state.input), *output],
        output,
        get_responses(run),
        run.current_agent,
    )


async def format_tool_error(
    run: ActiveRun, kind: Literal["approval_rejected", "tool_not_found"], call: CallRecord, default: str
) -> str:
    """Return the message of the program's formatter for a call that was not made, or the default."""
    formatter = run.config.tool_error_formatter
    if formatter is None:
        return default
    args = ToolErrorFormatterArgs(kind, "function", call.tool.name, call.id, default, run.context)
    return await maybe_await(formatter(args)) or default


def attach_run_data(run: ActiveRun, error: BaseException) -> None:
    """Set ``run_data`` on any exception: what the run did, and a state to resume it from."""
    details = RunErrorDetails(
        input=run.state.input,
        new_items=run.get_items(),
        raw_responses=get_responses(run),
        last_agent=run.current_agent,
        context_wrapper=run.context,
        input_guardrail_results=get_guardrail_results(run, "input"),
        output_guardrail_results=get_guardrail_results(run, "output"),
        tool_input_guardrail_results=get_guardrail_results(run, "tool_input"),
        tool_output_guardrail_results=get_guardrail_results(run, "tool_output"),
        state=RunState.from_run(run),
    )
    vars(error)["run_data"] = details  # setattr fails for exceptions that are frozen dataclasses
