"""What a model is told about a call that was not made, in words that the program may choose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias

from holdfast.agents.context import RunContextWrapper
from holdfast.agents.types import MaybeAwaitable, TContext


@dataclass
class ToolErrorFormatterArgs(Generic[TContext]):
    """A call that was not made, for a program that wants its own words for the model."""

    kind: Literal["approval_rejected", "tool_not_found"]
    tool_type: Literal["function", "computer", "shell", "apply_patch", "custom"]
    tool_name: str
    call_id: str
    default_message: str
    run_context: RunContextWrapper[TContext]


ToolErrorFormatter: TypeAlias = Callable[[ToolErrorFormatterArgs[Any]], MaybeAwaitable[str | None]]
