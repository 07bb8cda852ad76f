"""Changes of the program's context are kept when a run is resumed in another process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from factories.runtime import only_approval, reply, tool_calls, wait_for
from standfast import Agent, Runtime, ToolContext, function_tool, register_context_codec
from standfast.runtime._engine.journal_writer import MAX_CONTEXT_BYTES
from standfast.testing import ScriptedModel


@register_context_codec
@dataclass
class Basket:
    orders: list[str] = field(default_factory=list)


@function_tool
async def note(ctx: ToolContext[Any], order: str) -> str:
    orders = ctx.context.orders if isinstance(ctx.context, Basket) else ctx.context["orders"]
    orders.append(order)
    return "noted"


@function_tool(needs_approval=True)
async def buy(ctx: ToolContext[Any]) -> str:
    orders = ctx.context.orders if isinstance(ctx.context, Basket) else ctx.context["orders"]
    return f"bought {len(orders)}: {' '.join(orders)}"[:40]


def shop(*steps: Any) -> Agent[Any]:
    return Agent(
        "shop", tools=[note, buy], model=ScriptedModel(steps), tool_use_behavior={"stop_at_tool_names": ["buy"]}
    )


async def bought(url: str, context: Any) -> Any:
    """Return what a runtime buys that resumes a run of another one."""
    steps = (
        tool_calls(("note", {"order": "tea"}, "n1")),
        tool_calls(("note", {"order": "milk"}, "n2")),
        tool_calls(("buy", {}, "b1")),
    )
    async with Runtime.open(url, agents=[shop(*steps)]) as runtime:
        run = await runtime.start("shop", "buy tea and milk", context=context)
        await wait_for(run.wait())
    async with Runtime.open(url, agents=[shop()]) as runtime:
        await runtime.decide((await only_approval(runtime)).id, "approve")
        return (await wait_for((await runtime.run(run.id)).wait())).final_output


@pytest.mark.parametrize("context", [{"orders": []}, Basket()], ids=["mapping", "codec"])
async def test_what_tools_changed_is_there_in_another_runtime(shared_url: str, context: Any) -> None:
    assert await bought(shared_url, context) == "bought 2: tea milk"


async def test_a_large_context_is_given_as_it_was_at_the_start(tmp_path: Path) -> None:
    large = {"orders": ["salt"], "catalogue": "x" * MAX_CONTEXT_BYTES}
    assert await bought(f"sqlite:///{tmp_path / 'app.db'}", large) == "bought 1: salt"


async def test_a_context_that_cannot_be_saved_any_more_stays_as_it_was_written_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @function_tool
    async def spoil(ctx: ToolContext[Any]) -> str:
        ctx.context["lock"] = object()
        return "spoilt"

    url = f"sqlite:///{tmp_path / 'app.db'}"
    steps = tool_calls(("note", {"order": "tea"}, "n1")), tool_calls(("spoil", {}, "x1")), tool_calls(("buy", {}, "b1"))
    first = shop(*steps)
    first.tools.append(spoil)
    async with Runtime.open(url, agents=[first]) as runtime:
        run = await runtime.start("shop", "buy tea", context={"orders": []})
        await wait_for(run.wait())
    assert [text for text in caplog.messages if "context.lock: object objects cannot be stored as JSON" in text]
    async with Runtime.open(url, agents=[shop()]) as runtime:
        assert (await runtime.state(run.id)).context.context == {"orders": ["tea"]}


async def test_an_unchanged_context_is_not_written_again(tmp_path: Path) -> None:
    @function_tool
    async def look() -> str:
        return "seen"

    agent: Agent[Any] = Agent(
        "shop", tools=[look], model=ScriptedModel([tool_calls(("look", {}, "l1")), reply("done")])
    )
    async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[agent]) as runtime:
        run = await runtime.start("shop", "look", context={"user": "somebody-special"})
        await wait_for(run.wait())
        rows = await runtime.store.backend.read_journal(run.id, after=0)
        assert sum(b"somebody-special" in row.data for row in rows) == 1


async def test_a_fork_has_the_context_of_its_step(tmp_path: Path) -> None:
    steps = (
        tool_calls(("note", {"order": "tea"}, "n1")),
        tool_calls(("note", {"order": "milk"}, "n2")),
        reply("done"),
        reply("done"),
    )
    async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[shop(*steps)]) as runtime:
        run = await runtime.start("shop", "buy", context={"orders": []})
        await wait_for(run.wait())
        made = [event.seq async for event in run.events() if event.type == "calls.made"]
        other = await runtime.fork(run.id, at=made[0])
        await wait_for(other.wait())
        assert (await runtime.state(run.id)).context.context == {"orders": ["tea", "milk"]}
        assert (await runtime.state(other.id)).context.context == {"orders": ["tea"]}
