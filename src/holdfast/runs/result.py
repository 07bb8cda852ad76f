"""What a run came to."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from holdfast.agents.agent import Agent
from holdfast.agents.agent_tool import AgentToolInvocation
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.guardrails import (
    InputGuardrailResult,
    OutputGuardrailResult,
    ToolInputGuardrailResult,
    ToolOutputGuardrailResult,
)
from holdfast.base.items import Item
from holdfast.models.contract import ModelResponse
from holdfast.models.raw import readable
from holdfast.runs.finishing import read_output
from holdfast.runs.items import RunItem, ToolApprovalItem
from holdfast.runs.live import Live
from holdfast.runs.persistence import as_items
from holdfast.runs.usage import usage_of
from holdfast.runs.verdicts import verdict_of

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
    _run: Live = field(repr=False)
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
            return self._run.view.input(self._run.state)
        return [*as_items(self.input), *(item.to_input_item() for item in self.new_items)]

    def to_state(self) -> Any:
        """A state to save, to decide about and to resume from. It is independent of this result."""
        from holdfast.runs.run_state import RunState

        return RunState.of(self._run)

    def release_agents(self, *, release_new_items: bool = True) -> None:
        """Let the items go of their agents, for results that are kept for long."""
        if release_new_items:
            for item in self.new_items:
                item.release_agent()


@dataclass(eq=False)
class RunResult(RunResultBase):
    """What a run came to: a final output, or ``interruptions`` that a person has to decide about."""

    @classmethod
    def of(cls, run: Live) -> "RunResult":
        return cls(**shown(run))


def shown(run: Live) -> dict[str, Any]:
    """Everything that a result shows of a run."""
    return {
        "input": first_input(run),
        "new_items": run.items(),
        "raw_responses": responses_of(run),
        "final_output": final_output(run),
        "input_guardrail_results": verdicts_of(run, "input"),
        "output_guardrail_results": verdicts_of(run, "output"),
        "tool_input_guardrail_results": verdicts_of(run, "tool_input"),
        "tool_output_guardrail_results": verdicts_of(run, "tool_output"),
        "context_wrapper": run.context,
        "_run": run,
        "max_turns": run.state.max_turns,
        "interruptions": run.interruptions(),
    }


def first_input(run: Live) -> str | list[Item]:
    """The input as the first model was shown it: behind what the session held, where that can still be told."""
    given = [entry.item for entry in run.state.transcript if entry.kind == "given"]
    return [*run.view.history, *given] if run.view.history and not run.view.mixed else run.state.input


def final_output(run: Live) -> Any:
    """The final output as the value it is; a run that was loaded reads it again."""
    answer = run.state.answer
    if answer is None or not answer.settled:
        return None
    if run.final_output is None and answer.text is not None:
        run.final_output = read_output(run.current_agent, answer.text)
    return answer.value if run.final_output is None else run.final_output


def responses_of(run: Live) -> list[ModelResponse]:
    """What the models answered, one by one."""
    found = []
    for record in run.state.responses:
        output = [
            run.raws[place] if place in run.raws else readable(run.state.transcript[place].item)
            for place in range(record.start, record.stop)
        ]
        found.append(
            ModelResponse(output, usage_of(record.usage), record.response_id, record.request_id, record.raw_usage)
        )
    return found


def verdicts_of(run: Live, kind: str) -> list[Any]:
    """What the guardrails of a kind said."""
    found = [
        run.verdicts[index] if index in run.verdicts else verdict_of(record, run.agent(record.agent))
        for index, record in enumerate(run.state.guardrails)
        if record.kind == kind
    ]
    return found + run.tripped if kind == "input" else found
