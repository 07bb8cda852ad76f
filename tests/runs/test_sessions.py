"""The input of the model, the stored items and the whole history are three different things."""

import asyncio
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from factories.runs import RUN_MODES, MinimalSession, Scenario, approve_all, run_agent
from standfast import (
    Agent,
    EncryptedSession,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunState,
    SessionSettings,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
    output_guardrail,
)
from standfast.agents.handoff_filters import remove_all_tools
from standfast.testing import ScriptedModel, assistant_message, function_call


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


HISTORY = [user("old q"), make_message("old a"), user("again"), make_message("yes")]


@function_tool(idempotent=True, needs_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


@output_guardrail
async def refuse(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput("no", True)


def texts(items: Any) -> list[str]:
    found = []
    for item in items:
        content = item.get("content", item.get("type"))
        found.append(content if isinstance(content, str) else content[0]["text"])
    return found


CALLBACKS = {
    "copies": (lambda history, new: deepcopy(history + new), ["old q", "old a", "again", "yes", "again"], ["again"]),
    "reorders": (lambda history, new: new + history[::-1], ["again", "yes", "again", "old a", "old q"], ["again"]),
    "filters": (lambda history, new: history[-1:] + new, ["yes", "again"], ["again"]),
    "duplicates": (lambda history, new: history[:1] * 2 + new + new, ["old q", "old q", "again", "again"], ["again"]),
    "rebuilds": (
        lambda history, new: [dict(item) for item in history[2:]] + [dict(item) for item in new],
        ["again", "yes", "again"],
        ["again"],
    ),
    "rebuilds only the new": (lambda history, new: [user("again")], ["again"], ["again"]),
    "rewrites the new": (lambda history, new: [*history[:1], new[0] | user("AGAIN")], ["old q", "AGAIN"], ["AGAIN"]),
    "rewrites the old": (
        lambda history, new: [make_message("summary"), *new],
        ["summary", "again"],
        ["summary", "again"],
    ),
    "drops the new": (lambda history, new: history, ["old q", "old a", "again", "yes"], []),
}


@pytest.mark.parametrize("way", RUN_MODES)
@pytest.mark.parametrize("name", CALLBACKS)
async def test_a_callback_arranges_the_input_without_storing_anything_twice(name: str, way: str) -> None:
    callback, shown, stored = CALLBACKS[name]
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    config = RunConfig(session_input_callback=callback)
    agent = Agent("a", tools=[pay], model=model)
    scenario = Scenario(agent, model, input="again", decide=approve_all, options={"run_config": config})
    session = MinimalSession(items=HISTORY)
    await RUN_MODES[way](scenario, session)
    assert texts(model.first_call.input) == shown
    assert texts(model.last_call.input) == [*shown, "function_call", "function_call_output"]
    assert texts(session.items) == [*texts(HISTORY), *stored, "function_call", "function_call_output", "ok"]


async def test_a_callback_that_cuts_a_pair_in_two_shows_neither_half() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "pay", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "paid 1"}
    session = MinimalSession(items=[user("old q"), call, output, make_message("old a")])
    model = ScriptedModel([[assistant_message("ok")]])
    config = RunConfig(session_input_callback=lambda history, new: history[-2:] + new)
    await Runner.run(Agent("a", model=model), "q", session=session, run_config=config)
    assert texts(model.calls[0].input) == ["old a", "q"]
    assert texts(session.items) == ["old q", "function_call", "function_call_output", "old a", "q", "ok"]


def spell_out(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", **item}


def write_as_parts(item: dict[str, Any]) -> dict[str, Any]:
    kind = "output_text" if item["role"] == "assistant" else "input_text"
    text = "".join(texts([item]))
    return {"role": item["role"], "content": [{"type": kind, "text": text, "annotations": []}], "status": "completed"}


def write_as_string(item: dict[str, Any]) -> dict[str, Any]:
    return {"role": item["role"], "content": "".join(texts([item])), "name": None}


@pytest.mark.parametrize("rebuild", [spell_out, write_as_parts, write_as_string])
async def test_a_callback_that_rebuilds_items_does_not_store_the_history_again(rebuild: Any) -> None:
    answers = [[assistant_message(f"answer {number}")] for number in range(4)]
    model, session = ScriptedModel(answers), MinimalSession(items=[])
    config = RunConfig(session_input_callback=lambda history, new: [rebuild(item) for item in history + new])
    expected: list[str] = []
    for number in range(4):
        await Runner.run(Agent("a", model=model), "ok", session=session, run_config=config)
        assert texts(model.last_call.input) == [*expected, "ok"]
        expected += ["ok", f"answer {number}"]
        assert texts(session.items) == expected


async def test_an_item_changed_in_place_is_stored_if_new_and_only_shown_if_old() -> None:
    def mark(history: Any, new: Any) -> Any:
        for item in history + new:
            item["content"] += "!"
        return history + new

    model, session = ScriptedModel([[assistant_message("ok")]]), MinimalSession(items=HISTORY[:2])
    await Runner.run(Agent("a", model=model), "new", session=session, run_config=RunConfig(session_input_callback=mark))
    assert texts(model.first_call.input) == ["old q!", "old a!", "new!"]
    assert texts(session.items) == ["old q", "old a", "new!", "ok"]


@pytest.mark.parametrize("wrong", ["text", None, (), {"a": 1}])
async def test_a_callback_must_return_a_list(wrong: Any) -> None:
    session = MinimalSession(items=HISTORY)
    config = RunConfig(session_input_callback=lambda history, new: wrong)
    with pytest.raises(UserError, match="session_input_callback"):
        await Runner.run(Agent("a", model=ScriptedModel([])), "q", session=session, run_config=config)
    assert session.items == HISTORY


async def test_a_limit_shows_only_the_latest_items_and_the_same_ones_after_resuming() -> None:
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    agent, session = Agent("a", tools=[pay], model=model), SQLiteSession("s")
    await session.add_items(HISTORY)
    config = RunConfig(session_settings=SessionSettings(limit=2))
    result = await Runner.run(agent, "q", session=session, run_config=config)
    state = await RunState.from_string(agent, result.to_state().to_string())
    approve_all(state)
    await Runner.run(agent, state, session=session, run_config=config)
    assert [texts(call.input)[:3] for call in model.calls] == [["again", "yes", "q"]] * 2


async def test_the_input_is_stored_before_the_model_is_called_and_each_turn_when_it_is_complete() -> None:
    session = MinimalSession()
    lengths = []

    async def look(call: Any) -> Any:
        lengths.append(len(session.items))
        return [assistant_message("ok")] if len(lengths) == 2 else [function_call("free", {}, call_id="1")]

    @function_tool
    async def free() -> str:
        lengths.append(len(session.items))
        return "x"

    model = ScriptedModel([{"responder": look}, {"responder": lambda call: look_again(call)}])

    async def look_again(call: Any) -> Any:
        lengths.append(len(session.items))
        return [assistant_message("ok")]

    await Runner.run(Agent("a", tools=[free], model=model), "q", session=session)
    assert lengths == [1, 1, 3]
    assert [len(batch) for batch in session.batches] == [1, 2, 1]


async def test_the_snapshot_of_a_run_does_not_contain_the_sessions_history() -> None:
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")]])
    session = MinimalSession(items=[user("secret " * 100)] * 50)
    result = await Runner.run(Agent("a", tools=[pay], model=model), "q", session=session)
    assert "secret" not in result.to_state().to_string()


async def test_calls_that_were_never_answered_are_not_shown_again() -> None:
    lost = {"type": "function_call", "call_id": "x", "name": "pay", "arguments": "{}"}
    model, session = ScriptedModel([[assistant_message("ok")]]), MinimalSession(items=[*HISTORY, lost])
    await Runner.run(Agent("a", model=model), "q", session=session)
    assert texts(model.first_call.input) == [*texts(HISTORY), "q"]


async def test_a_failed_write_loses_nothing_and_is_not_made_twice() -> None:
    class Lossy(MinimalSession):
        failing = 0

        async def add_items(self, items: Any) -> None:
            if self.failing == 1:
                await super().add_items(items)
            self.failing -= 1
            if self.failing >= 0:
                raise OSError("the answer was lost")
            await super().add_items(items)

    for failing in (1, 2):  # stored although the answer was lost; not stored at all
        model, session = ScriptedModel([[assistant_message("ok")]]), Lossy()
        agent = Agent("a", model=model)
        session.failing = failing if failing == 1 else 2
        with pytest.raises(OSError) as raised:
            await Runner.run(agent, "q", session=session)
        session.failing = 0
        state = await RunState.from_string(agent, raised.value.run_data.state.to_string())
        assert (await Runner.run(agent, state, session=session)).final_output == "ok"
        assert texts(session.items) == ["q", "ok"]


def tripping(blocking: bool) -> InputGuardrail[Any]:
    return InputGuardrail(lambda c, a, i: GuardrailFunctionOutput("no", True), "no", run_in_parallel=not blocking)


@pytest.mark.parametrize("way", ["run", "streamed"])
@pytest.mark.parametrize("blocking", [True, False], ids=["before the model", "beside the model"])
async def test_a_tripped_input_guardrail_keeps_the_users_input_and_nothing_else(blocking: bool, way: str) -> None:
    model, session = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")]]), MinimalSession(items=HISTORY)
    agent = Agent("a", tools=[pay], model=model, input_guardrails=[tripping(blocking)])
    with pytest.raises(InputGuardrailTripwireTriggered) as raised:
        await run_agent(way, agent, "bad", session=session)
    assert session.items == [*HISTORY, user("bad")]
    assert raised.value.guardrail_result.output.output_info == "no"
    assert len(raised.value.run_data.input_guardrail_results) == 1
    assert not raised.value.run_data.new_items
    assert len(model.calls) <= (0 if blocking else 1)


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_a_tripped_output_guardrail_keeps_what_the_tools_did_but_not_the_output(way: str) -> None:
    @function_tool
    async def free() -> str:
        return "x"

    model = ScriptedModel([[function_call("free", {}, call_id="1")], [assistant_message("rude")]])
    agent, session = Agent("a", tools=[free], model=model, output_guardrails=[refuse]), MinimalSession()
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_agent(way, agent, "q", session=session)
    assert texts(session.items) == ["q", "function_call", "function_call_output"]


async def test_an_output_guardrail_on_a_tools_output_keeps_the_call_but_not_what_it_returned() -> None:
    @function_tool
    async def leak() -> str:
        return "the secret"

    model = ScriptedModel([[function_call("leak", {}, call_id="1")]])
    agent = Agent("a", tools=[leak], model=model, output_guardrails=[refuse], tool_use_behavior="stop_on_first_tool")
    session = MinimalSession()
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent, "q", session=session)
    assert texts(session.items) == ["q", "function_call", "function_call_output"]
    assert "secret" not in str(session.items)


@pytest.mark.parametrize("held_by", ["a question", "an error"])
async def test_an_unchecked_output_is_not_stored_while_its_sibling_waits(held_by: str) -> None:
    broken = [held_by == "an error"]

    @function_tool
    async def leak() -> str:
        return "the secret"

    @function_tool(needs_approval=held_by == "a question", failure_error_function=None, on_uncertain="retry")
    async def other() -> str:
        if broken and broken.pop():
            raise OSError("down")
        return "fine"

    model = ScriptedModel([[function_call("leak", {}, call_id="1"), function_call("other", {}, call_id="2")]])
    agent = Agent(
        "a", tools=[leak, other], model=model, output_guardrails=[refuse], tool_use_behavior="stop_on_first_tool"
    )
    session = MinimalSession()
    if held_by == "a question":
        state = (await Runner.run(agent, "q", session=session)).to_state()
        approve_all(state)
    else:
        with pytest.raises(UserError, match="down") as failed:
            await Runner.run(agent, "q", session=session)
        state = failed.value.run_data.state
    assert "secret" not in str(session.items)
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent, state, session=session)
    assert "secret" not in str(session.items)
    calls, outputs = ["function_call"] * 2, ["function_call_output"] * 2
    assert texts(session.items) == ["q", *calls, *outputs]


