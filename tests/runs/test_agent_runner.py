"""Runner calls the default agent runner, which a program may replace."""

from typing import Any

import pytest
from standfast.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from standfast import Agent, Runner
from standfast.testing import ScriptedModel, assistant_message


class CountingRunner(AgentRunner):
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def run(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        self.calls.append(f"run {kwargs['max_turns']}")
        return await super().run(starting_agent, input, **kwargs)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        self.calls.append("streamed")
        return super().run_streamed(starting_agent, input, **kwargs)


def make_agent() -> Agent[Any]:
    return Agent("a", model=ScriptedModel([[assistant_message("hi")]]))


@pytest.fixture
def counting() -> Any:
    runner = CountingRunner()
    set_default_agent_runner(runner)
    yield runner
    set_default_agent_runner(None)


async def test_the_runner_calls_the_default_agent_runner(counting: CountingRunner) -> None:
    assert get_default_agent_runner() is counting
    assert (await Runner.run(make_agent(), "x", max_turns=3)).final_output == "hi"
    result = Runner.run_streamed(make_agent(), "x")
    async for _ in result.stream_events():
        pass
    assert result.final_output == "hi"
    assert counting.calls == ["run 3", "streamed"]


def test_run_sync_calls_it_too(counting: CountingRunner) -> None:
    assert Runner.run_sync(make_agent(), "x").final_output == "hi"
    assert counting.calls == ["run 10"]


def test_none_restores_the_default(counting: CountingRunner) -> None:
    set_default_agent_runner(None)
    assert type(get_default_agent_runner()) is AgentRunner
