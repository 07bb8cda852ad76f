"""References to prompts that are stored at the provider."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from standfast.agents.errors import UserError
from standfast.agents.types import MaybeAwaitable, maybe_await

if TYPE_CHECKING:
    from standfast.agents.agent import Agent
    from standfast.agents.context import RunContextWrapper


class Prompt(TypedDict):
    """A prompt stored at the provider, with the values of its variables."""

    id: str
    version: NotRequired[str]
    variables: NotRequired[dict[str, Any]]


@dataclass
class GenerateDynamicPromptData:
    """The argument of a prompt function."""

    context: "RunContextWrapper[Any]"
    agent: "Agent[Any]"


DynamicPromptFunction: TypeAlias = Callable[[GenerateDynamicPromptData], MaybeAwaitable[Prompt]]


async def resolve_prompt(
    prompt: Prompt | DynamicPromptFunction | None, context: "RunContextWrapper[Any]", agent: "Agent[Any]"
) -> dict[str, Any] | None:
    """Return ``id``, ``version`` and ``variables`` of the prompt, with ``None`` for those that are not set."""
    if prompt is None:
        return None
    value = await maybe_await(prompt(GenerateDynamicPromptData(context, agent))) if callable(prompt) else prompt
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise UserError(f"the prompt of agent {agent.name!r} must be a dict with an 'id', got {value!r}")
    return {"id": value["id"], "version": value.get("version"), "variables": value.get("variables")}
