"""Channels."""

import asyncio
import gc
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.lifecycle import turns
from standfast.base.errors import Closed, InvalidInput, StandfastError
from standfast.lifecycle import Channel, ChannelFull
from standfast.testing.interruption import cancel_at_every_await


def start(work):
    return asyncio.get_running_loop().create_task(work)


class TestChannel:
    async def test_items_are_received_in_the_order_of_sending(self):
        channel = Channel(3)
        for n in range(3):
            await channel.send(n)
        assert channel.size == 3
        assert [await channel.receive() for _ in range(3)] == [0, 1, 2]

    async def test_a_full_channel_makes_senders_wait(self):
        channel = Channel(1)
        await channel.send("first")
        sending = start(channel.send("second"))
        await turns()
        assert not sending.done()
        assert await channel.receive() == "first"
        await sending
        assert await channel.receive() == "second"

    async def test_an_empty_channel_makes_readers_wait(self):
        channel = Channel(1)
        receiving = start(channel.receive())
        await turns()
        assert not receiving.done()
        channel.send_nowait("item")
        assert await receiving == "item"

    async def test_send_nowait_raises_when_the_channel_is_full(self):
        channel = Channel(1)
        channel.send_nowait(1)
        with pytest.raises(ChannelFull) as caught:
            channel.send_nowait(2)
        assert isinstance(caught.value, StandfastError)
        assert channel.size == 1

    async def test_send_nowait_does_not_overtake_waiting_senders(self):
        channel = Channel(1)
        channel.send_nowait(1)
        sending = start(channel.send(2))
        await turns()
        assert await channel.receive() == 1
        with pytest.raises(ChannelFull):
            channel.send_nowait(3)
        await sending
        assert await channel.receive() == 2

    async def test_a_late_sender_does_not_overtake_waiting_senders(self):
        channel = Channel(2)
        channel.send_nowait(1)
        channel.send_nowait(2)
        first = start(channel.send(3))
        await turns()
        await channel.receive()
        await channel.receive()
        late = start(channel.send(4))
        await asyncio.gather(first, late)
        assert [await channel.receive() for _ in range(2)] == [3, 4]

    async def test_a_late_reader_does_not_overtake_waiting_readers(self):
        channel = Channel(2)
        first = start(channel.receive())
        await turns()
        late = start(channel.receive())  # It will run before the first is woken.
        channel.send_nowait(1)
        assert await first == 1
        channel.send_nowait(2)
        assert await late == 2

    async def test_the_turn_of_a_sender_cancelled_after_it_was_notified_goes_to_the_next(self):
        channel = Channel(1)
        channel.send_nowait(1)
        first, second = start(channel.send(2)), start(channel.send(3))
        await turns()
        await channel.receive()  # The first was woken, but has not run yet.
        first.cancel()
        await second
        assert await channel.receive() == 3

    async def test_the_turn_of_a_reader_cancelled_after_it_was_notified_goes_to_the_next(self):
        channel = Channel(1)
        first, second = start(channel.receive()), start(channel.receive())
        await turns()
        channel.send_nowait(1)
        first.cancel()
        assert await second == 1

    async def test_space_for_one_item_wakes_one_sender(self):
        channel = Channel(1)
        channel.send_nowait(1)
        senders = [start(channel.send(n)) for n in (2, 3)]
        await turns()
        await channel.receive()
        await turns()
        assert channel.size == 1
        assert [sender.done() for sender in senders] == [True, False]
        channel.close()
        await asyncio.wait(senders)
        assert isinstance(senders[1].exception(), Closed)

    async def test_a_sender_that_waits_behind_a_notified_one_is_notified_after_it(self):
        channel = Channel(2)
        channel.send_nowait(1)
        channel.send_nowait(2)
        first = start(channel.send(3))
        await turns()
        late = start(channel.send(4))
        await channel.receive()
        await channel.receive()  # The first was woken, and there is space for both.
        await asyncio.gather(first, late)
        assert channel.size == 2

    @pytest.mark.parametrize("capacity", [0, -1])
    def test_the_capacity_must_be_positive(self, capacity):
        with pytest.raises(InvalidInput):
            Channel(capacity)

    async def test_after_closing_readers_receive_the_queued_items_and_then_the_loop_ends(self):
        channel = Channel(3)
        channel.send_nowait(1)
        channel.send_nowait(2)
        channel.close()
        assert channel.closed
        assert [item async for item in channel] == [1, 2]
        assert [item async for item in channel] == []
        with pytest.raises(Closed):
            await channel.receive()

    async def test_an_error_is_raised_after_the_last_item_to_everyone(self):
        channel = Channel(3)
        channel.send_nowait(1)
        channel.close(KeyError("why"))
        received = []

        async def read():
            async for item in channel:
                received.append(item)  # noqa: PERF401 - the items received before the error are needed

        for _ in range(2):
            with pytest.raises(KeyError, match="why"):
                await read()
            with pytest.raises(KeyError, match="why"):
                await channel.receive()
        assert received == [1]

    async def test_a_closed_error_given_to_close_is_raised_by_the_loop_too(self):
        channel = Channel(1)
        channel.close(Closed("the other side went away"))
        with pytest.raises(Closed, match="other side"):
            await anext(channel)

    async def test_closing_wakes_every_sender_and_refuses_further_items(self):
        channel = Channel(1)
        channel.send_nowait(1)
        senders = [start(channel.send(n)) for n in (2, 3, 4)]
        await turns()
        reason = KeyError()
        channel.close(reason)
        done, _ = await asyncio.wait(senders)
        assert all(isinstance(task.exception(), Closed) for task in done)
        assert all(task.exception().__cause__ is reason for task in done)
        for send in (lambda: channel.send(5), lambda: channel.send_nowait(5)):
            with pytest.raises(Closed):
                await send()
        assert channel.size == 1

    async def test_a_notified_sender_sends_nothing_after_closing(self):
        channel = Channel(1)
        channel.send_nowait(1)
        sending = start(channel.send(2))
        await turns()
        await channel.receive()  # The sender was woken, but has not run yet.
        channel.close()
        with pytest.raises(Closed):
            await sending
        assert [item async for item in channel] == []

    async def test_closing_wakes_every_reader(self):
        channel = Channel(1)
        readers = [start(channel.receive()) for _ in range(3)]
        await turns()
        channel.close()
        await asyncio.wait(readers)
        assert all(isinstance(task.exception(), Closed) for task in readers)

    async def test_readers_waiting_behind_the_last_item_reach_the_end(self):
        channel = Channel(1)
        readers = [start(channel.receive()) for _ in range(3)]
        await turns()
        channel.send_nowait("last")  # The first was woken, but has not run yet.
        channel.close()
        late = start(channel.receive())
        await asyncio.wait([*readers, late])
        assert readers[0].result() == "last"
        assert all(isinstance(task.exception(), Closed) for task in (*readers[1:], late))

    async def test_a_waiting_reader_gets_the_item_of_one_cancelled_after_closing(self):
        channel = Channel(1)
        first, second = start(channel.receive()), start(channel.receive())
        await turns()
        channel.send_nowait("item")  # The first was woken, but has not run yet.
        channel.close()
        first.cancel()
        assert await second == "item"
        assert await asyncio.wait({first})
        assert first.cancelled()

    async def test_only_the_first_close_sets_the_error(self):
        channel = Channel(1)
        channel.close(KeyError())
        channel.close()
        channel.close(ValueError())
        with pytest.raises(KeyError):
            await channel.receive()

    async def test_a_reader_that_stops_early_can_release_the_senders(self):
        channel = Channel(1)

        async def produce():
            for n in range(100):
                await channel.send(n)

        producing = start(produce())
        with closing(channel):
            async for item in channel:
                if item == 3:
                    break
        with pytest.raises(Closed):
            await producing

    async def test_cancelled_readers_leave_no_futures_behind(self):
        channel = Channel(1)

        def count_futures():
            gc.collect()
            return sum(isinstance(value, asyncio.Future) for value in gc.get_objects())

        before = count_futures()
        for _ in range(100):
            receiving = start(channel.receive())
            await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait({receiving})
        del receiving
        assert count_futures() <= before + 5

    async def test_wherever_a_reader_is_cancelled_no_item_is_lost(self):
        sent, received = [], []
        channel = Channel(2)

        async def scenario():
            sent.clear()
            received.clear()
            while channel.size:
                await channel.receive()

            async def produce():
                for n in range(5):
                    await channel.send(n)
                    sent.append(n)

            producing = start(produce())
            try:
                while len(received) < 5:
                    received.append(await channel.receive())
            finally:
                producing.cancel()
                await asyncio.wait({producing})

        def check():
            rest = [channel._items[n] for n in range(channel.size)]
            assert received + rest == sent

        assert await cancel_at_every_await(scenario, check=check) >= 4

    async def test_wherever_a_sender_is_cancelled_its_item_is_sent_if_and_only_if_send_returned(self):
        sent, received = [], []

        async def scenario():
            sent.clear()
            received.clear()
            channel = Channel(1)

            async def consume():
                received.extend([item async for item in channel])

            consuming = start(consume())
            try:
                for n in range(5):
                    await channel.send(n)
                    sent.append(n)
            finally:
                channel.close()
                await asyncio.wait({consuming})

        def check():
            assert received == sent

        assert await cancel_at_every_await(scenario, check=check) >= 4


