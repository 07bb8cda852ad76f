"""What broadcasts promise."""

import asyncio
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from witness import cancel_one, quiet, schedule, start, turns

from holdfast.base.errors import Closed, InvalidInput
from holdfast.lifecycle import Broadcast, Full, Overflow
from holdfast.testing.cancelling import cancel_at_every_await


class TestBroadcast:
    async def test_every_lane_sees_everything_sent_after_it_was_subscribed(self):
        broadcast = Broadcast()
        broadcast.send_nowait("unheard")
        first = broadcast.subscribe(capacity=5)
        await broadcast.send(1)
        second = broadcast.subscribe(capacity=5)
        await broadcast.send(2)
        broadcast.close()
        assert [item async for item in first] == [1, 2]
        assert [item async for item in second] == [2]

    async def test_a_slow_lane_that_may_drop_loses_the_oldest_and_counts_them(self):
        broadcast = Broadcast()
        lane = broadcast.subscribe(capacity=2, overflow=Overflow.DROP_OLDEST)
        for n in range(5):
            broadcast.send_nowait(n)
        broadcast.close()
        assert [item async for item in lane] == [3, 4]
        assert lane.dropped == 3

    async def test_a_slow_lane_with_backpressure_holds_the_sender_back(self):
        broadcast = Broadcast()
        slow = broadcast.subscribe(capacity=1, overflow=Overflow.BACKPRESSURE)
        other = broadcast.subscribe(capacity=9, overflow=Overflow.BACKPRESSURE)
        await broadcast.send(1)
        with pytest.raises(Full):
            broadcast.send_nowait(2)
        sending = start(broadcast.send(2))
        await turns()
        assert not sending.done()
        assert other.queued == 1, "an item arrives in all lanes or in none"
        assert await slow.receive() == 1
        await sending
        assert (slow.queued, other.queued) == (1, 2)

    async def test_waiting_senders_are_served_in_turn_and_not_overtaken(self):
        broadcast = Broadcast()
        lane = broadcast.subscribe(capacity=1, overflow=Overflow.BACKPRESSURE)
        broadcast.send_nowait(0)
        senders = [start(broadcast.send(n)) for n in (1, 2, 3)]
        await turns()
        received = [await lane.receive()]
        with pytest.raises(Full):
            broadcast.send_nowait("pushy")
        received += [await lane.receive() for _ in range(3)]
        await asyncio.gather(*senders)
        assert received == [0, 1, 2, 3]

    async def test_a_turn_is_handed_on_by_a_sender_that_is_cancelled_in_the_last_moment(self):
        broadcast = Broadcast()
        lane = broadcast.subscribe(capacity=1, overflow=Overflow.BACKPRESSURE)
        broadcast.send_nowait(1)
        first, second = start(broadcast.send(2)), start(broadcast.send(3))
        await turns()
        await lane.receive()  # The first is called, but has not run yet.
        first.cancel()
        await second
        assert await lane.receive() == 3

    async def test_room_for_many_wakes_many(self):
        broadcast = Broadcast()
        lane = broadcast.subscribe(capacity=3, overflow=Overflow.BACKPRESSURE)
        for n in range(3):
            broadcast.send_nowait(n)
        senders = [start(broadcast.send(n)) for n in (3, 4)]
        await turns()
        assert [await lane.receive() for _ in range(3)] == [0, 1, 2]
        await asyncio.gather(*senders)
        assert [await lane.receive() for _ in range(2)] == [3, 4]

    async def test_closing_ends_every_lane_after_its_buffer_and_refuses_senders(self):
        broadcast = Broadcast()
        full = broadcast.subscribe(capacity=1, overflow=Overflow.BACKPRESSURE)
        idle = broadcast.subscribe(capacity=1)
        await broadcast.send(1)
        assert await idle.receive() == 1
        waiting, sending = start(idle.receive()), start(broadcast.send(2))
        await turns()
        broadcast.close(KeyError("why"))
        broadcast.close()
        assert broadcast.closed
        with pytest.raises(Closed):
            await sending
        with pytest.raises(KeyError, match="why"):
            await waiting
        assert await full.receive() == 1
        with pytest.raises(KeyError, match="why"):
            await full.receive()
        with pytest.raises(Closed):
            broadcast.send_nowait(3)

    async def test_who_subscribes_after_the_end_finds_the_end(self):
        broadcast = Broadcast()
        broadcast.close()
        assert [item async for item in broadcast.subscribe(capacity=1)] == []
        broken = Broadcast()
        broken.close(KeyError())
        with pytest.raises(KeyError):
            await broken.subscribe(capacity=1).receive()

    async def test_a_lane_that_is_left_holds_nobody_back(self):
        broadcast = Broadcast()
        with broadcast.subscribe(capacity=1, overflow=Overflow.BACKPRESSURE) as lane:
            await broadcast.send(1)
            sending = start(broadcast.send(2))
            await turns()
            assert not sending.done()
        await sending
        assert lane.closed
        assert [item async for item in lane] == []
        lane.close()
        broadcast.send_nowait(3)

    async def test_closing_a_lane_ends_its_reader(self):
        broadcast = Broadcast()
        lane = broadcast.subscribe(capacity=1)
        reading = start(lane.receive())
        await turns()
        lane.close()
        with pytest.raises(Closed):
            await reading

    @pytest.mark.parametrize("in_a_cycle", [False, True])
    async def test_a_forgotten_lane_holds_nobody_back(self, in_a_cycle):
        broadcast = Broadcast()

        async def reads_one():
            lane = broadcast.subscribe(capacity=1, overflow=Overflow.BACKPRESSURE)
            if in_a_cycle:
                lane.itself = lane
            return await anext(lane)

        reading = start(reads_one())
        await turns()
        broadcast.send_nowait(1)
        sending = start(broadcast.send(2))
        assert await reading == 1
        await sending
        sending = start(broadcast.send(3))
        del reading
        gc.collect()
        await sending

    async def test_a_lane_needs_room_for_something(self):
        with pytest.raises(InvalidInput):
            Broadcast().subscribe(capacity=0)
        gc.collect()

    async def test_wherever_a_sender_is_cancelled_all_lanes_agree(self):
        seen = {}

        async def scenario():
            broadcast = Broadcast()
            seen.clear()

            async def read(name, capacity):
                lane = broadcast.subscribe(capacity=capacity, overflow=Overflow.BACKPRESSURE)
                seen[name] = []
                async for item in lane:
                    seen[name].append(item)
                    await asyncio.sleep(0)

            readers = [start(read("fast", 3)), start(read("slow", 1))]
            try:
                await asyncio.sleep(0)
                for n in range(4):
                    await broadcast.send(n)
            finally:
                broadcast.close()
                await asyncio.wait(readers)

        def check():
            if seen:
                assert seen["fast"] == seen["slow"] == list(range(len(seen["fast"])))

        assert await cancel_at_every_await(scenario, check=check) >= 4


