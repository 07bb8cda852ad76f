"""Talking to an agent in a terminal."""

import io
import logging
from typing import Any

import pytest

from standfast import Agent, Runner, enable_verbose_stdout_logging, function_tool, run_demo_loop
from standfast.testing import ScriptedModel, assistant_message, function_call


@pytest.mark.parametrize("stream", [True, False])
async def test_a_person_talks_decides_and_leaves(stream: bool, monkeypatch: Any, capsys: Any) -> None:
    paid: list[int] = []

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    calls = [function_call("pay", {"amount": 1}, call_id="1"), function_call("pay", {"amount": 2}, call_id="2")]
    second = Agent("second", model=ScriptedModel([[assistant_message("me now")], [assistant_message("still me")]]))
    script = [calls, [assistant_message("half of it")], [function_call("transfer_to_second", {}, call_id="3")]]
    agent = Agent("first", tools=[pay], handoffs=[second], model=ScriptedModel(script))
    monkeypatch.setattr("sys.stdin", io.StringIO("pay\ny\nn\n\nsomebody else\nwho?\nexit\nnever read\n"))
    await run_demo_loop(agent, stream=stream)
    printed = capsys.readouterr().out
    assert paid == [1]
    assert printed.index("half of it") < printed.index("me now") < printed.index("still me")
    last = second.model.last_call.input
    assert [item["content"] for item in last if item.get("role") == "user"] == ["pay", "somebody else", "who?"]


async def test_the_end_of_input_ends_the_loop(monkeypatch: Any) -> None:
    agent = Agent("a", model=ScriptedModel([[assistant_message("yes")]]))
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    await run_demo_loop(agent)
    assert len(agent.model.calls) == 1


async def test_the_log_has_steps_and_no_contents(capsys: Any) -> None:
    log = logging.getLogger("standfast")
    before = (log.level, list(log.handlers))
    try:
        enable_verbose_stdout_logging()
        enable_verbose_stdout_logging()
        await Runner.run(Agent("a", model=ScriptedModel([[assistant_message("the answer")]])), "the question")
    finally:
        log.level, log.handlers[:] = before[0], before[1]
        log.setLevel(before[0])
    printed = capsys.readouterr().out
    assert printed.count("AskModel") == 1
    assert "the question" not in printed
    assert "the answer" not in printed
