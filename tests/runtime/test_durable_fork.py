"""A new run from an earlier step."""

import pytest

from factories.runtime import Refunds, only_approval, reply, text_agent, tool_calls, wait_for
from standfast import Agent, FunctionModel, InvalidInput, NotFound, Runtime, Store, function_tool, open_store
from standfast.testing import ScriptedModel
from standfast.testing.sessions.fixtures import InterferingBackend


async def test_a_fork_continues_from_an_earlier_step_with_a_session_of_its_own(store_url):
    agent = text_agent("hello", "first answer", "second answer")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        await wait_for((await runtime.start("support", "hi", session_id="s")).wait())
        run = await runtime.start("support", "question", session_id="s")
        await wait_for(run.wait())
        [asked] = [event.seq async for event in run.events() if event.type == "input.taken"]
        fork = await runtime.fork(run.id, at=asked)
        outcome = await wait_for(fork.wait())
        info = await fork.info()
        assert (outcome.final_output, info.parent) == ("second answer", run.id)
        assert info.session_id != "s"
        mine = await runtime.store.session(info.session_id).get_items()
        theirs = await runtime.store.session("s").get_items()
        assert (len(mine), mine[:3]) == (4, theirs[:3])
        assert mine[3]["content"][0]["text"] == "second answer"
    assert [item.get("content") for item in agent.model.calls[2].input if item["role"] == "user"] == ["hi", "question"]


async def test_a_fork_from_the_end_of_a_nested_run_has_its_output(store_url):
    helper = Agent("helper", model=FunctionModel(lambda request: "helped"))
    tool = helper.as_tool("help", "Helps.")

    def rules(request):
        last = request.input[-1]
        return last["output"] if "output" in last else FunctionModel.call("help", input="please")

    agent = Agent("outer", tools=[tool], model=FunctionModel(rules))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("outer", "hi")
        assert (await wait_for(run.wait())).final_output == "helped"
        ended = [event.seq async for event in run.events() if event.type == "step.finished"]
        fork = await runtime.fork(run.id, at=ended[0])
        assert (await wait_for(fork.wait())).final_output == "helped"


async def test_a_fork_of_a_waiting_run_requests_again_and_has_keys_of_its_own(store_url):
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, session_id="s-2")
        [asked] = (await wait_for(fork.wait())).approvals
        assert (asked.run_id, asked.session_id) == (fork.id, "s-2")
        await runtime.decide(asked.id, "approve")
        assert (await wait_for(fork.wait())).final_output == "done"
        assert (await run.info()).status == "waiting"
        assert (await only_approval(runtime)).run_id == run.id
    assert [key for _, key in refunds.made] == [f"{fork.id}:c1"]


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
async def test_an_approval_of_a_call_is_not_valid_in_forks(store_url, nested, edited):
    refunds = Refunds()
    agent = refunds.agent(name="cashier" if nested else "support")
    if nested:
        script = [tool_calls(("ask", {"input": "go"}, "o1")), reply("all done")]
        agent = Agent("support", tools=[agent.as_tool("ask", "")], model=ScriptedModel(script))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        arguments = {"order": "7", "amount": 4} if edited else None
        await runtime.decide((await only_approval(runtime)).id, "approve", arguments=arguments)
        assert (await wait_for(run.wait())).status == "completed"
        events = [event async for event in run.events()]
        [decided] = [event.seq for event in events if event.type == "approval.decided"]
        made = max(event.seq for event in events if event.type == "calls.started")
        kinds = []
        for step in range(decided, made + 1):
            outcome = await wait_for((await runtime.fork(run.id, at=step)).wait())
            assert outcome.status == "waiting"
            kinds.append(outcome.approvals[0].kind)
            assert ("4" in outcome.approvals[0].arguments) == (edited and kinds[-1] == "uncertain")
        assert set(kinds[:-1]) == {"approval"}
        assert kinds[-1] == "uncertain"
    assert len(refunds.made) == 1


async def test_the_permission_to_repeat_a_call_is_not_valid_in_forks(store_url):
    refunds = Refunds(failure_error_function=None)
    agent = refunds.agent()
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        await runtime.decide((await only_approval(runtime)).id, "approve")
        await wait_for(run.wait())
        [started] = [event.seq async for event in run.events() if event.type == "calls.started"]
        fork = await runtime.fork(run.id, at=started, session_id="f")
        await wait_for(fork.wait())
        await runtime.decide((await only_approval(runtime)).id, "again")
        await wait_for(fork.wait())
        [again] = [event.seq async for event in fork.events() if event.type == "approval.decided"]
        outcome = await wait_for((await runtime.fork(fork.id, at=again)).wait())
        assert [approval.kind for approval in outcome.approvals] == ["uncertain"]
    assert len(refunds.made) == 2


async def test_an_unknown_step_is_refused(store_url):
    async with Runtime.open(store_url, agents=[text_agent("hello")]) as runtime:
        run = await runtime.start("support", "hi")
        await wait_for(run.wait())
        for step in (0, 1000, True, "x"):
            with pytest.raises(InvalidInput):
                await runtime.fork(run.id, at=step)


async def test_a_fork_of_a_fork_continues_as_well(store_url):
    agent = text_agent("one", "two", "three")
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, at=3)
        await wait_for(fork.wait())
        again = await runtime.fork(fork.id, at=1)
        assert (await wait_for(again.wait())).final_output == "three"
        assert (await runtime.state(again.id)).data.input == "hi"


