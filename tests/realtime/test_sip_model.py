"""Joining telephone calls."""

import pytest

from holdfast import function_tool
from holdfast.agents.errors import UserError
from holdfast.realtime import (
    OpenAIRealtimeSIPModel,
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimeRunner,
)
from holdfast.testing import RealtimeServer
from realtime_kit import listening


@function_tool
def look_up(order: str) -> str:
    """Look up an order."""
    return order


async def test_a_call_is_accepted_with_what_the_agent_says() -> None:
    billing = RealtimeAgent(name="Billing")
    agent = RealtimeAgent(name="Front", instructions=lambda context, _: f"Serve {context.context}.", tools=[look_up])
    agent.handoffs.append(billing)
    payload = await OpenAIRealtimeSIPModel.build_initial_session_payload(
        agent,
        context="Ann",
        model_config={"initial_model_settings": {"model_name": "gpt-realtime", "voice": "sage"}},
        run_config={"model_settings": {"voice": "ash", "speed": 1.1}},
        overrides={"turn_detection": None},
    )
    said = payload.model_dump(exclude_unset=True)
    assert (said["type"], said["model"], said["instructions"]) == ("realtime", "gpt-realtime", "Serve Ann.")
    assert [tool["name"] for tool in said["tools"]] == ["look_up", "transfer_to_billing"]
    assert said["audio"]["output"] == {"voice": "sage", "speed": 1.1}
    assert said["audio"]["input"]["turn_detection"] is None
    assert "format" not in said["audio"]["input"]


async def test_it_needs_a_call() -> None:
    with pytest.raises(UserError, match="call_id"):
        await OpenAIRealtimeSIPModel().connect({"api_key": "k"})


async def test_it_joins_a_call_without_changing_its_formats() -> None:
    async with RealtimeServer() as server:
        model = OpenAIRealtimeSIPModel()
        await model.connect({"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"})
        await model.close()
        (update,) = server.connections[0].received_of("session.update")
    assert "format" not in update["session"]["audio"]["input"]


@pytest.mark.parametrize(("format", "bytes_per_ms"), [("audio/pcm", 48), ("audio/pcmu", 8), ("audio/pcma", 8)])
async def test_a_session_counts_the_audio_of_a_call_in_the_format_that_the_server_tells(format, bytes_per_ms) -> None:
    async with RealtimeServer(["An answer that takes longer than a moment to say."]) as server:
        runner = RealtimeRunner(RealtimeAgent(name="host"), model=OpenAIRealtimeSIPModel())
        call = {"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"}
        session = await runner.run(model_config=call)
        async with listening(session) as heard, session:
            output = {"format": {"type": format, "rate": 24_000} if format == "audio/pcm" else {"type": format}}
            by_another = {"session": {"type": "realtime", "audio": {"output": output}}}
            await session.model.send_event(
                RealtimeModelSendRawMessage({"type": "session.update", "other_data": by_another})
            )
            await session.send_message("Well?")
            await heard.until("agent_end")
            await session.interrupt()
            sent_ms = sum(len(event.audio.data) for event in heard.of("audio")) / bytes_per_ms
            heard_ms = session.history[-1].content[0].audio_end_ms
            assert session.metrics["truncated"].last == pytest.approx(sent_ms - heard_ms)
