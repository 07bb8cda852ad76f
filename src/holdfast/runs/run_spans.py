"""The spans of a run: itself, its agents one after the other, and their turns."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from msgspec.structs import replace

from holdfast.agents.agent import Agent
from holdfast.runs.live import Live
from holdfast.runs.state import InSession, OnServer
from holdfast.runs.steps import AskModel, Step
from holdfast.runs.usage import counted
from holdfast.toolcalls.output import plain_value
from holdfast.tracing.genai import trace_attributes
from holdfast.tracing.processors import somebody_listens
from holdfast.tracing.providing import new_span, new_trace
from holdfast.tracing.span_data import AgentSpanData, TaskSpanData, TurnSpanData
from holdfast.tracing.spans import Span, Trace, get_current_trace, here

CARRIED = ("traceparent", "tracestate")


class NoSpans:
    """A run that nobody watches."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        return

    def follow(self, step: Step) -> None:
        """The run is about to take a step."""


UNWATCHED = NoSpans()


def spans_of(run: Live) -> NoSpans:
    """What watches a run while it is driven. A run that may not be traced hides what happens inside of it."""
    if run.config.tracing_disabled:
        return HiddenSpans()
    if run.route or get_current_trace() is not None:
        return UNWATCHED if here() is None else RunSpans(run)
    return RunSpans(run) if somebody_listens() else UNWATCHED


class HiddenSpans(NoSpans):
    """Nothing inside is recorded, whatever is outside."""

    def __init__(self) -> None:
        self._trace = Trace(recorded=False)

    def __enter__(self) -> Self:
        self._trace.start(mark_as_current=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._trace.finish(reset_current=True)


class RunSpans(NoSpans):
    """Opens and closes the spans as the run goes from agent to agent and from turn to turn.

    A nested run has no span but those of its agents: the call it answers is what they are inside of.
    """

    def __init__(self, run: Live) -> None:
        self._run = run
        self._outer, self._agent, self._turn = ExitStack(), ExitStack(), ExitStack()
        self._at: tuple[str | None, int] = (None, 0)
        self._task: Span[TaskSpanData] | None = None
        self._turn_data: TurnSpanData | None = None

    def __enter__(self) -> Self:
        try:
            if not self._run.route:
                self._begin_task()
        except BaseException:
            self._outer.close()
            raise
        return self

    def follow(self, step: Step) -> None:
        state = self._run.state
        agent, turn = state.agent, state.turn + isinstance(step, AskModel)
        if (agent, turn) == self._at:
            return
        before, self._at = self._at, (agent, turn)
        self._leave_turn()
        if agent != before[0]:
            self._agent.close()
            self._agent.enter_context(self._agent_span(self._run.current_agent))
        if turn:
            self._turn_data = TurnSpanData(turn, self._run.current_agent.name)
            self._turn.enter_context(new_span(self._turn_data))

    def __exit__(self, *error: Any) -> None:
        if self._task is not None:
            self._task.span_data.usage = counted(self._run.context.usage)
        self._leave_turn(*error)
        self._agent.__exit__(*error)
        self._outer.__exit__(*error)

    def _leave_turn(self, *error: Any) -> None:
        state, data = self._run.state, self._turn_data
        if data is not None and data.turn == state.turn:
            usage = state.responses[-1].usage
            data.usage = {"input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.total}
        self._turn.__exit__(*(error or (None, None, None)))

    def _begin_task(self) -> None:
        run, config = self._run, self._run.config
        saved = run.state.trace or {}
        carrier = {name: saved[name] for name in CARRIED if isinstance(saved.get(name), str)} or None
        trace, own = get_current_trace(), False
        if trace is None:
            trace, own = self._outer.enter_context(_trace(run, saved)), True
        self._task = self._outer.enter_context(
            new_span(
                TaskSpanData(config.workflow_name),
                contents=config.trace_include_sensitive_data,
                attributes=self._attributes(trace if own else None),
                continues=carrier if own else None,
                links=None if own else carrier,
            )
        )
        if carrier is None or not own:
            carrier = {} if self._task.mirror is None else self._task.mirror.carrier()
        run.state = replace(run.state, trace={**plain_value(trace.to_json()), **carrier})

    def _agent_span(self, agent: Agent[Any]) -> Span[AgentSpanData]:
        data = AgentSpanData(
            agent.name,
            handoffs=[way.name if isinstance(way, Agent) else way.agent_name for way in agent.handoffs],
            tools=[tool.name for tool in agent.tools],
            output_type=None if agent.output_type is None else getattr(agent.output_type, "__name__", "object"),
        )
        return new_span(data, contents=self._run.config.trace_include_sensitive_data, attributes=self._attributes(None))

    def _attributes(self, trace: Trace | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if trace is not None:
            found.update(trace_attributes(trace))
        found["holdfast.run.id"] = self._run.state.run_id
        conversation = conversation_id(self._run)
        if conversation is not None:
            found["gen_ai.conversation.id"] = conversation
        return found


def conversation_id(run: Live) -> str | None:
    """The conversation that the run is a part of: the program's group, the provider's id, or the session's."""
    trace = get_current_trace()
    group = run.config.group_id if trace is None or trace.group_id is None else trace.group_id
    if group is not None:
        return group
    kept = run.state.conversation
    if isinstance(kept, OnServer) and kept.conversation_id is not None:
        return kept.conversation_id
    if isinstance(kept, InSession):
        return kept.session_id
    return getattr(run.session, "session_id", None)


def _trace(run: Live, saved: Mapping[str, Any]) -> Trace:
    config = run.config
    trace = new_trace(
        config.workflow_name,
        trace_id=config.trace_id,
        group_id=config.group_id,
        metadata=config.trace_metadata,
        tracing=config.tracing,
    )
    trace.go_on(saved)
    return trace
