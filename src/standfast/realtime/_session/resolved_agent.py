"""Agents as the model knows them: settings, tools and handoffs, resolved when the agent takes over."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.guardrails import OutputGuardrail
from standfast.agents.handoffs import Handoff
from standfast.agents.hosted_tools import HostedMCPTool
from standfast.agents.tools import FunctionTool, filter_enabled
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings


@dataclass(frozen=True, eq=False)
class ResolvedAgent:
    """The settings that the model has for an agent, and the tools and handoffs that its calls are routed to."""

    agent: RealtimeAgent[Any]
    settings: RealtimeSessionModelSettings
    tools: dict[str, FunctionTool]
    handoffs: dict[str, Handoff[Any, Any]]
    guardrails: tuple[OutputGuardrail[Any], ...]

    def get_output_setting(self, key: str, flat_key: str) -> Any:
        """Return a setting of the output audio: ``audio.output.<key>`` if present, else ``<flat_key>``."""
        settings = cast("dict[str, Any]", self.settings)
        nested = (settings.get("audio") or {}).get("output") or {}
        return nested[key] if key in nested else settings.get(flat_key)


class _Resolution:
    """One call of :meth:`AgentResolver.resolve`, for the context variable below."""

    def __init__(self, resolver: "AgentResolver") -> None:
        self.resolver, self.finished = resolver, False


# The resolutions that the current task runs in, directly or not. A function that is called to resolve an agent must
# not wait for the session: the session waits for the function.
_active_resolutions: ContextVar[tuple[_Resolution, ...]] = ContextVar("standfast_realtime_asked", default=())


class AgentResolver:
    """Resolves the agents of one session."""

    def __init__(
        self,
        run_context: RunContextWrapper[Any],
        run_config: RealtimeRunConfig,
        base_settings: RealtimeSessionModelSettings,
    ) -> None:
        self._run_context, self._run_config = run_context, run_config
        self.base_settings = base_settings
        """The settings that apply to every agent."""

    async def resolve(
        self, agent: RealtimeAgent[Any], *, overrides: RealtimeSessionModelSettings | None = None
    ) -> ResolvedAgent:
        """Resolve an agent as :func:`resolve_agent` does."""
        resolution = _Resolution(self)
        token = _active_resolutions.set((*_active_resolutions.get(), resolution))
        try:
            return await resolve_agent(
                agent, self._run_context, self._run_config, base=self.base_settings, overrides=overrides
            )
        finally:
            resolution.finished = True
            _active_resolutions.reset(token)

    def check_not_resolving(self, operation: str) -> None:
        """Raise :class:`UserError` if the caller is a function that an agent is being resolved with."""
        if any(active.resolver is self and not active.finished for active in _active_resolutions.get()):
            raise UserError(
                f"{operation} was called by the instructions or an is_enabled function of an agent that is about to "
                "take over: it would wait for itself. Call it after the agent has taken over, for example on "
                "`agent_changed`"
            )


def build_base_settings(
    run_config: RealtimeRunConfig, initial: RealtimeSessionModelSettings | None
) -> RealtimeSessionModelSettings:
    """Build the settings that apply to every agent of a session."""
    return cast(RealtimeSessionModelSettings, {**run_config.get("model_settings", {}), **(initial or {})})


async def resolve_agent(
    agent: RealtimeAgent[Any],
    context: RunContextWrapper[Any],
    run_config: RealtimeRunConfig,
    *,
    base: RealtimeSessionModelSettings,
    overrides: RealtimeSessionModelSettings | None = None,
) -> ResolvedAgent:
    """Call the agent's functions and build the settings for the model.

    ``overrides`` take precedence over the agent. Raises :class:`UserError` if two tools or handoffs share a name.
    """
    if not isinstance(agent, RealtimeAgent):
        raise UserError(f"a realtime session needs a RealtimeAgent, got {agent!r}")
    instructions, tools, handoffs = await _gather(
        agent.get_system_prompt(context), agent.get_all_tools(context), agent.get_handoffs(context)
    )
    settings: dict[str, Any] = {**base, "instructions": instructions or "", "tools": tools, "handoffs": handoffs}
    if agent.prompt is not None:
        settings["prompt"] = agent.prompt
    if overrides:
        settings |= overrides
        for name in ("tools", "handoffs"):
            if name in overrides:
                settings[name] = await filter_enabled(overrides[name], context, agent)
    if run_config.get("tracing_disabled"):
        settings["tracing"] = None
    _check_names(agent, settings)
    return ResolvedAgent(
        agent=agent,
        settings=cast(RealtimeSessionModelSettings, settings),
        tools={tool.name: tool for tool in settings["tools"] if isinstance(tool, FunctionTool)},
        handoffs={handoff.tool_name: handoff for handoff in settings["handoffs"]},
        guardrails=_collect_guardrails(agent, run_config),
    )


def _check_names(agent: RealtimeAgent[Any], settings: dict[str, Any]) -> None:
    # A hosted MCP server is identified by its label and never called from here.
    callable_tools = [tool for tool in settings["tools"] if not isinstance(tool, HostedMCPTool)]
    names = [tool.name for tool in callable_tools] + [handoff.tool_name for handoff in settings["handoffs"]]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise UserError(
            f"agent {agent.name!r} has several tools or handoffs named {', '.join(duplicates)}; give each its own name"
        )


def _collect_guardrails(agent: RealtimeAgent[Any], run_config: RealtimeRunConfig) -> tuple[OutputGuardrail[Any], ...]:
    guardrails: list[OutputGuardrail[Any]] = []
    for guardrail in [*agent.output_guardrails, *run_config.get("output_guardrails", [])]:
        if not isinstance(guardrail, OutputGuardrail):
            raise InvalidDeclaration(
                f"agent {agent.name!r}",
                f"{guardrail!r} is not an output guardrail: decorate the function with @output_guardrail",
            )
        if not any(guardrail is other for other in guardrails):
            guardrails.append(guardrail)
    return tuple(guardrails)


async def _gather(*awaitables: Any) -> list[Any]:
    """Await all; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(awaitable) for awaitable in awaitables]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
