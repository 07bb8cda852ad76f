"""Joining telephone calls."""

import pytest

from holdfast import function_tool
from holdfast.agents.errors import UserError
from holdfast.realtime import OpenAIRealtimeSIPModel, RealtimeAgent
from holdfast.testing import RealtimeServer


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
