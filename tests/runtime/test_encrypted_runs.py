"""The runs of a runtime with a key are encrypted with it, together with their sessions."""

import secrets
from pathlib import Path

import asyncpg
import pytest

from factories.history import KEY, message
from factories.runtime import Refunds, event_types, only_approval, reply, text_agent, tool_calls, wait_for
from factories.stored_rows import execute, list_rows
from servers import dsn
from standfast import (
    Agent,
    CompactingSession,
    EncryptedSession,
    HistoryTampered,
    InvalidInput,
    RunTampered,
    Runtime,
    SessionEncrypted,
    WrongKey,
    function_tool,
)
from standfast.history import Trigger
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

NEW_KEY = "another key of good length, number two"
REFUND = tool_calls(("refund", {"order": "7", "amount": 5}, "c1"))


async def read_raw_bytes(url, postgres_server):
    """Everything that the database has on disk, its write-ahead log included."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return b"".join(part.read_bytes() for part in path.parent.glob(f"{path.name}*"))
    admin = await asyncpg.connect(dsn(postgres_server))
    try:
        await admin.execute("CHECKPOINT")
        folder = Path(await admin.fetchval("SHOW data_directory"))
    finally:
        await admin.close()
    return read_files(folder)


def read_files(folder):
    files = [part for part in folder.rglob("*") if part.is_file() and {"base", "pg_wal"} & set(part.parts)]
    return b"".join(part.read_bytes() for part in files)


class Words:
    """Words that occur nowhere else: what people, models and tools say in a run."""

    def __init__(self):
        self.said = {}

    def __getattr__(self, name):
        return self.said.setdefault(name, f"{name}{secrets.token_hex(8)}")


def talkative_agent(words):
    @function_tool(needs_approval=True)
    async def lookup(order: str) -> str:
        return words.output

    @function_tool(failure_error_function=lambda ctx, error: f"It failed: {error}")
    async def broken() -> str:
        raise RuntimeError(words.toolerror)

    steps = [
        [function_call("lookup", {"order": words.argument}, call_id="c1")],
        [function_call("lookup", {"order": words.rejected}, call_id="c2")],
        [function_call("broken", {}, call_id="c3")],
        [assistant_message(words.answer)],
    ]
    return Agent("support", instructions="Help.", tools=[lookup, broken], model=ScriptedModel(steps))


def failing_agent(words):
    def fail(call):
        raise RuntimeError(words.failure)

    return Agent("failing", model=ScriptedModel([ModelStep.respond(fail)]))


async def test_no_plaintext_of_the_conversation_is_on_the_disk(shared_url, postgres_server):
    words = Words()
    agents = [talkative_agent(words), failing_agent(words)]
    async with Runtime.open(shared_url, agents=agents, encryption_key=KEY) as runtime:
        run = await runtime.start(
            "support", words.question, session_id="s", context={"note": words.context}, key=words.key
        )
        await wait_for(run.wait())
        edited = {"order": words.edited}
        await runtime.decide((await only_approval(runtime)).id, "approve", arguments=edited, by="ann")
        await wait_for(run.wait())
        await runtime.decide((await only_approval(runtime)).id, "reject", message=words.refusal, by="ann", always=True)
        outcome = await wait_for(run.wait())
        assert outcome.final_output == words.answer
        failed = await wait_for((await runtime.start("failing", words.other)).wait())
        assert words.failure in failed.error.message
        data = await read_raw_bytes(shared_url, postgres_server)
        items = str(await runtime.session("s").get_items())
    assert b"run.queued" in data
    stored = {name for name, word in words.said.items() if word in items}
    assert stored >= {"question", "argument", "output", "refusal", "toolerror", "answer"}
    data += await read_raw_bytes(shared_url, postgres_server)
    assert [name for name, word in words.said.items() if word.encode() in data] == []
    assert len(words.said) >= 12


async def test_events_state_and_approvals_are_read_with_the_key(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "my order", session_id="s", key="request-1")
        assert [one.arguments for one in (await wait_for(run.wait())).approvals] == ['{"order":"7","amount":5}']
        await runtime.decide((await only_approval(runtime)).id, "approve", by="ann")
        assert (await wait_for(run.wait())).final_output == "done"
        events = [event async for event in run.events()]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events[0].data["input"] == "my order"
        assert (await runtime.state(run.id)).to_json()["run"]["input"] == "my order"
        assert (await runtime.start("support", "my order", session_id="s", key="request-1")).id == run.id
        assert len(await EncryptedSession("s", runtime.store.session("s"), KEY).get_items()) == 4
        assert (await runtime.store.describe("s")).encrypted
        info = await run.info()
        assert (info.agent, info.key, info.locked) == ("support", "request-1", False)


@pytest.mark.parametrize("key", [None, NEW_KEY])
async def test_without_the_key_a_run_is_listed_but_neither_read_nor_changed(shared_url, key):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "my order", session_id="s")
        await wait_for(run.wait())
        approval = await only_approval(runtime)
    before = await list_rows(shared_url, without=("standfast_leases",))
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=key) as runtime:
        [info] = await runtime.runs(status="waiting")
        assert (info.run_id, info.session_id, info.locked, info.agent, info.reason) == (run.id, "s", True, "", None)
        [listed] = await runtime.approvals(status="pending")
        assert (listed.id, listed.run_id, listed.locked, listed.arguments) == (approval.id, run.id, True, "")
        handle = await runtime.run(run.id)
        for attempt in (
            lambda: handle.wait(),
            lambda: event_types(handle),
            lambda: runtime.state(run.id),
            lambda: runtime.approval(approval.id),
            lambda: runtime.decide(approval.id, "approve"),
            lambda: runtime.cancel(run.id),
            lambda: runtime.resume(run.id),
            lambda: runtime.fork(run.id),
        ):
            with pytest.raises(WrongKey, match=r"encryption.key"):
                await wait_for(attempt())
        with pytest.raises(WrongKey if key else SessionEncrypted):
            await runtime.start("support", "hello", session_id="s")
    assert await list_rows(shared_url, without=("standfast_leases",)) == before
    async with Runtime.open(shared_url, agents=[refunds.agent(REFUND, reply("done"))], encryption_key=KEY) as runtime:
        await runtime.decide(approval.id, "reject")
        await wait_for((await runtime.run(run.id)).wait())


async def test_runtimes_with_and_without_a_key_leave_each_others_runs_alone(shared_url):
    refunds = Refunds()

    async def start_waiting(session_id, key):
        async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=key) as runtime:
            run = await runtime.start("support", "my order", session_id=session_id)
            await wait_for(run.wait())
            return run.id

    async def decide(run_id, key, others):
        """Approve where no runtime has the agent, so that the run stays runnable."""
        async with Runtime.open(shared_url, encryption_key=key) as runtime:
            [approval] = await runtime.approvals(run_id=run_id)
            await runtime.decide(approval.id, "approve")
            with pytest.raises(WrongKey if key is None else RunTampered):
                await (await runtime.run(others)).wait()

    plain, encrypted = await start_waiting("p", None), await start_waiting("e", KEY)
    await decide(plain, None, encrypted)
    await decide(encrypted, KEY, plain)
    for own, other, key in ((plain, encrypted, None), (encrypted, plain, KEY)):
        agent = refunds.agent(reply("done"))
        async with Runtime.open(shared_url, agents=[agent], encryption_key=key, lease=0.2) as runtime:
            assert (await wait_for((await runtime.run(own)).wait())).status == "completed"
            assert [info.run_id for info in await runtime.runs() if info.locked] == [other]


async def test_a_new_key_is_put_first_and_the_old_one_is_still_needed_for_what_it_wrote(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "my order", session_id="s", key="request-1")
        await wait_for(run.wait())
    async with Runtime.open(
        shared_url, agents=[refunds.agent(reply("done"))], encryption_key=[NEW_KEY, KEY]
    ) as runtime:
        assert (await runtime.start("support", "my order", session_id="s", key="request-1")).id == run.id
        await runtime.decide((await only_approval(runtime)).id, "approve")
        assert (await wait_for((await runtime.run(run.id)).wait())).final_output == "done"
    for key in (KEY, NEW_KEY):
        async with Runtime.open(shared_url, encryption_key=key) as runtime:
            with pytest.raises(WrongKey, match="missing key"):
                await runtime.state(run.id)
    async with Runtime.open(shared_url, agents=[text_agent("hello")], encryption_key=NEW_KEY) as runtime:
        other = await runtime.start("support", "hi", session_id="new")
        assert (await wait_for(other.wait())).final_output == "hello"


async def test_a_session_that_was_written_without_encryption_is_refused(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")], encryption_key=KEY) as runtime:
        await runtime.store.session("s").add_items([message("in clear")])
        with pytest.raises(HistoryTampered, match="without encryption"):
            await runtime.start("support", "hi", session_id="s")
        assert await runtime.runs() == []


async def test_a_plain_run_whose_session_was_encrypted_meanwhile_fails_and_adds_nothing(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "my order", session_id="s")
        await wait_for(run.wait())
        session = EncryptedSession("s", runtime.store.session("s"), KEY)
        await session.reseal()
        head = await session.head()
        await runtime.decide((await only_approval(runtime)).id, "approve")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code) == ("failed", "wrong-key")
        assert await session.head() == head


async def test_an_encrypted_run_whose_session_lost_its_seal_fails_and_adds_nothing(shared_url):
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "my order", session_id="s")
        await wait_for(run.wait())
        await execute(shared_url, "UPDATE standfast_sessions SET seal = NULL")
        head = (await runtime.store.describe("s")).head
        await runtime.decide((await only_approval(runtime)).id, "approve")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code) == ("failed", "history-tampered")
        assert (await runtime.store.describe("s")).head == head


async def test_a_fork_of_an_encrypted_run_is_encrypted(shared_url):
    async with Runtime.open(shared_url, agents=[text_agent("one", "two")], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "a question", session_id="s")
        await wait_for(run.wait())
        [step] = [event.seq async for event in run.events() if event.type == "input.taken"]
        fork = await runtime.fork(run.id, at=step, session_id="t")
        assert (await wait_for(fork.wait())).final_output == "two"
        assert (await fork.info()).parent == run.id
        contents = [item["content"] for item in await runtime.session("t").get_items()]
        assert contents[0] == "a question"
        assert contents[1][0]["text"] == "two"
    assert "a question" not in await list_rows(shared_url)
    async with Runtime.open(shared_url) as runtime:
        assert {info.run_id: info.parent for info in await runtime.runs()} == {run.id: None, fork.id: run.id}


async def test_a_run_is_rolled_back_and_the_session_stays_sealed(store_url):
    refunds = Refunds()
    agent = refunds.agent(reply("hello"), REFUND, reply("instead"))
    async with Runtime.open(store_url, agents=[agent], encryption_key=KEY) as runtime:
        await wait_for((await runtime.start("support", "hi", session_id="s")).wait())
        waiting = await runtime.start("support", "my order", session_id="s")
        await wait_for(waiting.wait())
        instead = await runtime.start("support", "never mind", session_id="s", on_busy="rollback")
        assert (await wait_for(instead.wait())).final_output == "instead"
        said = [item.get("content") for item in await runtime.session("s").get_items() if item.get("role") == "user"]
        assert said == ["hi", "never mind"]
        assert (await runtime.session("s").check()).ok


async def test_what_others_add_to_the_session_of_an_encrypted_run_is_kept(store_url):
    async def answer(call):
        session = EncryptedSession("s", runtime.store.session("s"), KEY)
        await session.add_items([message("from another process")])
        return [assistant_message("hello")]

    agent = Agent("support", model=ScriptedModel([ModelStep.respond(answer)]))
    async with Runtime.open(store_url, agents=[agent], encryption_key=KEY) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        assert (await wait_for(run.wait())).status == "completed"
        contents = [item["content"] for item in await runtime.session("s").get_items()]
        assert contents[:2] == ["hi", "from another process"]
        assert len(contents) == 3


async def test_a_key_that_started_a_run_before_its_session_was_encrypted_still_names_that_run(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        run = await runtime.start("support", "hi", session_id="s", key="request-1")
        await wait_for(run.wait())
        await EncryptedSession("s", runtime.store.session("s"), KEY).reseal()
        assert (await runtime.start("support", "hi", session_id="s", key="request-1")).id == run.id
        with pytest.raises(SessionEncrypted):
            await runtime.fork(run.id)
        assert [info.run_id for info in await runtime.runs()] == [run.id]


async def test_a_session_object_in_place_of_its_id_is_refused_with_what_to_pass(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        plain = runtime.store.session("s")
        compacting = CompactingSession(plain, summarise=lambda items: "short", trigger=Trigger(items=20))
        for session in (plain, compacting, EncryptedSession("s", plain, KEY)):
            with pytest.raises(InvalidInput, match=f"{type(session).__name__}.*session id"):
                await runtime.start("support", "hi", session_id=session)
        assert await runtime.runs() == []


async def test_a_key_that_is_too_short_is_refused_before_the_store_is_opened(tmp_path):
    path = tmp_path / "app.db"
    with pytest.raises(InvalidInput, match="characters"):
        async with Runtime.open(f"sqlite:///{path}", encryption_key="short"):
            pass
    assert not path.exists()
