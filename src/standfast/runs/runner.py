"""The Runner, and the result of a streamed run with its events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.context import RunContextWrapper, RunHooksBase
from standfast.agents.errors import EventLoopRunning, InvalidDeclaration
from standfast.agents.graph import AgentGraph
from standfast.base.errors import Closed
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.base.validation import is_integer
from standfast.history.session import Session
from standfast.lifecycle.channel import Channel
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig, RunOptions
from standfast.runs.core.state import State, check_session, make_conversation
from standfast.runs.driver import drive
from standfast.runs.error_handlers import validate_handlers
from standfast.runs.items import StreamEvent
from standfast.runs.result import RunResult, RunResultBase, collect_result_fields, describe_result
from standfast.runs.run_state import RunState
from standfast.runs.session_io import store_made_calls, validate_input

MAX_BUFFERED_EVENTS = 1024
"""How many events a run may be ahead of its reader before it waits."""


class _RunAttribute:
    """An attribute that is read from the run while there is one, and otherwise is what it was set to."""

    def __init__(self, read: Callable[[ActiveRun], Any]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, result: "RunResultStreaming | None", owner: type) -> Any:
        if result is None:
            return None  # the default of the field
        return result.__dict__.get(self._name) if result._run is None else self._read(result._run)

    def __set__(self, result: "RunResultStreaming", value: Any) -> None:
        result.__dict__[self._name] = value


@dataclass(eq=False)
class RunResultStreaming(RunResultBase):
    """A running run. ``current_agent`` and ``current_turn`` are always up to date; the other fields are set at its end.

    While the events are read, the next turn starts when the reader has handled those of this turn. Leaving the
    iteration early cancels the run. A cancelled run can be resumed from ``to_state()``. ``run_loop_task`` ends with the
    run and raises its error.
    """

    current_agent: Any = _RunAttribute(lambda run: run.current_agent)
    current_turn: Any = _RunAttribute(lambda run: run.state.turn)  # the number of model responses so far
    trace: Any = None
    _current_agent_output_schema: Any = field(default=None, repr=False)
    is_complete: bool = False
    run_loop_task: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    _channel: Channel[StreamEvent] = field(default_factory=lambda: Channel(MAX_BUFFERED_EVENTS), repr=False)
    _error: BaseException | None = field(default=None, repr=False)
    _cancelled: bool = False
    _readers: int = 0
    _caught_up: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @classmethod
    def start(cls, run: ActiveRun) -> "RunResultStreaming":
        """Start the run in its own task."""
        result = cls(**collect_result_fields(run))
        run.emit, run.catch_up = result._emit, result._catch_up
        result.run_loop_task = asyncio.create_task(result._drive(), name=f"run {run.state.run_id}")
        result.run_loop_task.add_done_callback(result._mark_complete)
        return result

    def __post_init__(self) -> None:
        if self.is_complete:
            self._channel.close()

    @property
    def last_agent(self) -> Agent[Any]:
        """The agent that is active, or was last."""
        agent: Agent[Any] = self.current_agent
        return agent

    @property
    def run_loop_exception(self) -> BaseException | None:
        """The exception that ended the run, if it failed."""
        return self._error

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield every event in order, then raise the run's error, if any. The run has ended when the iteration ends.

        After :meth:`cancel` nothing more is yielded or raised.
        """
        self._readers += 1
        try:
            while not self._cancelled:
                if not self._channel.size:
                    self._caught_up.set()
                try:
                    event = await self._channel.receive()
                except Closed:
                    break
                self._caught_up.clear()
                yield event
        finally:
            self._readers -= 1
            self._caught_up.set()
            if not self.is_complete:
                self.cancel()
            await self._wait_ended()
        if self._error is not None and not self._cancelled:
            raise self._error

    def __str__(self) -> str:
        return describe_result(self, streamed=True)

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """Stop the run: now, or when the current turn is complete and stored. It can be resumed from ``to_state()``.

        After ``"immediate"`` no further event is delivered, and no tool call that the model requested is started.
        """
        if mode == "after_turn":
            if self._run is not None:
                self._run.stop_after_turn = True
            return
        if mode != "immediate":
            raise ValueError(f"mode must be 'immediate' or 'after_turn', not {mode!r}")
        self._cancelled = True
        self._channel.close()
        self._channel.discard_items()
        if self.run_loop_task is not None:
            self.run_loop_task.cancel()

    def ensure_sandbox_cleanup_on_completion(self) -> None:
        """Do nothing: a run closes its sandbox by itself."""

    async def _emit(self, event: StreamEvent) -> None:
        try:
            await self._channel.send(event)
        except Closed:
            # The reader has left and the task is being cancelled; what it does until then is still recorded.
            return

    async def _catch_up(self, wait: bool) -> None:
        """Give the reader a chance to handle the events so far and to cancel, or wait until it has handled them."""
        if self._readers and not self._caught_up.is_set() and wait:
            await self._caught_up.wait()
        elif self._readers:
            await asyncio.sleep(0)

    async def _drive(self) -> None:
        run = self._require_run()
        try:
            await drive(run)
        except asyncio.CancelledError as error:
            if not self._cancelled:
                self._error = error
                raise
            await store_made_calls(run)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.is_complete = True
            for name, value in collect_result_fields(run).items():
                setattr(self, name, value)
            self._channel.close()

    def _mark_complete(self, task: "asyncio.Task[Any]") -> None:
        self.is_complete = True  # a task that is cancelled before it starts never runs _drive
        if not task.cancelled():
            task.exception()  # marks it as retrieved: it is raised to the reader of the events

    async def _wait_ended(self) -> None:
        if self.run_loop_task is not None and not self.run_loop_task.done():
            await asyncio.wait({self.run_loop_task})