def schedule(*steps):
    """Generate long schedules; otherwise Hypothesis mostly tries a few steps and never fills a channel."""
    always = [
        st.tuples(st.just("send"), st.none()),
        st.tuples(st.just("send_nowait"), st.none()),
        st.tuples(st.just("receive"), st.integers(0, 5)),
        st.tuples(st.just("receive"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("settle"), st.none()),
    ]
    return st.lists(st.one_of(*always, *steps), min_size=25, max_size=60)


def cancel_one(tasks, number):
    """Cancel one of the unfinished tasks, counted from the one that has waited longest."""
    if waiting := [task for task in tasks if not task.done()]:
        waiting[number % len(waiting)].cancel()


async def settle_tasks(tasks):
    """Wait until all tasks wait. Passing an item on takes less than four iterations of the loop."""
    before = None
    while before != (before := sum(task.done() for task in tasks)):
        await turns(4)


class ChannelDriver:
    """Applies random steps to a channel and records the results of the tasks."""

    def __init__(self, capacity):
        self.channel = Channel(capacity)
        self.tasks = []
        self.called_to_send, self.sent = [], []
        self.called_to_read, self.readers_done, self.received = [], [], []

    async def send(self, item):
        self.called_to_send.append(item)
        try:
            await self.channel.send(item)
        except Closed:
            assert self.channel.closed
        else:
            self.sent.append(item)

    async def receive(self, reader):
        self.called_to_read.append(reader)
        try:
            item = await self.channel.receive()
        except Closed:
            assert self.channel.closed
        else:
            self.received.append(item)
            self.readers_done.append(reader)

    async def step(self, number, name, argument):
        if name == "send":
            self.tasks.append(start(self.send(number)))
        elif name == "receive":
            self.tasks.append(start(self.receive(number)))
        elif name == "send_nowait":
            try:
                self.channel.send_nowait(number)
            except (ChannelFull, Closed):
                pass
            else:
                self.called_to_send.append(number)
                self.sent.append(number)
        elif name == "cancel":
            cancel_one(self.tasks, argument)
        elif name == "turn":
            await turns(argument)
        elif name == "close":
            self.channel.close()
        elif name == "settle":
            await self.settle()
        assert self.channel.size <= self.channel.capacity

    async def settle(self):
        await settle_tasks(self.tasks)
        waiting = [task for task in self.tasks if not task.done()]
        sends = [task for task in waiting if "ChannelDriver.send" in repr(task.get_coro())]
        if self.channel.closed or 0 < self.channel.size < self.channel.capacity:
            assert not waiting
        elif self.channel.size == 0:
            assert not sends
        else:
            assert len(sends) == len(waiting), "a reader waits although items are queued"

    async def finish(self):
        await self.settle()
        self.channel.close()
        await self.settle()
        self.received += [item async for item in self.channel]
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None, task.exception()

    def check(self):
        assert self.received == self.sent, "every item that was sent is received once, in order"
        sent = set(self.sent)
        assert self.sent == [n for n in self.called_to_send if n in sent], "senders are served in order"
        served = set(self.readers_done)
        assert self.readers_done == [n for n in self.called_to_read if n in served]


@pytest.mark.parametrize("examples", [15, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_channel_keeps_its_contract_under_any_schedule(examples):
    @settings(max_examples=examples, deadline=None)
    @given(capacity=st.integers(1, 3), steps=schedule(), close_at=st.none() | st.integers(0, 40))
    def holds(capacity, steps, close_at):
        asyncio.run(play(capacity, steps, close_at))

    async def play(capacity, steps, close_at):
        driver = ChannelDriver(capacity)
        for number, (name, argument) in enumerate(steps):
            if number == close_at:
                await driver.step(number, "close", None)
            await driver.step(number, name, argument)
        await driver.finish()
        driver.check()

    holds()