broadcast_schedule = schedule(
    st.tuples(st.just("subscribe"), st.tuples(st.integers(1, 3), st.sampled_from(Overflow))),
    st.tuples(st.just("leave"), st.integers(0, 5)),
)


class Listener:
    """A lane, what it was promised and what it has got."""

    def __init__(self, lane, promised_from):
        self.lane, self.promised_from, self.left = lane, promised_from, False
        self.received = []

    async def receive(self):
        try:
            self.received.append(await self.lane.receive())
        except Closed:
            assert self.lane.closed

    def judge(self, sent):
        promised = sent[self.promised_from :]
        if self.lane.overflow is Overflow.BACKPRESSURE or self.left:
            # Whoever left has seen the beginning, without what was dropped.
            assert self.lane.dropped or self.received == promised[: len(self.received)]
        if not self.left:
            assert len(self.received) + self.lane.dropped == len(promised)
            assert self.lane.dropped == 0 or self.lane.overflow is Overflow.DROP_OLDEST
        assert self.received == [item for item in promised if item in set(self.received)]


class BroadcastDriver:
    def __init__(self):
        self.broadcast = Broadcast()
        self.tasks, self.listeners, self.sent, self.called = [], [], [], []

    async def send(self, item):
        self.called.append(item)
        try:
            await self.broadcast.send(item)
        except Closed:
            assert self.broadcast.closed
            return
        self.sent.append(item)

    async def step(self, number, name, argument):
        if name == "subscribe":
            capacity, overflow = argument
            lane = self.broadcast.subscribe(capacity=capacity, overflow=overflow)
            self.listeners.append(Listener(lane, len(self.sent)))
        elif name == "send":
            self.tasks.append(start(self.send(number)))
        elif name == "send_nowait":
            try:
                self.broadcast.send_nowait(number)
            except (Full, Closed):
                return
            self.called.append(number)
            self.sent.append(number)
        elif name == "receive" and self.listeners:
            self.tasks.append(start(self.listeners[argument % len(self.listeners)].receive()))
        elif name == "leave" and self.listeners:
            listener = self.listeners[argument % len(self.listeners)]
            if not listener.left and not self.broadcast.closed:
                listener.left = True
                listener.lane.close()
        elif name == "cancel":
            cancel_one(self.tasks, argument)
        elif name == "turn":
            await turns(argument)
        elif name == "close":
            self.broadcast.close()
        elif name == "settle":
            await self.settle()
        for listener in self.listeners:
            assert listener.lane.queued <= listener.lane.capacity

    async def settle(self):
        await quiet(self.tasks)
        sending = any(not task.done() for task in self.tasks if "BroadcastDriver.send" in repr(task.get_coro()))
        held_back = any(
            listener.lane.overflow is Overflow.BACKPRESSURE
            and listener.lane.queued == listener.lane.capacity
            and not listener.left
            for listener in self.listeners
        )
        assert not sending or (held_back and not self.broadcast.closed)

    async def finish(self):
        await self.settle()
        self.broadcast.close()
        await self.settle()
        assert all(task.done() for task in self.tasks)
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None, task.exception()
        for listener in self.listeners:
            listener.received += [item async for item in listener.lane]
            listener.judge(self.sent)
        told = set(self.sent)
        assert self.sent == [n for n in self.called if n in told], "senders are served in turn"


@pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_broadcast_keeps_its_promises_under_any_schedule(examples):
    @settings(max_examples=examples, deadline=None)
    @given(steps=broadcast_schedule, close_at=st.none() | st.integers(0, 40))
    def holds(steps, close_at):
        asyncio.run(play(steps, close_at))

    async def play(steps, close_at):
        driver = BroadcastDriver()
        for number, (name, argument) in enumerate(steps):
            if number == close_at:
                await driver.step(number, "close", None)
            await driver.step(number, name, argument)
        await driver.finish()

    holds()