class AgentRunner:
    """What :class:`Runner` calls. A program may set its own with :func:`set_default_agent_runner`."""

    async def run(
        self,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        **kwargs: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """Run an agent to its end, or until it waits for approval; see :meth:`Runner.run`."""
        run = prepare_run(starting_agent, input, **kwargs)
        await drive(run)
        return RunResult.from_run(run)

    def run_sync(
        self,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        **kwargs: Unpack[RunOptions[Any]],
    ) -> RunResult:
        """Run an agent in a program without an event loop; see :meth:`Runner.run_sync`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(starting_agent, input, **kwargs))
        raise EventLoopRunning("run_sync cannot be called while an event loop is running: await Runner.run instead")

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        **kwargs: Unpack[RunOptions[Any]],
    ) -> RunResultStreaming:
        """Start a run whose events can be read while it lasts; see :meth:`Runner.run_streamed`."""
        return RunResultStreaming.start(prepare_run(starting_agent, input, **kwargs))


_default_runner = AgentRunner()
_runner: AgentRunner | None = None


def get_default_agent_runner() -> AgentRunner:
    """Return the runner that :class:`Runner` calls."""
    return _default_runner if _runner is None else _runner


def set_default_agent_runner(runner: AgentRunner | None) -> None:
    """Let :class:`Runner` call ``runner``; ``None`` restores the default."""
    global _runner
    _runner = runner


class Runner:
    """Runs agents until they have a final output or need an approval.

    A :class:`RunState` in place of the input resumes that run, with its own turns, conversation and decisions.
    """

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooksBase[Any, Any] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        error_handlers: Any = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
    ) -> RunResult:
        """Run until there is a final output, or until a person has to decide about a call.

        Every exception raised here has ``run_data.state``, from which the run can be resumed.
        """
        return await get_default_agent_runner().run(
            starting_agent,
            input,
            context=context,
            max_turns=max_turns,
            hooks=hooks,
            run_config=run_config,
            error_handlers=error_handlers,
            previous_response_id=previous_response_id,
            auto_previous_response_id=auto_previous_response_id,
            conversation_id=conversation_id,
            session=session,
        )

    @classmethod
    def run_sync(
        cls,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooksBase[Any, Any] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        error_handlers: Any = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
    ) -> RunResult:
        """Do the same as :meth:`run`, for programs without an event loop."""
        return get_default_agent_runner().run_sync(
            starting_agent,
            input,
            context=context,
            max_turns=max_turns,
            hooks=hooks,
            run_config=run_config,
            error_handlers=error_handlers,
            previous_response_id=previous_response_id,
            auto_previous_response_id=auto_previous_response_id,
            conversation_id=conversation_id,
            session=session,
        )

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooksBase[Any, Any] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
        *,
        error_handlers: Any = None,
    ) -> RunResultStreaming:
        """Start a run and return at once; read its events with :meth:`RunResultStreaming.stream_events`."""
        return get_default_agent_runner().run_streamed(
            starting_agent,
            input,
            context=context,
            max_turns=max_turns,
            hooks=hooks,
            run_config=run_config,
            error_handlers=error_handlers,
            previous_response_id=previous_response_id,
            auto_previous_response_id=auto_previous_response_id,
            conversation_id=conversation_id,
            session=session,
        )


def prepare_run(
    agent: Agent[Any],
    input: str | list[Item] | RunState[Any, Any],
    *,
    context: Any = None,
    max_turns: int | None = DEFAULT_MAX_TURNS,
    hooks: RunHooksBase[Any, Any] | None = None,
    run_config: RunConfig | dict[str, Any] | None = None,
    error_handlers: Any = None,
    previous_response_id: str | None = None,
    auto_previous_response_id: bool = False,
    conversation_id: str | None = None,
    session: Session | None = None,
) -> ActiveRun:
    """Return a run that is ready for the driver; invalid arguments raise a typed error."""
    if not isinstance(agent, Agent):
        raise InvalidDeclaration("Runner", f"the starting agent must be an Agent, not {type(agent).__name__}")
    config = RunConfig.coerce(run_config)
    if isinstance(input, RunState):
        run = _prepare_resumed_run(agent, input, config, context)
    else:
        if max_turns is not None and not is_integer(max_turns):
            raise InvalidDeclaration("Runner", f"max_turns must be an integer or None, not {max_turns!r}")
        state = State(
            run_id=new_id("run"),
            input=validate_input(input),
            max_turns=max_turns,
            conversation=make_conversation(conversation_id, previous_response_id, auto_previous_response_id),
            reasoning_item_id_policy=config.reasoning_item_id_policy,
        )
        wrapper = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        run = ActiveRun(state, graph=AgentGraph(agent), context=wrapper, config=config)
    check_session(run.state, session)
    if hooks is not None and not isinstance(hooks, RunHooksBase):
        raise InvalidDeclaration("Runner", f"hooks must be RunHooks, got {hooks!r}; AgentHooks belong to an Agent")
    run.hooks, run.session, run.error_handlers = hooks, session, validate_handlers(error_handlers)
    return run


def _prepare_resumed_run(agent: Agent[Any], state: RunState[Any, Any], config: RunConfig, context: Any) -> ActiveRun:
    state.bind(agent)
    run = state.to_active_run(config)
    run.origin, run.origin_data = state, state.data
    if context is not None:
        run.context.context = context.context if isinstance(context, RunContextWrapper) else context
    if config.reasoning_item_id_policy is not None:
        run.state = replace(run.state, reasoning_item_id_policy=config.reasoning_item_id_policy)
    return run
