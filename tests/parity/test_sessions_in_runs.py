"""Sessions in runs."""

from typing import Any

import pytest

from openai_server import OpenAIServer


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_is_created_by_the_first_run(lib: Any, streamed: bool) -> None:
    agent = lib.Agent(name="a", model=lib.ScriptedModel([[lib.assistant_message("hello")]] * 2))
    async with OpenAIServer.running() as server:
        session = lib.OpenAIConversationsSession(openai_client=server.client())
        if streamed:
            result = lib.Runner.run_streamed(agent, "hi", session=session)
            assert [event async for event in result.stream_events()]
        else:
            await lib.Runner.run(agent, "hi", session=session)
        created = session.session_id
        await lib.Runner.run(agent, "again", session=session)
        assert session.session_id == created
        assert len(await session.get_items()) == 4
    assert len(agent.model.calls[-1].input) == 3


async def test_reading_makes_the_id_of_a_conversation_available(lib: Any) -> None:
    async with OpenAIServer.running() as server:
        session = lib.OpenAIConversationsSession(openai_client=server.client())
        with pytest.raises(ValueError):
            _ = session.session_id
        assert await session.get_items() == []
        assert session.session_id


async def test_ids_of_reasoning_are_omitted_from_stored_items_and_from_the_list(lib: Any) -> None:
    session = lib.SQLiteSession("s")
    await session.add_items([{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "q"}])
    model = lib.ScriptedModel([[lib.assistant_message("x")]])
    config = lib.RunConfig(reasoning_item_id_policy="omit")
    result = await lib.Runner.run(lib.Agent(name="a", model=model), "hi", session=session, run_config=config)
    for items in (model.calls[0].input, result.to_input_list()):
        assert [item.get("id") for item in items if item.get("type") == "reasoning"] in ([None], [])
    session.close()


async def test_a_run_that_is_resumed_in_a_conversation_sends_its_own_items(lib: Any) -> None:
    @lib.function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    call = lib.function_call("pay", {"amount": 5}, call_id="c1", item_id="fc_own")
    model = lib.ScriptedModel([[lib.assistant_message("hello")], [call], [lib.assistant_message("done")]])
    agent = lib.Agent(name="a", model=model, tools=[pay])
    async with OpenAIServer.running() as server:
        session = lib.OpenAIConversationsSession(openai_client=server.client())
        await lib.Runner.run(agent, "hi", session=session)
        paused = await lib.Runner.run(agent, "pay 5", session=session)
        state = await lib.RunState.from_string(agent, paused.to_state().to_string())
        state.approve(state.get_interruptions()[0])
        result = await lib.Runner.run(agent, state, session=session)
        assert result.final_output == "done"
        stored = [item.get("type") for item in await session.get_items()]
    assert stored == ["message"] * 3 + ["function_call", "function_call_output", "message"]
    *_, question, asked, output = model.calls[-1].input
    assert question == {"role": "user", "content": "pay 5"}
    assert asked["id"] == "fc_own"
    assert output == {"type": "function_call_output", "call_id": "c1", "output": "paid 5"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("whole", [False, True])
async def test_the_input_of_a_run_with_a_callback_is_what_it_returned(lib: Any, whole: bool, streamed: bool) -> None:
    old, new = ({"role": "user", "content": text} for text in ("old", "new"))
    session = lib.SQLiteSession("s")
    await session.add_items([old])
    agent = lib.Agent(name="a", model=lib.ScriptedModel([[lib.assistant_message("hi")]]))
    config = lib.RunConfig(session_input_callback=lambda history, added: [*(history if whole else ()), *added])
    if streamed:
        result = lib.Runner.run_streamed(agent, "new", session=session, run_config=config)
        async for _ in result.stream_events():
            pass
    else:
        result = await lib.Runner.run(agent, "new", session=session, run_config=config)
    assert result.input == ([old, new] if whole else [new])
    assert result.to_input_list()[:-1] == result.input
    assert len(await session.get_items()) == 3
    session.close()


async def test_a_closed_session_refuses_even_nothing(lib: Any) -> None:
    session = lib.SQLiteSession("s")
    session.close()
    with pytest.raises(RuntimeError):
        await session.add_items([])
