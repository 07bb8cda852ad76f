"""What a person reads before a decision or a change: overviews, steps of runs, histories, workers."""

from pathlib import Path

import pytest

from factories.server import open_server
from standfast import Agent, FunctionModel, NotFound, Runtime
from standfast.base.errors import Conflict, InvalidInput
from standfast.client import Client
from standfast.history import HistoryCompaction, Trigger
from standfast.server.answers import ListedSession
from standfast.server.metrics import ServerMetrics
from standfast.server.types import NamedDecision, Page
from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, SessionPool


@pytest.fixture
async def ann(server):
    async with Client(server.url, token="ann") as client:
        yield client


@pytest.fixture
async def olga(server):
    async with Client(server.url, token="olga") as client:
        yield client


async def wait_for_approval(client, session_id="talk"):
    run = await client.start("desk", "refund, please", session_id=session_id)
    [approval] = (await run.wait()).approvals
    return run, approval


async def test_the_overview_counts_what_the_client_may_see(server, ann, olga):
    _, approval = await wait_for_approval(ann)
    await (await ann.start("desk", "hi")).wait()
    for client in (ann, olga):
        overview = await client.overview()
        assert (overview.runs["waiting"], overview.approvals) == (1, 1)
        assert overview.oldest_approval_at == approval.requested_at
        assert overview.store.status == "ok"
    assert (await ann.overview()).pools is None
    async with Client(server.url, token="bob") as bob:
        overview = await bob.overview()
    assert (overview.runs, overview.approvals, overview.oldest_approval_at) == (
        dict.fromkeys(overview.runs, 0),
        0,
        None,
    )


async def test_a_step_of_a_run_shows_what_it_had_done_by_then(ann):
    run, approval = await wait_for_approval(ann)
    [asked] = [event.seq async for event in run.events() if event.type == "approval.requested"]
    step = (await ann.step(run.id, at=asked)).run
    assert [(call.tool, call.status, call.approval_id) for call in step.calls] == [("refund", "waiting", approval.id)]
    assert [one.kind for one in step.items] == ["given", "call"]
    assert (await ann.step(run.id, at=1)).run.items == []
    with pytest.raises(InvalidInput):
        await ann.step(run.id, at=1000)


async def test_a_run_is_forked_with_another_input(ann):
    run, _ = await wait_for_approval(ann)
    fork = await ann.fork(run.id, input="hello", session_id="other")
    assert (await fork.wait()).final_output == "hello there"
    assert (await fork.info()).parent == run.id
    with pytest.raises(NotFound):
        await ann.fork(run.id, agent="nobody")


async def test_the_tool_of_an_approval_has_the_schema_of_its_arguments(ann):
    _, approval = await wait_for_approval(ann)
    tool = await ann.find_tool(approval.id)
    assert tool.name == "refund"
    assert set(tool.schema["properties"]) == {"order", "amount"}


async def test_several_approvals_are_decided_in_one_request(server, ann):
    _, first = await wait_for_approval(ann, "one")
    _, second = await wait_for_approval(ann, "two")
    async with Client(server.url, token="eve") as eve:
        results = await eve.decide_each(
            [NamedDecision(approval_id=name, decision="reject") for name in (first.id, "approval_0", second.id)]
        )
    assert [(one.status, one.code) for one in results] == [
        ("rejected", None),
        (None, "not-found"),
        ("rejected", None),
    ]


async def test_a_view_lists_what_a_model_does_not_see_and_why(ann):
    session = ann.session("talk")
    call = {"type": "function_call", "call_id": "c", "name": "refund", "arguments": "{}"}
    await session.add_items([{"role": "user", "content": "hi"}, call])
    view = await session.view()
    assert [(entry.position, entry.hidden) for entry in view.entries] == [(0, None), (1, "call-without-output")]
    assert view.tokens == view.entries[0].tokens
    await session.rewind(1)
    earlier = await session.view(generation=view.generation)
    assert len(earlier.entries) == 2
    assert earlier.replaced_at is not None
    assert (await session.view()).replaced_at is None


async def test_the_branches_of_a_session_begin_with_the_same_items(server, ann, olga):
    session = ann.session("talk")
    await session.add_items([{"role": "user", "content": f"message {number}"} for number in range(4)])
    fork = await session.fork(at=3, session_id="fork")
    await fork.add_items([{"role": "user", "content": "another message"}])
    await fork.fork(at=2, session_id="fork-of-fork")
    await ann.session("other").add_items(await session.get_items())
    expected = {"fork": 3, "fork-of-fork": 2}
    for client in (ann, olga):
        assert {one.session_id: one.shared for one in await client.session("talk").branches()} == expected
    assert {one.session_id: one.shared for one in await fork.branches()} == {"talk": 3, "fork-of-fork": 2}
    await session.rewind(1)
    assert {one.session_id: one.shared for one in await session.branches()} == {"fork": 1, "fork-of-fork": 1}
    assert await ann.session("other").branches() == []
    async with Client(server.url, token="bob") as bob:
        with pytest.raises(NotFound):
            await bob.session("talk").branches()


