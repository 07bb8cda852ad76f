"""The result of a run."""

from dataclasses import dataclass, field
from textwrap import indent
from typing import Any, Literal, TypeAlias, TypeVar

from standfast.agents.agent import Agent
from standfast.agents.agent_tool import AgentToolInvocation
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.agents.guardrails import (
    InputGuardrailResult,
    OutputGuardrailResult,
    ToolInputGuardrailResult,
    ToolOutputGuardrailResult,
)
from standfast.agents.output import as_output_schema
from standfast.base.items import Item
from standfast.models.interface import ModelResponse, wrap_attributes
from standfast.runs._loop.model_input import strip_reasoning_id
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.conversion import from_usage_record, restore_guardrail_result
from standfast.runs.core.state import SessionConversation
from standfast.runs.items import RunItem, ToolApprovalItem
from standfast.runs.run_state import RunState
from standfast.runs.session_io import as_items

T = TypeVar("T")
ToInputListMode: TypeAlias = Literal["preserve_all", "normalized"]


def describe_result(result: Any, *, streamed: bool = False) -> str:
    """Return what ``print`` shows of a result: the agent, the final output, and how many items there are."""
    output, name = result.final_output, type(result).__name__
    agent = f'Agent(name="{result.last_agent.name}", ...)'
    shown = output.model_dump_json(indent=2) if hasattr(output, "model_dump_json") else str(output)
    progress = ("current_turn", "max_turns", "is_complete") if streamed else ()
    counted = ("new_items", "raw_responses", "input_guardrail_results", "output_guardrail_results")
    lines = [
        f"{name}:",
        f"- {'Current' if streamed else 'Last'} agent: {agent}",
        *(f"- {each.capitalize().replace('_', ' ')}: {getattr(result, each)}" for each in progress),
        f"- Final output ({type(output).__name__}):",
        indent(shown, "    "),
        *(f"- {len(getattr(result, each))} {each[:-1].replace('_', ' ')}(s)" for each in counted),
        f"(See `{name}` for more details)",
    ]
    return "\n".join(lines)


@dataclass(eq=False)
class RunResultBase:
    """The common part of results. A program may make one itself, for its tests; such a result has no state.

    ``input`` is the input that the first model received, or what a handoff with a filter made of it.
    """

    input: str | list[Item]
    new_items: list[RunItem]
    raw_responses: list[ModelResponse]
    final_output: Any
    input_guardrail_results: list[InputGuardrailResult]
    output_guardrail_results: list[OutputGuardrailResult]
    tool_input_guardrail_results: list[ToolInputGuardrailResult]
    tool_output_guardrail_results: list[ToolOutputGuardrailResult]
    context_wrapper: RunContextWrapper[Any]
    _run: ActiveRun | None = field(default=None, repr=False)
    max_turns: int | None = 10
    interruptions: list[ToolApprovalItem] = field(default_factory=list)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let a pydantic model have a result as a field: it is checked by its type only."""
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)

    @property
    def last_agent(self) -> Agent[Any]:
        """The agent that was active last."""
        return self._require_run().current_agent

    def _require_run(self) -> ActiveRun:
        if self._run is None:
            raise UserError("this result was made by hand: it has no run")
        return self._run

    @property
    def last_response_id(self) -> str | None:
        """The id of the last response, or None."""
        return self.raw_responses[-1].response_id if self.raw_responses else None

    @property
    def agent_tool_invocation(self) -> AgentToolInvocation | None:
        """The call of the outer run that this run answers, if it is a nested run."""
        invocation: AgentToolInvocation | None = None if self._run is None else self._run.invocation
        return invocation

    def __str__(self) -> str:
        return describe_result(self)

    def final_output_as(self, cls: type[T], raise_if_incorrect_type: bool = False) -> T:
        """Return the final output, typed as ``cls``; it is checked only with ``raise_if_incorrect_type``."""
        if raise_if_incorrect_type and not isinstance(self.final_output, cls):
            raise TypeError(f"Final output is not of type {cls.__name__}")
        output: T = self.final_output
        return output

    def to_input_list(self, *, mode: ToInputListMode = "preserve_all") -> list[Item]:
        """Return the conversation as input for another run: all of it, or what the last agent's model was shown."""
        run = self._run
        if run is None:
            own = [item.to_input_item() for item in self.new_items if item.type != "tool_approval_item"]
            return [*as_items(self.input), *own]
        if mode == "normalized":
            return run.model_input.build_input(run.state)
        policy, shown = run.state.reasoning_item_id_policy, get_items_in_input(run)
        new = [item for item in self.new_items if item.type != "tool_approval_item" and item not in shown]
        return [*as_items(self.input), *(strip_reasoning_id(item.to_input_item(), policy) for item in new)]

    def to_state(self) -> RunState[Any, Any]:
        """Return a state to save, to decide about and to resume from. It is independent of this result."""
        return RunState.from_run(self._require_run())

    def release_agents(self, *, release_new_items: bool = True) -> None:
        """Keep only weak references of the items to their agents, for results that are kept for long."""
        if release_new_items:
            for item in self.new_items:
                item.release_agent()


