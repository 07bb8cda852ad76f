"""Realtime agents: instructions, tools, handoffs and guardrails for a realtime session."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar, cast

from standfast.agents.agent import AgentBase, Prompt
from standfast.agents.context import AgentHooks, AgentHooksBase, RunContextWrapper, RunHooks
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.guardrails import OutputGuardrail
from standfast.agents.handoffs import Handoff, OnHandoffWithInput, OnHandoffWithoutInput, handoff
from standfast.agents.tools import filter_enabled
from standfast.agents.types import Enabled, MaybeAwaitable, TContext, maybe_await

THandoffInput = TypeVar("THandoffInput")

RealtimeAgentHooks: TypeAlias = AgentHooks[TContext]
"""Hooks of one agent: start and end of each response, tool calls, and handoffs to it."""
RealtimeRunHooks: TypeAlias = RunHooks[TContext]
"""Hooks of a whole session, set as ``hooks`` in the run config."""

Instructions: TypeAlias = str | Callable[[RunContextWrapper[Any], Any], MaybeAwaitable[str]]


@dataclass(eq=False, repr=False)
class RealtimeAgent(AgentBase[TContext]):
    """An agent for realtime sessions. The session has the model; an agent has none.

    Lists may be changed after construction. A session reads them when the agent takes over.
    """

    instructions: Instructions | None = None
    prompt: Prompt | None = None
    handoffs: "list[RealtimeAgent[Any] | Handoff[TContext, RealtimeAgent[Any]]]" = field(default_factory=list)
    output_guardrails: list[OutputGuardrail[TContext]] = field(default_factory=list)
    hooks: AgentHooksBase[TContext, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("handoffs", "output_guardrails"):
            if not isinstance(getattr(self, name), list):
                raise InvalidDeclaration("RealtimeAgent", f"{name} must be a list, got {getattr(self, name)!r}")
        if self.instructions is not None and not isinstance(self.instructions, str) and not callable(self.instructions):
            raise InvalidDeclaration(
                "RealtimeAgent", f"instructions must be a string or a function, got {self.instructions!r}"
            )
        if self.hooks is not None and not isinstance(self.hooks, AgentHooksBase):
            raise InvalidDeclaration("RealtimeAgent", f"hooks must be RealtimeAgentHooks, got {self.hooks!r}")

    def clone(self, **kwargs: Any) -> "RealtimeAgent[TContext]":
        """Return a copy with some fields replaced. Lists that are not replaced are shared with the original."""
        unknown = set(kwargs) - {f.name for f in fields(self)}
        if unknown:
            raise InvalidDeclaration("RealtimeAgent.clone", f"unknown fields: {', '.join(sorted(unknown))}")
        return replace(self, **kwargs)

    async def get_system_prompt(self, run_context: RunContextWrapper[TContext]) -> str | None:
        """Return the instructions. If they are a function, it is called every time."""
        if self.instructions is None or isinstance(self.instructions, str):
            return self.instructions
        return await maybe_await(self.instructions(run_context, self))

    async def get_handoffs(self, run_context: RunContextWrapper[TContext]) -> list[Handoff[Any, Any]]:
        """Return the enabled handoffs. Agents are converted to handoffs with default names."""
        for target in self.handoffs:
            if not isinstance(target, Handoff | RealtimeAgent):
                raise InvalidDeclaration(
                    f"RealtimeAgent {self.name!r}", f"handoffs must be RealtimeAgent or Handoff objects, got {target!r}"
                )
        handoffs = [target if isinstance(target, Handoff) else realtime_handoff(target) for target in self.handoffs]
        return await filter_enabled(handoffs, run_context, self)


def realtime_handoff(
    agent: RealtimeAgent[TContext],
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: OnHandoffWithInput | OnHandoffWithoutInput | None = None,
    input_type: type[THandoffInput] | None = None,
    is_enabled: Enabled = True,
) -> Handoff[TContext, RealtimeAgent[TContext]]:
    """Make a handoff to ``agent``. With an ``input_type``, the model must pass an argument of that type.

    ``on_handoff`` is called with the context and, if there is an ``input_type``, that argument.
    """
    return cast(
        "Handoff[TContext, RealtimeAgent[TContext]]",
        handoff(
            cast(Any, agent),
            tool_name_override=tool_name_override,
            tool_description_override=tool_description_override,
            on_handoff=on_handoff,
            input_type=input_type,
            is_enabled=is_enabled,
        ),
    )
