"""What the tests of durable runs have in common."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from standfast import Agent, Runtime, ToolContext, function_tool
from standfast.testing import ScriptedModel, assistant_message, function_call

T = TypeVar("T")


async def soon(work: Awaitable[T], seconds: float = 8) -> T:
    """What the work gives; a test that hangs fails."""
    return await asyncio.wait_for(work, seconds)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is true."""
    async with asyncio.timeout(8):
        while not await true():  # noqa: ASYNC110 - it is true in another process, or in the store
            await asyncio.sleep(0.01)


def says(text: str) -> list[Any]:
    return [assistant_message(text)]


def calls(*wanted: tuple[str, dict[str, Any], str]) -> list[Any]:
    return [function_call(name, arguments, call_id=call_id) for name, arguments, call_id in wanted]


class Refunds:
    """A tool that needs a person, and what it did."""

    def __init__(self, **options: Any) -> None:
        self.made: list[tuple[str, str]] = []
        made = self.made

        @function_tool(**{"needs_approval": True, **options})
        async def refund(ctx: ToolContext[Any], order: str, amount: int) -> str:
            made.append((f"{order}:{amount}", ctx.idempotency_key))
            return f"refunded {order}"

        self.tool = refund

    def agent(self, *steps: Any, name: str = "support") -> Agent[Any]:
        script = steps or (calls(("refund", {"order": "7", "amount": 5}, "c1")), says("done"))
        return Agent(name, tools=[self.tool], model=ScriptedModel(script))


def talker(*texts: str, name: str = "support") -> Agent[Any]:
    return Agent(name, model=ScriptedModel([says(text) for text in texts]))


async def types(run: Any, after: int = 0) -> list[str]:
    return [event.type async for event in run.events(after=after)]


async def only_approval(runtime: Runtime) -> Any:
    [found] = await runtime.approvals(status="pending")
    return found


def completed(run: Any) -> Callable[[], Awaitable[bool]]:
    """Whether the run is completed, for :func:`until`."""

    async def look() -> bool:
        return bool((await run.info()).status == "completed")

    return look
