"""Runs are started once, and any process can read their outcome."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from shop import LEASE

from factories.runtime import Refunds, reply, text_agent, tool_calls, wait_for, wait_until
from standfast import (
    Agent,
    FunctionModel,
    InvalidInput,
    NotFound,
    RunConfig,
    RunKeyReused,
    Runtime,
    ToolContext,
    Unsupported,
    function_tool,
    open_store,
)
from standfast.history.store import Store
from standfast.runs import ContextNotSaved
from standfast.runtime._engine.leases import make_run_lease_name
from standfast.store.operations import AcquireLease, ReleaseLease, SaveRun
from standfast.testing import ModelStep, ScriptedModel


async def test_a_run_gives_its_final_output_and_fills_its_session(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        run = await runtime.start("support", "hi", session_id="user-7")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.final_output, outcome.error) == ("completed", "hello", None)
        items = await runtime.store.session("user-7").get_items()
        assert [item["role"] for item in items] == ["user", "assistant"]
        [info] = await runtime.runs()
        assert (info.run_id, info.agent, info.status, info.session_id) == (run.id, "support", "completed", "user-7")
        assert (await runtime.runs(status="waiting"), await runtime.runs(session_id="other")) == ([], [])


async def test_a_second_run_of_a_session_sees_the_items_of_the_first(store_url):
    agent = text_agent("hello", "you said hi")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        await wait_for((await runtime.start("support", "hi", session_id="s")).wait())
        await wait_for((await runtime.start("support", "what did I say?", session_id="s")).wait())
    assert [item.get("content") for item in agent.model.calls[1].input if item["role"] == "user"] == [
        "hi",
        "what did I say?",
    ]


async def test_the_final_output_has_the_type_that_the_agent_declares(store_url):
    class Answer(BaseModel):
        number: int

    agent = Agent("support", output_type=Answer, model=ScriptedModel([reply('{"number": 42}')]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi")
        assert (await wait_for(run.wait())).final_output == Answer(number=42)


async def test_a_tool_is_given_the_context_that_the_run_was_started_with(store_url):
    seen = []

    @function_tool
    async def look(ctx: ToolContext) -> str:
        seen.append(ctx.context)
        return "ok"

    agent = Agent("support", tools=[look], model=ScriptedModel([tool_calls(("look", {}, "c1")), reply("done")]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        await wait_for((await runtime.start("support", "hi", context={"user": 7})).wait())
        with pytest.raises(ContextNotSaved):
            await runtime.start("support", "hi", context=object())
    assert seen == [{"user": 7}]


async def test_the_same_key_gives_the_same_run_and_another_request_is_refused(store_url):
    agent = text_agent("hello")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        first = await runtime.start("support", "hi", key="req-1")
        again = await asyncio.gather(*(runtime.start("support", "hi", key="req-1") for _ in range(5)))
        assert {run.id for run in again} == {first.id}
        await wait_for(first.wait())
        assert (await runtime.start("support", "hi", key="req-1")).id == first.id
        with pytest.raises(RunKeyReused) as refused:
            await runtime.start("support", "something else", key="req-1")
        assert refused.value.run_id == first.id
    assert len(agent.model.calls) == 1


async def test_many_starts_with_one_key_at_once_make_one_run(store_url):
    agent = text_agent("hello")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        runs = await asyncio.gather(*(runtime.start("support", "hi", session_id="s", key="k") for _ in range(10)))
        assert len({run.id for run in runs}) == 1
        await wait_for(runs[0].wait())
        assert len(await runtime.runs()) == 1


async def test_what_cannot_be_started_is_refused_before_anything_is_stored(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        with pytest.raises(NotFound):
            await runtime.start("nobody", "hi")
        with pytest.raises(InvalidInput):
            await runtime.start("support", "hi", on_busy="hope")
        with pytest.raises(NotFound):
            await runtime.run("run_unknown")
        assert await runtime.runs() == []


async def test_a_failed_run_has_a_reason_and_can_be_resumed(store_url):
    model = ScriptedModel([ModelStep.raise_error(RuntimeError("no network")), reply("back")])
    async with Runtime.open(store_url, agents=[Agent("support", model=model)]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        failed = await wait_for(run.wait())
        assert (failed.status, failed.error.message) == ("failed", "no network")
        resumed = await runtime.resume(run.id)
        assert (await wait_for(resumed.wait())).final_output == "back"
        steps = (await run.info()).steps
        assert (await (await runtime.resume(run.id)).wait()).final_output == "back"
        assert (await run.info()).steps == steps


async def test_two_agents_with_one_name_are_refused(store_url):
    with pytest.raises(InvalidInput):
        async with Runtime.open(store_url, agents=[text_agent("a"), text_agent("b")]):
            pass


async def test_a_store_that_keeps_no_runs_is_refused(redis_url):
    with pytest.raises(Unsupported):
        async with Runtime.open(redis_url, agents=[text_agent("a")]):
            pass


async def test_the_state_of_a_run_is_portable(store_url):
    refunds = Refunds()
    agent = refunds.agent()
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "refund 7")
        await wait_for(run.wait())
        state = await runtime.state(run.id)
        assert [item.call_id for item in state.get_interruptions()] == ["c1"]
        assert state.to_json()["run"]["run_id"] == run.id


async def test_an_error_of_the_programs_own_code_is_logged_with_its_traceback(store_url, caplog):
    def broken(request):
        raise KeyError("prices")

    async with Runtime.open(store_url, agents=[Agent("support", model=FunctionModel(broken))]) as runtime:
        run = await runtime.start("support", "hi")
        assert (await wait_for(run.wait())).status == "failed"
    [logged] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert run.id in logged.getMessage()
    assert "in broken" in caplog.text


async def test_an_error_is_logged_by_the_attempt_that_ends_the_run(shared_url, caplog):
    asked, opened = [], []

    async def broken(request):
        asked.append(request)
        if len(asked) == 1:  # the process is so slow that another one takes the lease
            [runtime] = opened
            lease = make_run_lease_name((await runtime.runs())[0].run_id)
            backend = runtime.store.backend
            await backend.commit(*(ReleaseLease(name=lease, token=token) for token in range(1, 10)))
            await backend.commit(AcquireLease(name=lease, owner="another process", ttl=0.001))
        raise KeyError("prices")

    agent = Agent("support", model=FunctionModel(broken))
    async with Runtime.open(shared_url, agents=[agent], lease=LEASE) as runtime:
        opened.append(runtime)
        run = await runtime.start("support", "hi")
        assert (await wait_for(run.wait())).status == "failed"
    assert len(asked) == 2
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


class Bare(Exception):
    code = None


class Numbered(Exception):
    code = 429


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Coded(Exception):
    code: Any = ("a", {"b": 1})


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Bare("no code"), "error", "no code"),
        (Numbered("slow down"), "429", "slow down"),
        (Wordless(), "error", "Wordless"),
        (Coded("odd"), "error", "odd"),
        (Numbered(), "429", "Numbered"),
        (ValueError(), "error", "ValueError"),
        (ValueError("half \ud800 of a pair"), "error", "half \ufffd of a pair"),
        (ValueError("x" * 5_000_000), "error", "x" * 10_000 + " [4990000 more characters]"),
        (ValueError("nul \0 byte"), "error", "nul \0 byte"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_a_run_that_failed_by_any_error_can_be_read(store_url, error, code, message):
    def broken(request):
        raise error

    async with Runtime.open(store_url, agents=[Agent("support", model=FunctionModel(broken))]) as runtime:
        run = await runtime.start("support", "hi")
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.error.code, outcome.error.message) == ("failed", code, message)
        [info] = await runtime.runs()
        assert info.reason.message == message
        [failed] = [event async for event in run.events() if event.type == "run.failed"]
        assert failed.data["problem"]["code"] == code
        assert (await runtime.state(run.id)).run_id == run.id


async def test_a_model_that_is_cancelled_by_itself_fails_the_run_once(store_url):
    calls = []

    def cancelled(request):
        calls.append(request)
        raise asyncio.CancelledError("by a library")

    async with Runtime.open(store_url, agents=[Agent("support", model=FunctionModel(cancelled))]) as runtime:
        outcome = await wait_for((await runtime.start("support", "hi")).wait())
        assert (outcome.status, outcome.error.message) == ("failed", "by a library")
    assert len(calls) == 1


async def test_a_failure_that_was_stored_without_a_code_can_be_read(store_url):
    def broken(request):
        raise ValueError("no code")

    async with Runtime.open(store_url, agents=[Agent("support", model=FunctionModel(broken))]) as runtime:
        run = await runtime.start("support", "hi")
        await wait_for(run.wait())
        backend = runtime.store.backend
        record = await backend.get_run(run.id)
        older = record.data.replace(b'"code":"error"', b'"code":null')
        assert older != record.data
        await backend.commit(
            SaveRun(run_id=run.id, expected=record.revision, status="failed", data=older, session_id=None)
        )
        assert (await run.wait()).error.code == "error"
        assert [info.reason.code for info in await runtime.runs()] == ["error"]


async def test_an_error_that_a_tool_raised_is_logged_with_its_traceback(store_url, caplog):
    @function_tool(failure_error_function=None)
    def look() -> str:
        raise KeyError("prices")

    agent = Agent("support", tools=[look], model=ScriptedModel([tool_calls(("look", {}, "c1"))]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        assert (await wait_for((await runtime.start("support", "hi")).wait())).status == "failed"
    assert "in look" in caplog.text


async def test_a_failure_with_a_complete_message_is_not_logged(store_url, caplog):
    agent = Agent("support", tools=[Refunds().tool], model=ScriptedModel([tool_calls(("other", {}, "c1"))]))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        assert (await wait_for((await runtime.start("support", "hi")).wait())).status == "failed"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_agent_that_a_runtime_does_not_have_is_refused_with_those_it_has(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        with pytest.raises(NotFound, match=r"there is no agent 'suport'; this runtime has 'support'"):
            await runtime.start("suport", "hi")
        with pytest.raises(InvalidInput, match="'support', not the Agent"):
            await runtime.start(text_agent("hello"), "hi")
    async with Runtime.open(store_url, agents=[]) as runtime:
        with pytest.raises(NotFound, match="this runtime has none"):
            await runtime.start("support", "hi")


class LateFirstRead:
    """A backend whose first answer about a run comes when the run has ended."""

    def __init__(self, backend):
        self.backend, self.is_first = backend, True

    def __getattr__(self, name):
        return getattr(self.backend, name)

    async def get_run(self, run_id):
        record = await self.backend.get_run(run_id)
        if record is not None and self.is_first:
            self.is_first = False

            async def has_ended():
                return (await self.backend.get_run(run_id)).status == "failed"

            await wait_until(has_ended)
            record = await self.backend.get_run(run_id)
        return record


async def test_a_run_that_the_recovery_loop_has_executed_is_not_started_again():
    def broken(request):
        raise KeyError("prices")

    agents = [Agent("support", model=FunctionModel(broken))]
    async with open_store("memory://") as store, Runtime.open(Store(LateFirstRead(store.backend)), agents=agents) as rt:
        run = await rt.start("support", "hi")
        await wait_for(run.wait())
        assert [event.type async for event in run.events()].count("run.failed") == 1


@pytest.mark.parametrize("key", [None, "a key of good length, number one"], ids=["plain", "encrypted"])
async def test_a_callback_that_reconstructs_the_items_stores_none_of_them_again(store_url, key):
    def rebuild(history, new):
        return [{"type": "message", **item} if "role" in item else dict(item) for item in history + new]

    config = RunConfig(session_input_callback=rebuild)
    agent = text_agent("one", "two", "three")
    async with Runtime.open(store_url, agents=[agent], run_config=config, encryption_key=key) as runtime:
        for question in ("1", "2", "3"):
            run = await runtime.start("support", question, session_id="s")
            assert (await wait_for(run.wait())).status == "completed"
        items = await runtime.session("s").get_items()
    assert [item["content"] for item in items if item["role"] == "user"] == ["1", "2", "3"]
    assert len(items) == 6
    assert [len(call.input) for call in agent.model.calls] == [1, 3, 5]
