"""The client: the methods of a runtime, over HTTP."""

import pytest

from factories.server import make_agent, open_server
from standfast import (
    ApprovalSettled,
    FunctionModel,
    HistoryMoved,
    InvalidInput,
    NotFound,
    RunKeyReused,
    Runner,
)
from standfast.client import Client, ServerUnreachable
from standfast.server import Forbidden, Limits, Unauthenticated


@pytest.fixture
async def ann(server):
    async with Client(server.url, token="ann") as client:
        yield client


@pytest.fixture
async def eve(server):
    async with Client(server.url, token="eve") as client:
        yield client


async def test_a_run_is_started_approved_and_awaited(ann, eve):
    run = await ann.start("desk", "refund, please", session_id="s", key="k")
    outcome = await run.wait()
    assert outcome.status == "waiting"
    [approval] = await eve.approvals(status="pending")
    assert approval == outcome.approvals[0]
    assert (await eve.decide(approval.id, "approve")).decided_by == "eve"
    assert (await run.wait()).final_output == "done: refunded 5 for A7"
    seen = [event.seq async for event in run.events() if not event.live]
    assert seen == list(range(1, (await run.info()).steps + 1))
    assert (await run.state())["$schemaVersion"]
    assert [one.run_id for one in await ann.runs(status="completed")] == [run.id]


# What str.splitlines takes for line ends. Only those of HTTP separate events.
LINE_ENDS = "\x0b \x0c \x1c \x1d \x1e \x85 \u2028 \u2029 \r \n"


async def test_what_a_model_says_does_not_end_the_lines_of_an_event_or_an_export(ann, server):
    said = "".join(f'{end}data: {{"forged": true}}{end}{end}id: 99{end}' for end in LINE_ENDS.split(" ")) * 3000
    server.runtime.agents["desk"].model = FunctionModel(lambda _: said)
    run = await ann.start("desk", "hi", session_id="lines")
    assert (await run.wait()).final_output == said
    events = [event async for event in run.events()]
    assert all("forged" not in event.data for event in events)
    assert said in [event.data["items"][0]["content"][0]["text"] for event in events if event.type == "model.answered"]
    exported = [line async for line in await ann.store.export("lines")]
    copy = await ann.store.import_([exported[0].replace('"lines"', '"copy"'), *exported[1:]])
    assert await copy.get_items() == await ann.session("lines").get_items()


async def test_a_fork_belongs_to_the_same_owner(ann, server):
    run = await ann.start("desk", "hi")
    await run.wait()
    forked = await ann.fork(run.id, at=2)
    assert (await forked.wait()).final_output == "hello there"
    session = ann.session((await forked.info()).session_id)
    child = await session.fork(at=1)
    assert (await ann.store.describe(child.session_id)).owner == "ann"


async def test_errors_are_those_of_the_runtime(ann, eve, server):
    with pytest.raises(NotFound) as missing:
        await ann.run("run_x")
    assert (missing.value.what, missing.value.name) == ("run", "run_x")
    await ann.start("desk", "hi", key="k")
    with pytest.raises(RunKeyReused):
        await ann.start("desk", "bye", key="k")
    with pytest.raises(InvalidInput):
        await ann.start("desk", "hi", on_busy="never")
    run = await ann.start("desk", "refund")
    [approval] = (await run.wait()).approvals
    with pytest.raises(Forbidden):
        await ann.decide(approval.id, "approve")
    await eve.decide(approval.id, "reject", message="no")
    with pytest.raises(ApprovalSettled) as settled:
        await eve.decide(approval.id, "approve")
    assert (settled.value.status, settled.value.by) == ("rejected", "eve")
    async with Client(server.url, token="mallory") as mallory:
        with pytest.raises(Unauthenticated):
            await mallory.runs()


async def test_repeating_ones_own_decision_changes_nothing(ann, eve):
    run = await ann.start("desk", "refund")
    [approval] = (await run.wait()).approvals
    first = await eve.decide(approval.id, "approve")
    assert await eve.decide(approval.id, "approve") == first


async def test_the_error_for_an_unreachable_server_names_it():
    async with Client("http://127.0.0.1:9", token="t") as client:
        with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:9"):
            await client.delete("run_1")


async def test_a_remote_session_is_a_session(ann):
    session = ann.session("talk/1")
    assert await session.get_items() == []
    await Runner.run(make_agent(), "hi", session=session)
    assert [item.get("role") for item in await session.get_items()] == ["user", "assistant"]
    head = await session.head()
    await session.add_items([{"role": "user", "content": "x"}], expected=head)
    with pytest.raises(HistoryMoved):
        await session.add_items([{"role": "user", "content": "y"}], expected=head)
    assert (await session.pop_item())["content"] == "x"
    assert (await session.rewind(1)).length == 1
    assert len(await session.generations()) > 0
    assert (await session.check()).ok
    assert (await ann.store.describe("talk/1")).owner == "ann"
    lines = [line async for line in await ann.store.export("talk/1")]
    await session.clear_session()
    assert await session.get_items() == []
    await ann.store.delete("talk/1")
    await ann.store.import_(lines)
    assert (await ann.store.describe("talk/1")).owner == "ann"
    assert len(await session.get_items()) == 1


async def test_approvals_are_followed_through_their_changes(ann, eve):
    run = await ann.start("desk", "refund")
    [approval] = (await run.wait()).approvals
    changes = eve.follow_approvals()
    assert (await anext(changes)).approval == approval
    await eve.decide(approval.id, "reject", message="no")
    decided = await anext(changes)
    assert (decided.approval.id, decided.approval.status) == (approval.id, "rejected")
    await changes.aclose()
    other = await ann.start("desk", "refund again")
    await other.wait()
    later = eve.follow_approvals(after=decided.cursor)
    assert (await anext(later)).approval.run_id == other.id
    await later.aclose()
    foreign = ann.follow_approvals()
    assert (await anext(foreign)).approval.run_id == other.id
    await foreign.aclose()


async def test_a_client_over_the_rate_limit_waits_and_continues(tmp_path):
    limits = Limits(requests_per_second=4)  # and 20 at once
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", limits=limits) as server:
        ann = server.sign_in("ann")
        while (await ann.get("/info")).status_code == 200:
            pass
        async with Client(server.url, token="ann") as client:
            run = await client.start("desk", "hi")
            assert (await run.wait()).final_output == "hello there"
            await client.session("s").add_items([{"role": "user", "content": "hi"}])
            assert len(await client.session("s").get_items()) == 1