@pytest.mark.parametrize("way", RUN_MODES)
async def test_what_a_handoff_filter_removes_from_its_turn_is_not_stored(way: str) -> None:
    def only_the_last(data: Any) -> Any:
        data.model_data.input = data.model_data.input[-1:]
        return data.model_data

    script = [
        [function_call("pay", {"amount": 1}, call_id="1")],
        [function_call("transfer_to_b", {}, call_id="2")],
        [assistant_message("here")],
    ]
    model = ScriptedModel(script)
    second = Agent("b", model=model)
    agent = Agent("a", tools=[pay], handoffs=[handoff(second, input_filter=remove_all_tools)], model=model)
    config = RunConfig(call_model_input_filter=only_the_last)
    session = MinimalSession(items=HISTORY)
    scenario = Scenario(agent, model, input="new", decide=approve_all, options={"run_config": config})
    await RUN_MODES[way](scenario, session)
    assert [len(call.input) for call in model.calls] == [1, 1, 1]
    assert texts(model.last_call.input) == ["new"]
    calls = ["function_call", "function_call_output"]
    assert texts(session.items) == [*texts(HISTORY), "new", *calls, "here"]


async def test_a_session_and_a_conversation_at_the_provider_exclude_each_other() -> None:
    agent = Agent("a", model=ScriptedModel([]))
    for options in ({"conversation_id": "c"}, {"previous_response_id": "r"}, {"auto_previous_response_id": True}):
        with pytest.raises(UserError, match="session"):
            await Runner.run(agent, "q", session=MinimalSession(), **options)


