"""Agents that speak: who answers in a realtime session, with which instructions, tools and limits."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar, cast

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.guardrails import OutputGuardrail
from standfast.agents.handoffs import Handoff, OnHandoffWithInput, OnHandoffWithoutInput, handoff
from standfast.agents.hooks import AgentHooks, RunHooks
from standfast.agents.prompts import Prompt
from standfast.agents.tools import filter_enabled
from standfast.agents.types import Enabled, MaybeAwaitable, TContext, maybe_await

THandoffInput = TypeVar("THandoffInput")

RealtimeAgentHooks: TypeAlias = AgentHooks[TContext]
"""Watches one agent: its starts and ends by response, its tools, and handoffs to it."""
RealtimeRunHooks: TypeAlias = RunHooks[TContext]
"""Watches a whole session; given as ``hooks`` of the run config."""

Instructions: TypeAlias = str | Callable[[RunContextWrapper[Any], Any], MaybeAwaitable[str]]


@dataclass(eq=False, repr=False)
class RealtimeAgent(AgentBase[TContext]):
    """A voice with instructions, tools, guardrails and other agents it may hand over to.

    Which model speaks is the session's business: an agent has no model of its own. Lists may still be changed after
    the agent was made; a session looks at them when the agent takes over.
    """

    instructions: Instructions | None = None
    prompt: Prompt | None = None
    handoffs: "list[RealtimeAgent[Any] | Handoff[TContext, RealtimeAgent[Any]]]" = field(default_factory=list)
    output_guardrails: list[OutputGuardrail[TContext]] = field(default_factory=list)
    hooks: AgentHooks[TContext] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("handoffs", "output_guardrails"):
            if not isinstance(getattr(self, name), list):
                raise InvalidDeclaration("RealtimeAgent", f"{name} must be a list, got {getattr(self, name)!r}")
        if self.instructions is not None and not isinstance(self.instructions, str) and not callable(self.instructions):
            raise InvalidDeclaration(
                "RealtimeAgent", f"instructions must be a string or a function, got {self.instructions!r}"
            )
        if self.hooks is not None and not isinstance(self.hooks, AgentHooks):
            raise InvalidDeclaration("RealtimeAgent", f"hooks must be RealtimeAgentHooks, got {self.hooks!r}")

    def clone(self, **kwargs: Any) -> "RealtimeAgent[TContext]":
        """A copy with some fields replaced. Lists that are not replaced are shared with the original."""
        unknown = set(kwargs) - {f.name for f in fields(self)}
        if unknown:
            raise InvalidDeclaration("RealtimeAgent.clone", f"an agent has no {', '.join(sorted(unknown))}")
        return replace(self, **kwargs)

    async def get_system_prompt(self, run_context: RunContextWrapper[TContext]) -> str | None:
        """The instructions for this moment; those that are a function are asked anew every time."""
        if self.instructions is None or isinstance(self.instructions, str):
            return self.instructions
        return await maybe_await(self.instructions(run_context, self))

    async def get_handoffs(self, run_context: RunContextWrapper[TContext]) -> list[Handoff[Any, Any]]:
        """Every handoff that is enabled now; plain agents among them with the default names."""
        for to in self.handoffs:
            if not isinstance(to, Handoff | RealtimeAgent):
                raise InvalidDeclaration(
                    f"RealtimeAgent {self.name!r}", f"handoffs lead to realtime agents, not {to!r}"
                )
        offered = [to if isinstance(to, Handoff) else realtime_handoff(to) for to in self.handoffs]
        return await filter_enabled(offered, run_context, self)


def realtime_handoff(
    agent: RealtimeAgent[TContext],
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: OnHandoffWithInput | OnHandoffWithoutInput | None = None,
    input_type: type[THandoffInput] | None = None,
    is_enabled: Enabled = True,
) -> Handoff[TContext, RealtimeAgent[TContext]]:
    """A way to ``agent``. With an ``input_type`` the model has to say something along with it.

    ``on_handoff`` is called with the context, and with that input if there is an ``input_type``.
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
