"""Prompts that are kept at the provider and named by id."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

from standfast.agents.errors import UserError
from standfast.agents.types import MaybeAwaitable, maybe_await

if TYPE_CHECKING:
    from standfast.agents.agent import Agent
    from standfast.agents.context import RunContextWrapper


class Prompt(TypedDict):
    """A prompt at the provider; ``variables`` fill its blanks."""

    id: str
    version: NotRequired[str]
    variables: NotRequired[dict[str, Any]]


@dataclass
class GenerateDynamicPromptData:
    """What a prompt function may look at."""

    context: "RunContextWrapper[Any]"
    agent: "Agent[Any]"


DynamicPromptFunction: TypeAlias = Callable[[GenerateDynamicPromptData], MaybeAwaitable[Prompt]]


async def resolve_prompt(
    prompt: Prompt | DynamicPromptFunction | None, context: "RunContextWrapper[Any]", agent: "Agent[Any]"
) -> dict[str, Any] | None:
    """The prompt as the provider takes it: ``id``, ``version`` and ``variables``, absent ones as ``None``."""
    if prompt is None:
        return None
    found = await maybe_await(prompt(GenerateDynamicPromptData(context, agent))) if callable(prompt) else prompt
    if not isinstance(found, dict) or not isinstance(found.get("id"), str):
        raise UserError(f"the prompt of agent {agent.name!r} must be a dict with an 'id', not {found!r}")
    return {"id": found["id"], "version": found.get("version"), "variables": found.get("variables")}