@dataclass(eq=False)
class RunResult(RunResultBase):
    """The result of a run: a final output, or ``interruptions`` that wait for approval."""

    _last_agent: Agent[Any] | None = field(default=None, repr=False, kw_only=True)

    @property
    def last_agent(self) -> Agent[Any]:
        """The agent that was active last."""
        return super().last_agent if self._last_agent is None else self._last_agent

    @classmethod
    def from_run(cls, run: ActiveRun) -> "RunResult":
        """Return the result of a run as it is now."""
        return cls(**collect_result_fields(run))


def collect_result_fields(run: ActiveRun) -> dict[str, Any]:
    """Return the fields of a result."""
    return {
        "input": get_first_input(run),
        "new_items": run.get_items(),
        "raw_responses": get_responses(run),
        "final_output": get_final_output(run),
        "input_guardrail_results": get_guardrail_results(run, "input"),
        "output_guardrail_results": get_guardrail_results(run, "output"),
        "tool_input_guardrail_results": get_guardrail_results(run, "tool_input"),
        "tool_output_guardrail_results": get_guardrail_results(run, "tool_output"),
        "context_wrapper": run.context,
        "_run": run,
        "max_turns": run.state.max_turns,
        "interruptions": run.get_interruptions(),
    }


def get_first_input(run: ActiveRun) -> str | list[Item]:
    """Return the input as the first model received it: after the session's history, if that is still known.

    In a session it is a list of items. With a ``session_input_callback`` it is what that returned, after a handoff
    with a filter what the filter left.
    """
    in_session = isinstance(run.state.conversation, SessionConversation)
    chosen = _get_chosen_input(run)
    if chosen is not None:
        handed_over = run.state.view is not None and run.state.view.input_length is not None
        unchanged = handed_over and isinstance(run.state.input, str) and chosen == as_items(run.state.input)
        return run.state.input if unchanged and not in_session else chosen
    if not run.model_input.history or run.model_input.history_contains_own_items:
        return as_items(run.state.input) if in_session else run.state.input
    return [*run.model_input.history, *(entry.item for entry in run.state.transcript if entry.kind == "given")]


def _get_chosen_input(run: ActiveRun) -> list[Item] | None:
    """Return the input that a callback or a handoff filter chose."""
    view, state = run.state.view, run.state
    if view is None or run.model_input.needs_history(state):
        return None
    if run.model_input.history_changed(state):
        return None
    parts = view.shown[: view.input_length]
    return [run.model_input.get_item(state, part) if isinstance(part, int) else part for part in parts]


def get_items_in_input(run: ActiveRun) -> list[RunItem]:
    """Return the items of the run that a handoff filter made part of the input."""
    view, before = run.state.view, len(run.model_input.history)
    if view is None or view.input_length is None or _get_chosen_input(run) is None:
        return []
    parts = [part - before for part in view.shown[: view.input_length] if isinstance(part, int) and part >= before]
    return [run.get_item(place) for place in parts if run.state.transcript[place].kind != "given"]


def get_final_output(run: ActiveRun) -> Any:
    """Return the final output as a value; that of a loaded run is parsed again."""
    answer = run.state.answer
    if answer is None or not answer.accepted:
        return None
    if run.final_output is None and answer.text is not None:
        run.final_output = parse_output(run.current_agent, answer.text)
    return answer.value if run.final_output is None else run.final_output


def parse_output(agent: Agent[Any], text: str) -> Any:
    """Return the value in the text of a final output, by the agent's output type."""
    schema = as_output_schema(agent.output_type)
    return text if schema is None or schema.is_plain_text() else schema.validate_json(text)


def get_responses(run: ActiveRun) -> list[ModelResponse]:
    """Return the model responses in order."""
    responses = []
    for record in run.state.responses:
        output = [
            run.raw_items[place] if place in run.raw_items else wrap_attributes(run.state.transcript[place].item)
            for place in range(record.start, record.stop)
        ]
        responses.append(
            ModelResponse(
                output, from_usage_record(record.usage), record.response_id, record.request_id, record.raw_usage
            )
        )
    return responses


def get_guardrail_results(run: ActiveRun, kind: str) -> list[Any]:
    """Return the results of the guardrails of one kind."""
    results = [
        run.guardrail_results[index]
        if index in run.guardrail_results
        else restore_guardrail_result(record, run.get_agent(record.agent))
        for index, record in enumerate(run.state.guardrails)
        if record.kind == kind
    ]
    return results + run.unrecorded_results if kind == "input" else results
