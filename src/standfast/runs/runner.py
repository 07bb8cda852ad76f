"""The entry points for running an agent: to completion, streamed, or resumed from a state."""

import asyncio
from typing import Any

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.graph import AgentGraph
from standfast.agents.hooks import RunHooks
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.history.session import Session
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from standfast.runs.core.state import State, check_session, make_conversation
from standfast.runs.driver import drive
from standfast.runs.error_handlers import validate_handlers
from standfast.runs.result import RunResult
from standfast.runs.run_state import RunState
from standfast.runs.session_io import validate_input
from standfast.runs.streaming import RunResultStreaming


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
        hooks: RunHooks[Any] | None = None,
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
        run = prepare_run(
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
        await drive(run)
        return RunResult.from_run(run)

    @classmethod
    def run_sync(
        cls,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        *,
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        error_handlers: Any = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
    ) -> RunResult:
        """Do the same as :meth:`run`, for programs without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(
                cls.run(
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
            )
        raise UserError("run_sync cannot be called while an event loop is running: await Runner.run instead")

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[Any],
        input: str | list[Item] | RunState[Any, Any],
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
        *,
        error_handlers: Any = None,
    ) -> RunResultStreaming:
        """Start a run and return at once; read its events with :meth:`RunResultStreaming.stream_events`."""
        run = prepare_run(
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
        return RunResultStreaming.start(run)


def prepare_run(
    agent: Agent[Any],
    input: str | list[Item] | RunState[Any, Any],
    *,
    context: Any = None,
    max_turns: int | None = DEFAULT_MAX_TURNS,
    hooks: RunHooks[Any] | None = None,
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
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int)):
            raise UserError(f"max_turns must be an integer or None, not {max_turns!r}")
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
    run.hooks, run.session, run.error_handlers = hooks, session, validate_handlers(error_handlers)
    return run


def _prepare_resumed_run(agent: Agent[Any], state: RunState[Any, Any], config: RunConfig, context: Any) -> ActiveRun:
    if agent is not state.graph.root:
        raise UserError(
            f"this run did not start with the agent {agent.name!r}: pass the agent that the state was loaded with"
        )
    run = state.to_active_run(config)
    if context is not None:
        run.context.context = context.context if isinstance(context, RunContextWrapper) else context
    if config.reasoning_item_id_policy is not None:
        run.state = replace(run.state, reasoning_item_id_policy=config.reasoning_item_id_policy)
    return run
