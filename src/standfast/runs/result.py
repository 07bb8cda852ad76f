"""What a run came to."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from standfast.agents.agent import Agent
from standfast.agents.agent_tool import AgentToolInvocation
from standfast.agents.context import RunContextWrapper
from standfast.agents.guardrails import (
    InputGuardrailResult,
    OutputGuardrailResult,
    ToolInputGuardrailResult,
    ToolOutputGuardrailResult,
)
from standfast.agents.output import as_output_schema
from standfast.base.items import Item
from standfast.models.attribute_items import wrap_attributes
from standfast.models.interface import ModelResponse
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.conversion import from_usage_record, restore_guardrail_result
from standfast.runs.items import RunItem, ToolApprovalItem
from standfast.runs.run_state import RunState
from standfast.runs.session_io import as_items

T = TypeVar("T")
ToInputListMode: TypeAlias = Literal["preserve_all", "normalized"]


@dataclass(eq=False)
class RunResultBase:
    """What a run has to show. ``input`` is what its first agent's model was shown first."""

    input: str | list[Item]
    new_items: list[RunItem]
    raw_responses: list[ModelResponse]
    final_output: Any
    input_guardrail_results: list[InputGuardrailResult]
    output_guardrail_results: list[OutputGuardrailResult]
    tool_input_guardrail_results: list[ToolInputGuardrailResult]
    tool_output_guardrail_results: list[ToolOutputGuardrailResult]
    context_wrapper: RunContextWrapper[Any]
    _run: ActiveRun = field(repr=False)
    max_turns: int | None = 10
    interruptions: list[ToolApprovalItem] = field(default_factory=list)

    @property
    def last_agent(self) -> Agent[Any]:
        """The agent that was at work last."""
        return self._run.current_agent

    @property
    def last_response_id(self) -> str | None:
        return self.raw_responses[-1].response_id if self.raw_responses else None

    @property
    def agent_tool_invocation(self) -> AgentToolInvocation | None:
        """Which call of an outer run this run answers, if it is a nested one."""
        found: AgentToolInvocation | None = self._run.invocation
        return found

    def final_output_as(self, cls: type[T], raise_if_incorrect_type: bool = False) -> T:
        """The final output for a type checker; ``raise_if_incorrect_type`` makes sure of it."""
        if raise_if_incorrect_type and not isinstance(self.final_output, cls):
            raise TypeError(f"Final output is not of type {cls.__name__}")
        found: T = self.final_output
        return found

    def to_input_list(self, *, mode: ToInputListMode = "preserve_all") -> list[Item]:
        """The conversation as input for a next run: everything, or as the last agent's model was shown it."""
        if mode == "normalized":
            return self._run.model_input.build_input(self._run.state)
        return [*as_items(self.input), *(item.to_input_item() for item in self.new_items)]

    def to_state(self) -> RunState[Any, Any]:
        """Return a state to save, to decide about and to resume from. It is independent of this result."""
        return RunState.from_run(self._run)

    def release_agents(self, *, release_new_items: bool = True) -> None:
        """Let the items go of their agents, for results that are kept for long."""
        if release_new_items:
            for item in self.new_items:
                item.release_agent()


@dataclass(eq=False)
class RunResult(RunResultBase):
    """What a run came to: a final output, or ``interruptions`` that a person has to decide about."""

    @classmethod
    def from_run(cls, run: ActiveRun) -> "RunResult":
        return cls(**collect_result_fields(run))


def collect_result_fields(run: ActiveRun) -> dict[str, Any]:
    """Everything that a result shows of a run."""
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
    """The input as the first model was shown it: behind what the session held, where that can still be told."""
    given = [entry.item for entry in run.state.transcript if entry.kind == "given"]
    return (
        [*run.model_input.history, *given] if run.model_input.history and not run.model_input.mixed else run.state.input
    )


def get_final_output(run: ActiveRun) -> Any:
    """The final output as the value it is; a run that was loaded reads it again."""
    answer = run.state.answer
    if answer is None or not answer.settled:
        return None
    if run.final_output is None and answer.text is not None:
        run.final_output = parse_output(run.current_agent, answer.text)
    return answer.value if run.final_output is None else run.final_output


def parse_output(agent: Agent[Any], text: str) -> Any:
    """Return the value in the text of a final output, by the agent's output type."""
    schema = as_output_schema(agent.output_type)
    return text if schema is None or schema.is_plain_text() else schema.validate_json(text)


def get_responses(run: ActiveRun) -> list[ModelResponse]:
    """What the models answered, one by one."""
    found = []
    for record in run.state.responses:
        output = [
            run.raw_items[place] if place in run.raw_items else wrap_attributes(run.state.transcript[place].item)
            for place in range(record.start, record.stop)
        ]
        found.append(
            ModelResponse(
                output, from_usage_record(record.usage), record.response_id, record.request_id, record.raw_usage
            )
        )
    return found


def get_guardrail_results(run: ActiveRun, kind: str) -> list[Any]:
    """What the guardrails of a kind said."""
    found = [
        run.guardrail_results[index]
        if index in run.guardrail_results
        else restore_guardrail_result(record, run.get_agent(record.agent))
        for index, record in enumerate(run.state.guardrails)
        if record.kind == kind
    ]
    return found + run.tripped_results if kind == "input" else found
