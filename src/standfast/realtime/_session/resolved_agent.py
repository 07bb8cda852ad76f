"""An agent as it was when it took over: its settings, tools and handoffs, resolved once."""

import asyncio
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
    """What the model was told about an agent, and what its calls are routed by."""

    agent: RealtimeAgent[Any]
    settings: RealtimeSessionModelSettings
    tools: dict[str, FunctionTool]
    handoffs: dict[str, Handoff[Any, Any]]
    guardrails: tuple[OutputGuardrail[Any], ...]

    def get_output_setting(self, key: str, flat_key: str) -> Any:
        """A setting of the audio that comes from the model: under ``audio``, or else under its ``flat`` name."""
        settings = cast("dict[str, Any]", self.settings)
        nested = (settings.get("audio") or {}).get("output") or {}
        return nested[key] if key in nested else settings.get(flat_key)


def build_base_settings(
    run_config: RealtimeRunConfig, initial: RealtimeSessionModelSettings | None
) -> RealtimeSessionModelSettings:
    """What holds for every agent of a session."""
    return cast(RealtimeSessionModelSettings, {**run_config.get("model_settings", {}), **(initial or {})})


async def resolve_agent(
    agent: RealtimeAgent[Any],
    context: RunContextWrapper[Any],
    run_config: RealtimeRunConfig,
    *,
    base: RealtimeSessionModelSettings,
    overrides: RealtimeSessionModelSettings | None = None,
) -> ResolvedAgent:
    """Ask the agent for everything that the model has to know. Nothing is changed by it.

    Raises :class:`UserError` when two tools or handoffs share a name. ``overrides`` go before the agent's own words.
    """
    if not isinstance(agent, RealtimeAgent):
        raise UserError(f"a realtime session needs a RealtimeAgent, not {agent!r}")
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
    # A hosted MCP server is told apart by its label, and never called from here.
    called = [tool for tool in settings["tools"] if not isinstance(tool, HostedMCPTool)]
    names = [tool.name for tool in called] + [way.tool_name for way in settings["handoffs"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"the agent {agent.name!r} has several tools or handoffs named {', '.join(twice)}: a call could mean either"
        )


def _collect_guardrails(agent: RealtimeAgent[Any], run_config: RealtimeRunConfig) -> tuple[OutputGuardrail[Any], ...]:
    found: list[OutputGuardrail[Any]] = []
    for guardrail in [*agent.output_guardrails, *run_config.get("output_guardrails", [])]:
        if not isinstance(guardrail, OutputGuardrail):
            raise InvalidDeclaration(
                f"the agent {agent.name!r}",
                f"{guardrail!r} is not an output guardrail: decorate the function with @output_guardrail",
            )
        if not any(guardrail is known for known in found):
            found.append(guardrail)
    return tuple(found)


async def _gather(*awaitables: Any) -> list[Any]:
    """All answers; the first question that fails ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in awaitables]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
