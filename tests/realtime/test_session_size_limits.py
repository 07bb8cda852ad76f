"""Messages and outputs that are too large for any server."""

import json

import pytest

from factories.realtime import open_websocket_session, wait_until
from standfast import UserError, function_tool, open_store
from standfast.realtime import OpenAIRealtimeWebSocketModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool
from standfast.testing import RealtimeServer

HUGE = "x" * (20 * 2**20)
WIDE = "界" * (6 * 2**20)


@pytest.mark.parametrize(("output", "size"), [(HUGE, "20,971,520"), (WIDE, "18,874,368")], ids=["long", "wide"])
async def test_an_output_too_large_for_any_server_is_replaced_by_the_reason(output: str, size: str) -> None:
    @function_tool
    async def everything() -> str:
        """All there is."""
        return output

    agent = RealtimeAgent(name="host", tools=[everything])
    async with RealtimeServer([[CallTool("everything", {})], "That is too much."]) as server:
        async with open_websocket_session(server, agent) as (session, recorded):
            await session.send_message("Tell me everything.")
            await recorded.wait_for("agent_end", 2)
        assert "bytes" in str(recorded.of_type("error")[0].error)
        [call] = [item for item in session.history if item.type == "function_call"]
        assert f"{size} bytes" in call.output
        assert len(server.connections) == 1


async def test_a_message_too_large_for_any_server_raises_and_is_not_sent() -> None:
    agent = RealtimeAgent(name="host")
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{HUGE}"}
    async with RealtimeServer(["Yes?"]) as server, open_websocket_session(server, agent) as (session, recorded):
        for message in (HUGE, WIDE, {"type": "message", "role": "user", "content": [picture]}):
            with pytest.raises(UserError, match="bytes"):
                await session.send_message(message)
        await session.send_message("Well?")
        await recorded.wait_for("agent_end")
        assert len(server.connections) == 1


async def test_a_history_message_too_large_for_any_server_is_truncated() -> None:
    async with RealtimeServer(["Yes?"]) as server, open_store("memory://") as store:
        history = store.session("caller")
        await history.add_items([{"role": "user", "content": WIDE}])
        model = OpenAIRealtimeWebSocketModel()
        runner = RealtimeRunner(RealtimeAgent(name="host"), model=model)
        async with await runner.run(model_config={"url": server.url, "api_key": "test"}, session=history):
            [item] = await wait_until(lambda: server.connections[0].get_received("conversation.item.create"))
            assert 2**20 < len(json.dumps(item, ensure_ascii=False).encode()) < 15 * 2**20
