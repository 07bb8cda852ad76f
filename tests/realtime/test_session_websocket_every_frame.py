"""A connection that is lost at any frame, of either side, does not change the outcome of a session."""

import asyncio

import pytest

from factories.realtime import get_texts, open_websocket_session, wait_until
from standfast import function_tool
from standfast.realtime import RealtimeAgent, RealtimeState
from standfast.realtime._session.item_conversion import get_text
from standfast.realtime.local import CallTool, Say
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Disconnect


class Clerk:
    """Responds by the content of the conversation, so that a repeated request gets the same response."""

    async def respond(self, request):
        outputs = [item["output"] for item in request.items if item.get("type") == "function_call_output"]
        if "looked" not in outputs:
            yield CallTool("look", "{}")
        elif "You are B." not in request.instructions:
            yield CallTool("transfer_to_b", "{}")
        elif "deleted" not in outputs:
            yield CallTool("delete", "{}")
        else:
            yield Say("All is done.")


class Story:
    """A tool, a handoff and an approval, one after the other."""

    def __init__(self):
        self.made = []

        @function_tool
        async def look() -> str:
            self.made.append("look")
            return "looked"

        @function_tool(needs_approval=True)
        async def delete() -> str:
            self.made.append("delete")
            return "deleted"

        self.b = RealtimeAgent(name="b", instructions="You are B.", tools=[delete])
        self.a = RealtimeAgent(name="a", instructions="You are A.", tools=[look], handoffs=[self.b])

    async def play(self, server, on="*", drop=None):
        """Run the session; ``drop`` is a fault and its position. Returns the frames of both sides."""
        config = {"reconnect": {"initial_delay": 0.001, "max_delay": 0.002}}
        async with open_websocket_session(server, self.a, **config) as (session, recorded), asyncio.timeout(120):
            first = server.connections[0]
            before = (len(first.sent), len(first.received))
            if drop is not None:
                server.inject(on, drop[0], skip=drop[1], connection=0)
            await session.send_message("Go.")
            asked = await recorded.wait_for("tool_approval_required")
            assert await session.approve_tool_call(asked.call_id)
            await wait_until(lambda: self.answered(session, recorded))
            if get_texts(session)[-1] != "All is done.":  # It was heard in part, so it is not requested again.
                await session.send_message("Go on.")
                await wait_until(lambda: get_texts(session)[-1] == "All is done." and self.answered(session, recorded))
            self.check(session, recorded, server.connections[-1])
            report = await session.close()
            assert (report.cancelled, report.still_running, report.unsent_outputs, report.pending_approvals) == (
                (),
                (),
                (),
                (),
            )
        return first.sent[before[0] :], first.received[before[1] :]

    def answered(self, session, recorded):
        begun, over = recorded.of_type("agent_start"), recorded.of_type("agent_end")
        # A response of which nothing was heard is requested again.
        spoken = [
            item for item in session.history if item.type == "message" and item.role == "assistant" and get_text(item)
        ]
        return spoken and len(begun) == len(over) and session.state is RealtimeState.OPEN

    def check(self, session, recorded, connection):
        assert self.made == ["look", "delete"]
        assert session.current_agent is self.b
        assert connection.session["instructions"] == "You are B."
        assert (
            len(recorded.of_type("handoff"))
            == len(recorded.of_type("agent_changed"))
            == len(recorded.of_type("tool_approval_required"))
            == 1
        )
        calls = [item.name for item in session.history if item.type == "function_call"]
        assert calls == ["look", "transfer_to_b", "delete"]
        words = [text for text in get_texts(session) if text != "Go on."]
        assert (words[0], words[-1]) == ("Go.", "All is done.")
        assert len(words) <= 3
        assert all("All is done.".startswith(text) for text in words[1:])
        starts, ends = (
            [event.response_id for event in recorded.of_type(kind)] for kind in ("agent_start", "agent_end")
        )
        assert starts == ends
        known = [item["id"] for item in connection.conversation.items if item["type"] != "function_call_output"]
        assert [item.item_id for item in session.history if item.item_id in known] == known


async def survive(on, fault, place):
    async with RealtimeServer(Clerk()) as server:
        try:
            await Story().play(server, on, (fault, place))
        except BaseException as error:
            error.add_note(f"dropped at {on} number {place}; the last frame was {server.connections[0].sent[-1:]}")
            raise


@pytest.mark.parametrize(("code", "step"), [(None, 1), (1000, 4), (1011, 4)])
async def test_a_call_survives_a_drop_at_every_frame_of_the_server(code, step):
    async with RealtimeServer(Clerk()) as server:
        frames, _ = await Story().play(server)
    assert len(frames) > 40
    # The code of the close handshake makes no difference to the place, so it is sampled.
    for place in range(step // 2, len(frames), step):
        await survive("*", Disconnect(code), place)


@pytest.mark.parametrize("kind", ["conversation.item.create", "response.create", "session.update"])
async def test_a_call_survives_a_drop_at_every_frame_of_the_client(kind):
    async with RealtimeServer(Clerk()) as server:
        _, frames = await Story().play(server)
    count = sum(frame["type"] == kind for frame in frames)
    assert count
    for place in range(count):
        await survive(kind, Disconnect(1011), place)


async def tell(story, server, end_at):
    """Play until the event of that number, and close there. Gives how many there were, if it was never reached."""
    async with open_websocket_session(server, story.a) as (session, recorded):
        await session.send_message("Go.")
        count = 0
        async for event in session.events():
            count += 1
            if count == end_at:
                report = await session.close()
                assert (report.reason, report.cancelled, report.still_running) == ("asked", (), ())
            elif event.type == "tool_approval_required":
                await session.approve_tool_call(event.call_id)
            elif event.type == "agent_end" and get_texts(session)[-1] == "All is done.":
                break
        assert session.state is (RealtimeState.OPEN if end_at is None else RealtimeState.CLOSED)
        if end_at is not None:
            await recorded.wait_for("session_closed")
    await wait_until(lambda: server.open_connections == [])
    return count


async def test_a_call_may_be_closed_at_every_event():
    async with RealtimeServer(Clerk()) as server:
        events = await tell(Story(), server, None)
        assert events > 80
        for place in range(1, events - 5, 3):
            await tell(Story(), server, place)
