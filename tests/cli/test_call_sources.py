"""What of a file can be called: realtime agents, and functions that say that they return a runner."""

import sys
from contextlib import AsyncExitStack

from standfast import Agent, FunctionModel
from standfast.cli.commands._agent_loader import load_agents
from standfast.realtime import RealtimeAgent, RealtimeRunner

SOURCE = """
from standfast import Agent, FunctionModel
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner

desk = RealtimeAgent(name="front desk")
{agents}

def rehearsal() -> RealtimeRunner:
    return RealtimeRunner(desk, model=LocalRealtimeModel(["Good morning."]))


def with_parameters(name: str) -> RealtimeRunner:
    raise AssertionError


def something_else() -> str:
    raise AssertionError


def of_a_missing_type() -> "Missing":
    raise AssertionError
"""


async def load(tmp_path, agents=""):
    path = tmp_path / "calls_of_a_test.py"
    path.write_text(SOURCE.format(agents=agents))
    calls = {}
    async with AsyncExitStack() as stack:
        loaded = await load_agents([str(path)], stack, calls=calls)
    del sys.modules["calls_of_a_test"]
    return loaded, calls


async def test_agents_and_functions_that_return_a_runner_can_be_called(tmp_path):
    loaded, calls = await load(tmp_path)
    assert loaded == []
    assert set(calls) == {"front desk", "rehearsal"}
    assert isinstance(calls["front desk"], RealtimeAgent)
    assert isinstance(calls["rehearsal"](), RealtimeRunner)


async def test_a_file_may_have_agents_of_both_kinds(tmp_path):
    loaded, calls = await load(tmp_path, "clerk = Agent('clerk', model=FunctionModel(lambda request: 'hi'))")
    assert [type(one) for one in loaded] == [Agent]
    assert isinstance(loaded[0].model, FunctionModel)
    assert "front desk" in calls
