"""Handoffs: one agent transfers the conversation to another."""

import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from typing_extensions import TypeVar

from standfast.agents.errors import InvalidDeclaration, ModelBehaviorError, UserError
from standfast.agents.strict_schema import to_strict_schema
from standfast.agents.tool_identity import to_function_name
from standfast.agents.types import Enabled, MaybeAwaitable, RunItemLike, TAgent, TContext, maybe_await
from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.agent import Agent, AgentBase
    from standfast.agents.context import RunContextWrapper

THandoffInput = TypeVar("THandoffInput", default=Any)

OnHandoffWithInput: TypeAlias = Callable[["RunContextWrapper[Any]", Any], MaybeAwaitable[Any]]
OnHandoffWithoutInput: TypeAlias = Callable[["RunContextWrapper[Any]"], MaybeAwaitable[Any]]


@dataclass(frozen=True)
class HandoffInputData:
    """The input of the next agent, which an input filter may change.

    ``new_items`` stay in the history of the run; if ``input_items`` is set, the next agent's model receives those
    instead.
    """

    input_history: str | tuple[Item, ...]
    pre_handoff_items: tuple[RunItemLike, ...]
    new_items: tuple[RunItemLike, ...]
    run_context: "RunContextWrapper[Any] | None" = None
    input_items: tuple[RunItemLike, ...] | None = None

    def clone(self, **kwargs: Any) -> "HandoffInputData":
        """Return a copy with some fields replaced."""
        return replace(self, **kwargs)


HandoffInputFilter: TypeAlias = Callable[[HandoffInputData], MaybeAwaitable[HandoffInputData]]
HandoffHistoryMapper: TypeAlias = Callable[[list[Item]], list[Item]]


@dataclass(eq=False)
class Handoff(Generic[TContext, TAgent]):
    """A transfer to another agent, presented to the model as a tool. Usually created by :func:`handoff`.

    ``agent`` is the target if it is known in advance; a saved run can be resumed only if its current
    agent is declared in this way.
    """

    tool_name: str
    """The name that the model calls."""
    tool_description: str
    """When the model should hand off."""
    input_json_schema: dict[str, Any]
    """The schema of what the model passes to the handoff."""
    on_invoke_handoff: "Callable[[RunContextWrapper[Any], str], Awaitable[TAgent]]" = field(repr=False)
    """Returns the next agent, given the context and the JSON of the model."""
    agent_name: str
    """The name of the next agent."""
    input_filter: HandoffInputFilter | None = None
    """Changes what the next agent sees of the conversation."""
    nest_handoff_history: bool | None = None
    """Whether the next agent sees the conversation as one message. None: as the run says."""
    strict_json_schema: bool = True
    """Whether the schema allows only the fields that it names."""
    is_enabled: Enabled = True
    """Whether the model sees the handoff, or a function that decides it."""
    agent: "TAgent | None" = field(default=None, kw_only=True, repr=False)
    """The next agent, if it is known in advance."""

    def get_transfer_message(self, agent: "AgentBase[Any]") -> str:
        """Return the output of the handoff call, which names the new agent."""
        return json.dumps({"assistant": agent.name}, ensure_ascii=False)

    @classmethod
    def default_tool_name(cls, agent: "AgentBase[Any]") -> str:
        """Return the name that the model sees if the handoff has none of its own."""
        return to_function_name(f"transfer_to_{agent.name}")

    @classmethod
    def default_tool_description(cls, agent: "AgentBase[Any]") -> str:
        """Return the description that the model sees if the handoff has none of its own."""
        return f"Handoff to the {agent.name} agent to handle the request. {agent.handoff_description or ''}"


def handoff(
    agent: "Agent[TContext]",
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: OnHandoffWithInput | OnHandoffWithoutInput | None = None,
    input_type: type[THandoffInput] | None = None,
    input_filter: HandoffInputFilter | None = None,
    nest_handoff_history: bool | None = None,
    is_enabled: Enabled = True,
) -> "Handoff[TContext, Agent[TContext]]":
    """Return a handoff to ``agent``. With an ``input_type`` the model must send a value of that type.

    ``on_handoff`` is called with the context, and with that value if there is an ``input_type``.
    """
    tool_name = tool_name_override or Handoff.default_tool_name(agent)
    _check_on_handoff(tool_name, on_handoff, input_type)
    adapter = None if input_type is None else _make_adapter(tool_name, input_type)
    schema = {} if adapter is None else adapter.json_schema()

    async def on_invoke_handoff(context: "RunContextWrapper[Any]", arguments: str | None = None) -> "Agent[TContext]":
        if on_handoff is not None:
            value = () if adapter is None else (_parse_input(tool_name, adapter, arguments),)
            await maybe_await(on_handoff(context, *value))
        return agent

    return Handoff(
        tool_name=tool_name,
        tool_description=tool_description_override or Handoff.default_tool_description(agent),
        input_json_schema=to_strict_schema(schema, where=f"input_type of {tool_name}"),
        on_invoke_handoff=on_invoke_handoff,
        agent_name=agent.name,
        input_filter=input_filter,
        nest_handoff_history=nest_handoff_history,
        is_enabled=is_enabled,
        agent=agent,
    )


def as_handoff(target: "Agent[Any] | Handoff[Any, Any]") -> Handoff[Any, Any]:
    """Return an entry of an agent's ``handoffs`` as a handoff; a plain agent gets the default options."""
    if isinstance(target, Handoff):
        return target
    if not isinstance(getattr(target, "name", None), str):
        raise InvalidDeclaration("handoffs", f"handoffs must be Agent or Handoff objects, got {target!r}")
    return handoff(target)


def _check_on_handoff(tool_name: str, on_handoff: Any, input_type: Any) -> None:
    if on_handoff is None:
        if input_type is not None:
            raise UserError(f"{tool_name}: an input_type needs an on_handoff to receive it")
        return
    if not callable(on_handoff):
        raise InvalidDeclaration(tool_name, f"on_handoff must be a function, got {on_handoff!r}")
    expected = ("context",) if input_type is None else ("context", "input")
    count = len(inspect.signature(on_handoff).parameters)
    if count != len(expected):
        raise UserError(f"{tool_name}: on_handoff must take ({', '.join(expected)}), it takes {count} parameters")


def _make_adapter(tool_name: str, input_type: Any) -> Any:
    # Imported here because handoffs without an input_type do not need pydantic.
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(input_type)
    except PydanticUserError as error:
        raise InvalidDeclaration(tool_name, f"input_type has no JSON schema: {error}") from None


def _parse_input(tool_name: str, adapter: Any, arguments: str | None) -> Any:
    from pydantic import ValidationError

    from standfast.agents.function_schema import format_validation_error

    if arguments is None:
        raise ModelBehaviorError(f"the handoff {tool_name} needs an input, but the model sent none")
    try:
        return adapter.validate_json(arguments, strict=True)
    except ValidationError as error:
        raise ModelBehaviorError(
            f"invalid input for the handoff {tool_name}: {format_validation_error(error)}"
        ) from None


RECOMMENDED_PROMPT_PREFIX = (
    "# Working together\n"
    "You are one of several agents that share this conversation. Each has instructions and tools of its own. To pass"
    " the conversation on to an agent that is better suited, call the function for it, usually named"
    " `transfer_to_<agent_name>`. The user talks to all of you as if you were one: pass the conversation on without"
    " announcing or mentioning it."
)


def prompt_with_handoff_instructions(prompt: str) -> str:
    """Return the instructions with an explanation of handoffs before them."""
    return f"{RECOMMENDED_PROMPT_PREFIX}\n\n{prompt}"