async def test_a_fork_that_fails_leaves_no_session_behind(store_url):
    agent = text_agent("one", "two")
    async with open_store(store_url) as store, Runtime.open(store, agents=[agent]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        raced = InterferingBackend(store.backend, after_method="read_journal", interfere=lambda: runtime.delete(run.id))
        async with Runtime.open(Store(raced), agents=[]) as other:
            with pytest.raises(NotFound):
                await other.fork(run.id, session_id="s-2")
        assert [info.session_id for info in await store.sessions()] == ["s"]


def report_agent(seen):
    """An agent that looks a number up and reports it."""

    @function_tool
    def look_up(name: str) -> str:
        return f"{name} is 1"

    def respond(request):
        seen.append(request.input)
        last = request.input[-1]
        if last.get("type") == "function_call_output":
            return f"report: {last['output']}"
        return FunctionModel.call("look_up", name=str(last["content"]))

    return Agent("reporter", tools=[look_up], model=FunctionModel(respond))


async def test_a_fork_with_another_input_begins_where_the_run_began(store_url):
    seen = []
    async with Runtime.open(store_url, agents=[report_agent(seen)]) as runtime:
        await wait_for((await runtime.start("reporter", "first", session_id="s")).wait())
        run = await runtime.start("reporter", "x", session_id="s")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, input="y")
        assert (await wait_for(fork.wait())).final_output == "report: y is 1"
        info = await fork.info()
        items = await runtime.session(info.session_id).get_items()
        assert [item["content"] for item in items if item.get("role") == "user"] == ["first", "y"]
        assert info.parent == run.id
        with pytest.raises(InvalidInput, match="step 1"):
            await runtime.fork(run.id, input="y", at=4)


async def test_a_fork_with_another_tool_output_continues_with_it(store_url):
    seen = []
    async with Runtime.open(store_url, agents=[report_agent(seen)]) as runtime:
        await wait_for((await runtime.start("reporter", "first", session_id="s")).wait())
        run = await runtime.start("reporter", "x", session_id="s")
        await wait_for(run.wait())
        [made] = [event async for event in run.events() if event.type == "calls.made"]
        [call_id] = [call["call_id"] for call in made.data["calls"]]
        count = len(seen)
        fork = await runtime.fork(run.id, at=made.seq, outputs={call_id: "x is 2"})
        assert (await wait_for(fork.wait())).final_output == "report: x is 2"
        assert len(seen) == count + 1
        items = await runtime.session((await fork.info()).session_id).get_items()
        outputs = [item["output"] for item in items if item.get("type") == "function_call_output"]
        assert outputs == ["first is 1", "x is 2"]
        assert await runtime.session("s").get_items() != items
        with pytest.raises(InvalidInput, match=r"calls\.made"):
            await runtime.fork(run.id, outputs={call_id: "late"})
        with pytest.raises(InvalidInput, match="'nocall'"):
            await runtime.fork(run.id, at=made.seq, outputs={"nocall": "x"})


async def test_an_output_that_the_session_has_already_is_replaced_in_the_fork(store_url):
    """The run waits for an approval of its second call: the output of the first is stored, unseen by the model."""

    @function_tool
    def look_up(name: str) -> str:
        return f"{name} is 1"

    @function_tool(needs_approval=True)
    def send(text: str) -> str:
        return "sent"

    def respond(request):
        outputs = [item["output"] for item in request.input if item.get("type") == "function_call_output"]
        if outputs:
            return f"report: {', '.join(outputs)}"
        return [FunctionModel.call("look_up", name="x"), FunctionModel.call("send", text="t")]

    agent = Agent("reporter", tools=[look_up, send], model=FunctionModel(respond))
    async with Runtime.open(store_url, agents=[agent]) as runtime:
        run = await runtime.start("reporter", "go", session_id="s")
        await wait_for(run.wait())
        [made] = [event async for event in run.events() if event.type == "calls.made"]
        call_id = next(call["call_id"] for call in made.data["calls"] if call["tool"] == "look_up")
        fork = await runtime.fork(run.id, outputs={call_id: "x is 2"})
        await wait_for(fork.wait())
        [asked] = await runtime.approvals(run_id=fork.id)
        await runtime.decide(asked.id, "approve")
        assert (await wait_for(fork.wait())).final_output == "report: x is 2, sent"
        items = await runtime.session((await fork.info()).session_id).get_items()
        assert [item["output"] for item in items if item.get("type") == "function_call_output"] == ["x is 2", "sent"]


async def test_a_fork_continues_with_another_agent(store_url):
    other = Agent("other", model=FunctionModel(lambda request: "other answer"))
    async with Runtime.open(store_url, agents=[text_agent("hello"), other]) as runtime:
        run = await runtime.start("support", "hi", session_id="s")
        await wait_for(run.wait())
        fork = await runtime.fork(run.id, at=1, agent="other")
        assert (await wait_for(fork.wait())).final_output == "other answer"
        with pytest.raises(NotFound):
            await runtime.fork(run.id, at=1, agent="nobody")


async def test_a_step_shows_what_the_run_had_done_by_then(store_url):
    async with Runtime.open(store_url, agents=[report_agent([])]) as runtime:
        await wait_for((await runtime.start("reporter", "first", session_id="s")).wait())
        run = await runtime.start("reporter", "x", session_id="s")
        await wait_for(run.wait())
        events = [event async for event in run.events()]
        [made] = [event for event in events if event.type == "calls.made"]
        before, after = await runtime.step(run.id, at=made.seq - 1), await runtime.step(run.id, at=made.seq)
        assert [one.kind for one in before.items] == ["given", "call"]
        assert [(call.tool, call.status) for call in before.calls] == [("look_up", "started")]
        assert after.items[-1].item["output"] == "x is 1"
        assert (after.history_length, after.turn) == (4, 1)
        assert (await runtime.step(run.id)).step == events[-1].seq
        assert (await runtime.step(run.id, at=1)).items == []