async def test_a_run_continues_only_in_the_session_where_it_began() -> None:
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")]])
    agent = Agent("a", tools=[pay], model=model)
    state = (await Runner.run(agent, "q", session=MinimalSession("mine"))).to_state()
    approve_all(state)
    with pytest.raises(UserError, match="mine"):
        await Runner.run(agent, state, session=MinimalSession("yours"))
    with pytest.raises(UserError, match="mine"):
        await Runner.run(agent, state)


async def test_only_the_last_run_is_rolled_back_and_exactly() -> None:
    for session in (MinimalSession("s", HISTORY), SQLiteSession("s")):
        if isinstance(session, SQLiteSession):
            await session.add_items(HISTORY)
        agent = Agent("a", model=ScriptedModel([RuntimeError("down"), [assistant_message("ok")]]))
        with pytest.raises(RuntimeError) as raised:
            await Runner.run(agent, "q", session=session)
        state = raised.value.run_data.state
        assert await state.rewind(session)
        assert await session.get_items() == HISTORY
        result = await Runner.run(agent, "q", session=session)
        await session.add_items([user("later")])
        assert not await result.to_state().rewind(session)
        assert texts(await session.get_items()) == [*texts(HISTORY), "q", "ok", "later"]


async def test_removed_items_are_restored_when_a_rollback_fails() -> None:
    class Moody(MinimalSession):
        pops = 0

        async def pop_item(self) -> Any:
            self.pops += 1
            if self.pops == 2:
                raise OSError("down")
            return await super().pop_item()

    session = Moody(items=HISTORY)
    result = await Runner.run(Agent("a", model=ScriptedModel([[assistant_message("ok")]])), "q", session=session)
    before = list(session.items)
    with pytest.raises(OSError):
        await result.to_state().rewind(session)
    assert session.items == before