async def test_a_session_is_compacted_after_a_look_and_restored(ann):
    session = ann.session("talk")
    await session.add_items([{"role": "user", "content": f"message {number}"} for number in range(6)])
    before = await session.get_items()
    preview = await session.preview_compaction(keep_last=2)
    assert (preview.replaced, preview.kept, preview.can_summarise) == (before[:4], 2, False)
    with pytest.raises(InvalidInput, match="summary"):
        await session.compact(keep_last=2)
    await session.compact("four messages", keep_last=2, expected=preview.head)
    after = await session.get_items()
    assert "four messages" in after[0]["content"]
    assert after[1:] == before[4:]
    with pytest.raises(Conflict):
        await session.compact("late", keep_last=0, expected=preview.head)
    await session.undo_compaction()
    assert await session.get_items() == before
    with pytest.raises(NotFound):
        await session.undo_compaction()


async def test_the_summary_is_made_by_the_compaction_of_the_runtime(tmp_path):
    policy = HistoryCompaction(summarise=lambda items: f"{len(items)} items", trigger=Trigger(items=100), keep_last=1)
    agent = Agent("desk", model=FunctionModel(lambda request: "hello"))
    async with (
        Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[agent], compaction=policy) as runtime,
        open_server(runtime=runtime) as server,
        Client(server.url, token="ann") as client,
    ):
        session = client.session("talk")
        await session.add_items([{"role": "user", "content": str(number)} for number in range(4)])
        assert (await session.preview_compaction()).can_summarise
        await session.compact()
        assert "3 items" in (await session.get_items())[0]["content"]


async def test_listed_sessions_have_their_sizes_if_asked_for(ann):
    await ann.session("talk").add_items([{"role": "user", "content": "hello"}])
    [plain] = await ann.store.sessions()
    [measured] = await ann.store.sessions(stats=True)
    assert plain.stats is None
    assert (measured.stats.items, measured.stats.tokens > 0, measured.stats.bytes > 5) == (1, True, True)
    assert await ann.store.sessions(since=plain.updated_at + 1) == []
    assert len(await ann.store.sessions(since=plain.updated_at)) == 1


async def test_sizes_follow_every_change_of_a_session(ann):
    async def read_sizes():
        page = await ann.connection.request("GET", "/sessions", Page[ListedSession], params={"stats": True})
        return [(one.session_id, one.stats.items) for one in page.items]

    session = ann.session("talk")
    await session.add_items([{"role": "user", "content": "hi"}] * 3)
    assert await read_sizes() == await read_sizes() == [("talk", 3)]
    await session.rewind(1)
    assert await read_sizes() == [("talk", 1)]
    await session.clear_session()
    await session.add_items([{"role": "user", "content": "hi"}] * 2)
    assert await read_sizes() == [("talk", 2)]


async def test_operators_prune_runs_and_workspaces(ann, olga):
    await (await ann.start("desk", "hi")).wait()
    await (await ann.start("desk", "hi")).wait()
    assert len((await olga.prune(keep=1)).deleted) == 1
    assert await olga.workspaces() == []
    assert (await olga.prune_workspaces(keep=1)).dropped == 0


async def test_workers_keys_and_the_audit_log_have_methods(tmp_path):
    async with (
        SessionPool(PoolConfig(min_idle=1, max_sessions=2)) as pool,
        open_server(f"sqlite:///{tmp_path / 'app.db'}", pools=[pool]) as server,
        Client(server.url, token="root") as root,
    ):
        [worker] = await root.admin.workers()
        assert (worker.place, worker.state) == ("idle", "idle")
        assert [one["idle"] for one in await root.admin.pools()] == [1]
        made = await root.admin.create_key("laptop", role="user", owner="ann")
        assert [key.id for key in await root.admin.keys()] == [made.key.id]
        await root.admin.revoke_key(made.key.id)
        assert {entry.action for entry in await root.admin.audit()} >= {"key created", "key revoked"}
        assert await root.admin.calls() == []


async def test_the_metrics_count_the_workers_of_all_pools():
    config = PoolConfig(session=SessionConfig(sandbox=SandboxPolicy(require="plain")), min_idle=1, max_sessions=2)
    async with SessionPool(config) as one, SessionPool(config) as two, open_server(pools=[one, two]) as server:
        metrics = (await server.sign_in("root").get("/metrics")).text
        assert 'standfast_pool_sessions{state="idle"} 2.0' in metrics.splitlines()


def test_every_metric_is_documented():
    page = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "production.md").read_text()
    metrics = [metric.name for metric in ServerMetrics().registry.collect()]
    assert metrics
    assert [name for name in metrics if f"`{name}" not in page] == []
