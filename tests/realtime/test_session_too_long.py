"""What is too long for any server to be told, and would cost every connection that is told it."""

import pytest

from holdfast import UserError, function_tool
from holdfast.realtime import RealtimeAgent
from holdfast.realtime.local import Call
from holdfast.testing import RealtimeServer
from realtime_kit import calling

HUGE = "x" * (20 * 2**20)


async def test_the_output_of_a_tool_that_no_server_takes_is_answered_with_the_reason() -> None:
    @function_tool
    async def everything() -> str:
        """All there is."""
        return HUGE

    agent = RealtimeAgent(name="host", tools=[everything])
    async with RealtimeServer([[Call("everything", {})], "That is too much."]) as server:
        async with calling(server, agent) as (session, heard):
            await session.send_message("Tell me everything.")
            await heard.until("agent_end", 2)
        assert "characters" in str(heard.of("error")[0].error)
        [call] = [item for item in session.history if item.type == "function_call"]
        assert "20,971,520 characters" in call.output
        assert len(server.connections) == 1


async def test_a_message_that_no_server_takes_is_refused_and_never_said() -> None:
    agent = RealtimeAgent(name="host")
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{HUGE}"}
    async with RealtimeServer(["Yes?"]) as server, calling(server, agent) as (session, heard):
        for message in (HUGE, {"type": "message", "role": "user", "content": [picture]}):
            with pytest.raises(UserError, match="characters"):
                await session.send_message(message)
        await session.send_message("Well?")
        await heard.until("agent_end")
        assert len(server.connections) == 1