async def test_a_long_conversation_is_shown_correctly_with_other_writers() -> None:
    session = SQLiteSession("s")

    async def exchange(text: str) -> list[str]:
        model = ScriptedModel([[assistant_message(f"re {text}")]])
        await Runner.run(Agent("a", model=model), text, session=session)
        return texts(model.first_call.input)

    assert await exchange("1") == ["1"]
    assert await exchange("2") == ["1", "re 1", "2"]
    await session.open_sibling("s").add_items([user("from elsewhere")])
    assert await exchange("3") == ["1", "re 1", "2", "re 2", "from elsewhere", "3"]
    await session.pop_item()
    await session.add_items([make_message("changed")])
    assert await exchange("4") == ["1", "re 1", "2", "re 2", "from elsewhere", "3", "changed", "4"]
    version, length = (await session.head()).version, (await session.head()).length
    await session.clear_session()
    while (await session.head()).version < version:  # as many commits and items as before
        await session.add_items([user("new")])
    while (await session.head()).length > length:
        await session.pop_item()
    assert await exchange("5") == [*texts(await session.get_items())[:-2], "5"]
    both = await asyncio.gather(exchange("6"), exchange("7"))
    assert [shown[-1] for shown in both] == ["6", "7"]
    assert await exchange("8") == [*texts(await session.get_items())[:-2], "8"]


