"""Words that every declaration uses, and what agents need to know of the parts built upon them."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import TypeVar

from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.agent import AgentBase
    from standfast.agents.context import RunContextWrapper
    from standfast.agents.tools import Tool

T = TypeVar("T")
TContext = TypeVar("TContext", default=Any)

MaybeAwaitable: TypeAlias = Awaitable[T] | T
TResponseInputItem: TypeAlias = Item

Enabled: TypeAlias = bool | Callable[["RunContextWrapper[Any]", "AgentBase[Any]"], MaybeAwaitable[bool]]
NeedsApproval: TypeAlias = bool | Callable[["RunContextWrapper[Any]", dict[str, Any], str], Awaitable[bool]]
ToolErrorFunction: TypeAlias = Callable[["RunContextWrapper[Any]", Exception], MaybeAwaitable[str]]


@runtime_checkable
class ModelLike(Protocol):
    """Anything that answers as a model does; :mod:`standfast.models` has the full contract."""

    def get_response(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...

    def stream_response(self, *args: Any, **kwargs: Any) -> Any: ...


class RunItemLike(Protocol):
    """One item of a run, as handoff filters see it."""

    @property
    def type(self) -> str: ...

    def to_input_item(self) -> Item: ...


@runtime_checkable
class ToolSource(Protocol):
    """Where tools come from that an agent does not list itself, such as an MCP server."""

    @property
    def name(self) -> str: ...

    async def get_function_tools(self, run_context: "RunContextWrapper[Any]", agent: "AgentBase[Any]") -> "list[Tool]":
        """The tools it offers this agent now. They go through ``is_enabled`` like the agent's own."""
        ...


async def maybe_await(value: MaybeAwaitable[T]) -> T:
    """The value itself, or what it promised: users may write sync or async functions."""
    return await value if isawaitable(value) else value
