"""The order in which an iterator gets its events, compared with a plain list."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from standfast.realtime._session.broadcast import (
    MAX_DROPPABLE_BYTES,
    MAX_UNREAD_EVENTS,
    DroppedEvents,
    EventBroadcast,
)

LIMIT = 4
MEBIBYTE = 2**20
ACTS = st.one_of(
    st.tuples(st.just("flow"), st.integers(0, 9).map(lambda number: number * MEBIBYTE)),
    st.tuples(st.sampled_from(["put", "forget", "read"]), st.just(0)),
)


class Expected:
    """What waits, oldest first: (name, whether it flows, size)."""

    def __init__(self):
        self.waiting, self.lost = [], DroppedEvents()

    def flowing(self):
        return [entry for entry in self.waiting if entry[1]]

    def flow(self, name, size):
        self.waiting.append((name, True, size))
        while len(self.flowing()) > LIMIT or (
            sum(entry[2] for entry in self.flowing()) > MAX_DROPPABLE_BYTES and len(self.flowing()) > 1
        ):
            gone = self.flowing()[0]
            self.waiting.remove(gone)
            self.lost = DroppedEvents(self.lost.count + 1, self.lost.bytes + gone[2])

    def read(self):
        if self.lost.count:
            lost, self.lost = self.lost, DroppedEvents()
            return lost
        return self.waiting.pop(0)[0]


@given(st.lists(ACTS, max_size=60))
def test_an_iterator_gets_events_in_order_except_dropped_ones(acts):
    asyncio.run(compared(acts))


async def compared(acts):
    outlet = EventBroadcast(lambda lost: lost, lambda name: acts[name][1], max_droppable=LIMIT)
    expected = Expected()
    iterator = outlet.subscribe()
    for name, (act, size) in enumerate(acts):
        if act == "flow":
            outlet.put_droppable(name, size)
            expected.flow(name, size)
        elif act == "put":
            outlet.put(name)
            expected.waiting.append((name, False, 0))
        elif act == "forget":
            outlet.discard(lambda name: name % 3 == 0)
            expected.waiting = [entry for entry in expected.waiting if not entry[1] or entry[0] % 3]
        elif expected.waiting or expected.lost.count:
            assert await anext(iterator) == expected.read()
    outlet.close()
    rest = [event async for event in iterator]
    assert rest == [expected.read() for _ in range(len(expected.waiting) + bool(expected.lost.count))]


async def test_the_newest_events_are_kept_while_there_is_no_iterator():
    outlet = EventBroadcast(lambda lost: lost, lambda name: 0)
    for name in range(MAX_UNREAD_EVENTS + 3):
        outlet.put(name)
    first, late = outlet.subscribe(), outlet.subscribe()
    outlet.put("last")
    outlet.close()
    assert [event async for event in first] == [DroppedEvents(3, 0), *range(3, MAX_UNREAD_EVENTS + 3), "last"]
    assert [event async for event in late] == ["last"]