async def test_two_guardrails_that_trip_together_are_one_error() -> None:
    agent = Agent("a", model=ScriptedModel([[assistant_message("x")]]), input_guardrails=[tripping(True)] * 2)
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(agent, "bad")


async def test_a_run_continues_although_its_history_was_compacted_meanwhile() -> None:
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    agent, session = Agent("a", tools=[pay], model=model), MinimalSession(items=HISTORY)
    state = (await Runner.run(agent, "q", session=session)).to_state()
    session.items[:-1] = [make_message("summary")]
    state = await RunState.from_string(agent, state.to_string())
    approve_all(state)
    assert (await Runner.run(agent, state, session=session)).final_output == "ok"
    assert texts(session.items) == ["summary", "function_call", "function_call_output", "ok"]


async def test_a_compacting_session_is_called_after_each_turn_and_its_tokens_count() -> None:
    class Compacting(MinimalSession):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []

        async def run_compaction(self, args: Any = None) -> None:
            self.calls.append(args)

        def take_compactions(self) -> list[Any]:
            return [SimpleNamespace(usage={"input_tokens": 3, "output_tokens": 1, "total_tokens": 4})]

    @function_tool
    async def free() -> str:
        return "x"

    model = ScriptedModel([[function_call("free", {}, call_id="1")], [assistant_message("ok")]])
    session = Compacting()
    agent = Agent("a", tools=[free], model=model, model_settings=ModelSettings(store=False))
    result = await Runner.run(agent, "q", session=session)
    assert session.calls == [{"response_id": "resp-789", "store": False}] * 2
    assert (result.context_wrapper.usage.requests, result.context_wrapper.usage.total_tokens) == (4, 8)


async def test_a_compaction_is_an_item_like_any_other() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "..."}
    model, session = ScriptedModel([[item, assistant_message("ok")]]), MinimalSession()
    agent = Agent("a", model=model)
    result = await Runner.run(agent, "q", session=session)
    assert [found.type for found in result.new_items] == ["compaction_item", "message_output_item"]
    assert session.items[1] == item
    loaded = await RunState.from_string(agent, result.to_state().to_string())
    assert loaded.to_active_run().get_items()[0].to_input_item() == item


async def test_a_run_is_written_to_a_sealed_history_of_another_make() -> None:
    """It has no way to write a batch once under a key, and is not asked to."""
    underlying = MinimalSession()
    session = EncryptedSession(underlying.session_id, underlying, "a key that is long enough")
    model = ScriptedModel([[assistant_message("first")], [assistant_message("second")]])
    for text in ("one", "two"):
        await Runner.run(Agent("a", model=model), text, session=session)
    assert texts(await session.get_items()) == ["one", "first", "two", "second"]
    assert "first" not in str(await underlying.get_items())
