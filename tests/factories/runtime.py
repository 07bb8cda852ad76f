"""Agents, tools and waits for tests of durable runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from standfast import Agent, Runtime, ToolContext, function_tool
from standfast.testing import ScriptedModel, assistant_message, function_call

T = TypeVar("T")


def repeat(short: int, full: int) -> Any:
    """Parametrise a random test by ``count``: a short run in ``make test``, the full one in ``make soak``."""
    return pytest.mark.parametrize("count", [short, pytest.param(full, marks=pytest.mark.soak)])


async def wait_for(work: Awaitable[T], seconds: float = 300) -> T:
    """Return the result of the work; a test that hangs fails."""
    return await asyncio.wait_for(work, seconds)


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(300):
        while not await condition():  # noqa: ASYNC110 - it depends on another process or the store
            await asyncio.sleep(0.01)


def reply(text: str) -> list[Any]:
    return [assistant_message(text)]


def tool_calls(*calls: tuple[str, dict[str, Any], str]) -> list[Any]:
    return [function_call(name, arguments, call_id=call_id) for name, arguments, call_id in calls]


class Refunds:
    """A tool that needs approval, and the calls that were made."""

    def __init__(self, **options: Any) -> None:
        self.made: list[tuple[str, str]] = []
        made = self.made

        @function_tool(**{"needs_approval": True, **options})
        async def refund(ctx: ToolContext[Any], order: str, amount: int) -> str:
            made.append((f"{order}:{amount}", ctx.idempotency_key))
            return f"refunded {order}"

        self.tool = refund

    def agent(self, *steps: Any, name: str = "support") -> Agent[Any]:
        script = steps or (tool_calls(("refund", {"order": "7", "amount": 5}, "c1")), reply("done"))
        return Agent(name, tools=[self.tool], model=ScriptedModel(script))


def text_agent(*texts: str, name: str = "support") -> Agent[Any]:
    return Agent(name, model=ScriptedModel([reply(text) for text in texts]))


async def event_types(run: Any, after: int = 0) -> list[str]:
    return [event.type async for event in run.events(after=after)]


async def only_approval(runtime: Runtime) -> Any:
    [approval] = await runtime.approvals(status="pending")
    return approval


def completed(run: Any) -> Callable[[], Awaitable[bool]]:
    """Return the condition that the run is completed, for :func:`wait_until`."""

    async def is_completed() -> bool:
        return bool((await run.info()).status == "completed")

    return is_completed
