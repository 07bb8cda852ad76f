"""Type aliases and protocols that all declarations share."""

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import TypeVar

from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.agent import AgentBase
    from standfast.agents.context import RunContextWrapper
    from standfast.agents.tools import Tool

T = TypeVar("T")
TContext = TypeVar("TContext", default=Any)
TAgent = TypeVar("TAgent", default=Any)

MaybeAwaitable: TypeAlias = Awaitable[T] | T
TResponseInputItem: TypeAlias = Item

Enabled: TypeAlias = bool | Callable[["RunContextWrapper[Any]", "AgentBase[Any]"], MaybeAwaitable[bool]]
NeedsApproval: TypeAlias = bool | Callable[["RunContextWrapper[Any]", dict[str, Any], str], Awaitable[bool]]
ToolErrorFunction: TypeAlias = Callable[["RunContextWrapper[Any]", Exception], MaybeAwaitable[str]]


@runtime_checkable
class ModelLike(Protocol):
    """Any object with the two methods of a model; :class:`standfast.models.Model` is the full interface."""

    def get_response(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...

    def stream_response(self, *args: Any, **kwargs: Any) -> Any: ...


class RunItemLike(Protocol):
    """The part of a run item that handoff filters use."""

    @property
    def type(self) -> str: ...

    def to_input_item(self) -> Item: ...


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools that an agent does not list itself, such as an MCP server."""

    @property
    def name(self) -> str: ...

    async def get_function_tools(self, run_context: "RunContextWrapper[Any]", agent: "AgentBase[Any]") -> "list[Tool]":
        """Return the tools that it offers to this agent now. ``is_enabled`` applies to them as to the agent's own."""
        ...


async def maybe_await(value: MaybeAwaitable[T]) -> T:
    """Return the value, awaited if it is awaitable: user functions may be sync or async."""
    return await value if isawaitable(value) else value


def is_async(func: Any) -> bool:
    """Return whether ``func`` is an async function, method, partial or callable object."""
    while isinstance(func, partial):
        func = func.func
    return iscoroutinefunction(func) or iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004
