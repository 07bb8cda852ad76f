"""Runs that version 0.1.0 wrote, under the former name of the project, are read and resumed."""

import gzip
import json
from pathlib import Path

import pytest

from factories.runtime import wait_for
from standfast import Agent, FunctionModel, Runner, RunState, Runtime, Store, function_tool
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend

GOLDEN = Path(__file__).parent.parent / "golden"
RUNS = json.loads((GOLDEN / "runs.json").read_text())


@function_tool(needs_approval=True)
def refund(order: str) -> str:
    return f"refunded {order}"


@function_tool
def count(n: int) -> str:
    return str(n)


def outputs(request):
    return [item["output"] for item in request.input if item.get("type") == "function_call_output"]


def support():
    def respond(request):
        done = outputs(request)
        return f"done: {done[-1]}" if done else FunctionModel.call("refund", order="7")

    return Agent("support", tools=[refund], model=FunctionModel(respond))


def counter():
    def respond(request):
        counted = len(outputs(request))
        if counted < 60:
            return FunctionModel.call("count", n=counted)
        return FunctionModel.call("refund", order="60") if counted == 60 else "counted to 61"

    return Agent("counter", tools=[count, refund], model=FunctionModel(respond))


@pytest.fixture
async def runtime(tmp_path):
    path = tmp_path / "holdfast.db"
    path.write_bytes(gzip.decompress((GOLDEN / "holdfast.db.gz").read_bytes()))
    backend = SqliteBackend(path, names=TableNames("holdfast_sessions", "holdfast_items"))
    try:
        async with Runtime.open(Store(backend), agents=[support(), counter()]) as runtime:
            yield runtime
    finally:
        await backend.close()


async def test_a_completed_run_has_its_output_and_events(runtime):
    run = await runtime.run(RUNS["ended"])
    assert (await run.wait()).status == "completed"
    events = [event async for event in run.events()]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "run.completed"


@pytest.mark.parametrize(
    ("name", "order", "final"), [("paused", "7", "done: refunded 7"), ("long", "60", "counted to 61")]
)
async def test_a_waiting_run_is_approved_and_resumed(runtime, name, order, final):
    run = await runtime.run(RUNS[name])
    [approval] = (await wait_for(run.wait())).approvals
    assert json.loads(approval.arguments) == {"order": order}
    await runtime.decide(approval.id, "approve", by="ann")
    assert (await wait_for(run.wait())).final_output == final
    session = runtime.store.session((await run.info()).session_id)
    assert (await session.check()).ok
    assert (await session.get_items())[-2]["output"] == f"refunded {order}"


async def test_a_long_run_was_written_with_a_snapshot(runtime):
    record = await runtime.store.backend.get_run(RUNS["long"])
    assert record.journal_length >= 300
    assert record.event_length >= 1
    assert len((await runtime.state(RUNS["long"])).data.transcript) > 120


async def test_a_saved_state_is_loaded_and_resumed(runtime):
    agent, session = support(), runtime.store.session("paused")
    state = await RunState.from_string(agent, (GOLDEN / "state.json").read_text())
    assert state.run_id == RUNS["paused"]
    [item] = state.get_interruptions()
    state.approve(item)
    result = await Runner.run(agent, state, session=session)
    assert result.final_output == "done: refunded 7"
