"""Live events reach readers in every process: in order, once, and at their place between the entries."""

import asyncio
import json
import os
import random
import signal
from pathlib import Path

import asyncpg
import msgspec
import pytest
from talker import check_story, make_texts, make_words, talker

from factories.runtime import repeat, wait_for, wait_until
from servers import CUT_OTHERS, dsn
from standfast import InvalidInput, Runtime, Store
from standfast.runtime import Event
from standfast.runtime._engine.live_stream import Watch, Watched
from standfast.store.urls import open_backend

KEY = "a key of thirty-two characters!!"


async def read_until(child, beginning):
    """Return the rest of the first line of a process that begins so."""
    while (line := await child.line()) is not None:
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    pytest.fail(f"the process ended before {beginning!r}")


async def collect(run, found, after=0, **options):
    async for event in run.events(after=after, until="end", **options):
        found.append(event)
    return found


def count_words(events):
    return sum(event.data.get("type") == "response.output_text.delta" for event in events if event.live)


async def wait_for_words(found, count):
    async def is_heard():
        return count_words(found) >= count

    await wait_until(is_heard)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_a_reader_in_another_process_gets_every_live_event(spawn, shared_url, tmp_path, key):
    options = {"responses": 3, "words": 40, "gates": ["0.1"], "encryption_key": key}
    async with (
        spawn("drive_talker", shared_url, str(tmp_path), options) as driver,
        Runtime.open(shared_url, encryption_key=key) as runtime,
    ):
        run = await runtime.run(await read_until(driver, "run"))
        reading = asyncio.create_task(collect(run, found := []))
        await wait_for_words(found, 1)
        (tmp_path / "0.1").touch()
        await wait_for(reading)
        assert check_story(found, words=40) == make_texts(3, 40)
        assert found[-1].type == "run.completed"
        assert len([event for event in found if not event.live]) == (await run.info()).steps


async def test_who_comes_in_the_middle_of_a_response_hears_its_beginning(spawn, shared_url, tmp_path):
    options = {"responses": 2, "words": 30, "gates": ["1.10"]}
    async with (
        spawn("drive_talker", shared_url, str(tmp_path), options) as driver,
        Runtime.open(shared_url) as runtime,
    ):
        run = await runtime.run(await read_until(driver, "run"))
        await read_until(driver, "gate 1.10")
        first = asyncio.create_task(collect(run, one := []))
        await wait_for_words(one, 10)
        second = asyncio.create_task(collect(run, two := []))  # in the same process as another reader
        await wait_for_words(two, 10)
        (tmp_path / "1.10").touch()
        await wait_for(asyncio.gather(first, second))
        for found in (one, two):
            assert check_story(found, words=30) == ["", make_texts(2, 30)[1]]
        shared = [event for event in two if event.live]
        assert shared
        assert all(any(event is other for other in one) for event in shared)


async def test_without_live_the_next_response_is_streamed_for_a_reader_elsewhere(spawn, shared_url, tmp_path):
    options = {"responses": 3, "words": 10, "gates": ["0.5"]}
    async with (
        spawn("drive_talker", shared_url, str(tmp_path), options, False) as driver,
        Runtime.open(shared_url) as runtime,
    ):
        run = await runtime.run(await read_until(driver, "run"))
        await read_until(driver, "gate 0.5")
        reading = asyncio.create_task(collect(run, found := []))
        await wait_until(lambda: is_known_to_driver(runtime))
        (tmp_path / "0.5").touch()
        await wait_for(reading)
        assert check_story(found, words=10) == ["", *make_texts(3, 10)[1:]]


async def is_known_to_driver(runtime):
    """Return whether the driver of what this runtime reads has answered: it has sent the number of its next message."""
    return any(channel.stream is not None for channel in runtime._ctx.subscriptions.channels.values())


async def test_a_killed_driver_is_followed_by_the_next(spawn, shared_url, tmp_path):
    options = {"responses": 3, "words": 20, "gates": ["1.10", "1.15"]}
    async with Runtime.open(shared_url) as runtime:
        async with spawn("drive_talker", shared_url, str(tmp_path), options, True, 1.0) as driver:
            run = await runtime.run(await read_until(driver, "run"))
            await read_until(driver, "gate 1.10")
            reading = asyncio.create_task(collect(run, found := []))
            await wait_for_words(found, 10)
            driver.signal(signal.SIGKILL)
            await driver.end()
        async with spawn("drive_talker", shared_url, str(tmp_path), options, True, 1.0) as driver:
            await read_until(driver, "gate 1.10")
            (tmp_path / "1.10").touch()
            await read_until(driver, "gate 1.15")
            await wait_for_words(found, 25)
            (tmp_path / "1.15").touch()
            await wait_for(reading)
        texts = make_texts(3, 20)
        assert check_story(found, words=20) == ["", "".join(make_words(1, 10)), *texts[1:]]
        assert "run.recovered" in [event.type for event in found]


async def test_cut_connections_lose_nothing(spawn, postgres_tables_url, tmp_path):
    options = {"responses": 4, "words": 300, "pace": 0.001, "gates": ["0.1"]}
    admin = await asyncpg.connect(dsn(postgres_tables_url))
    try:
        async with (
            spawn("drive_talker", postgres_tables_url, str(tmp_path), options) as driver,
            Runtime.open(postgres_tables_url) as runtime,
        ):
            run = await runtime.run(await read_until(driver, "run"))
            reading = asyncio.create_task(collect(run, found := []))
            await wait_for_words(found, 1)
            (tmp_path / "0.1").touch()
            for words in (100, 400, 700):
                await wait_for_words(found, words)
                await admin.execute(CUT_OTHERS)
            await wait_for(reading)
            assert check_story(found, words=300) == make_texts(4, 300)
            assert "model.gap" not in [event.type for event in found]
    finally:
        await admin.close()


async def test_a_paused_reader_misses_live_events_but_no_entry(spawn, shared_url, tmp_path):
    agent = talker(tmp_path, responses=2, words=20_000, gates=["0.0", "1.0"])
    async with Runtime.open(shared_url, agents=[agent], live=True) as runtime:
        run = await runtime.start("talker", "go")
        async with spawn("listen", shared_url, run.id, str(tmp_path / "heard")) as reader:
            relay = runtime._ctx.subscriptions.relay

            async def is_watched():
                return relay.is_watched(run.id, live=True)

            await wait_until(is_watched)
            reader.signal(signal.SIGSTOP)
            (tmp_path / "0.0").touch()
            await wait_until(lambda: has_answered(run))
            reader.signal(signal.SIGCONT)
            (tmp_path / "1.0").touch()
            assert await reader.end() == 0
        found = [Event(**json.loads(line)) for line in (tmp_path / "heard").read_text().splitlines()]
        heard = check_story(found, words=20_000)
        assert len(heard) == 2
        assert "model.gap" in [event.type for event in found]
        assert len([event for event in found if not event.live]) == (await run.info()).steps


async def has_answered(run):
    """Return whether the first response is in the journal."""
    return "model.answered" in [event.type async for event in first_events(run)]


async def first_events(run):
    async for event in run.events():
        if event.live:
            return
        yield event
        if event.seq == (await run.info()).steps:
            return


async def test_continuing_from_a_position_repeats_no_live_event(spawn, shared_url, tmp_path):
    options = {"responses": 3, "words": 60, "pace": 0.002, "gates": ["0.0"]}
    async with (
        spawn("drive_talker", shared_url, str(tmp_path), options) as driver,
        Runtime.open(shared_url) as runtime,
    ):
        run = await runtime.run(await read_until(driver, "run"))
        await read_until(driver, "gate 0.0")
        dice, found, last, position = random.Random(5), [], 0, None
        (tmp_path / "0.0").touch()
        while not found or found[-1].type != "run.completed":
            count = dice.randint(1, 40)
            async for event in run.events(after=last, until="end", position=position):
                found.append(event)
                last, position, count = event.seq or last, event.position or position, count - 1
                if not count:
                    break
        heard = check_story(found, words=60)
        assert len(heard) == 3
        with pytest.raises(InvalidInput, match="position"):
            [event async for event in run.events(position="nowhere")]


async def test_a_thousand_readers_of_a_process_read_the_store_as_one(spawn, shared_url, tmp_path):
    options = {"responses": 5, "words": 20, "gates": ["0.1"]}
    reads = {"get_run": 0, "read_journal": 0}

    class Counting:
        """A backend that counts the reads of runs."""

        def __init__(self, backend):
            self.backend, self.indexes_words, self.location = backend, backend.indexes_words, backend.location

        async def commit(self, *ops):
            return await self.backend.commit(*ops)

        def __getattr__(self, name):
            if name in reads:
                reads[name] += 1
            return getattr(self.backend, name)

    backend = await open_backend(shared_url)
    try:
        async with (
            spawn("drive_talker", shared_url, str(tmp_path), options) as driver,
            Runtime.open(Store(Counting(backend))) as runtime,
        ):
            run = await runtime.run(await read_until(driver, "run"))
            found = [[] for _ in range(1000)]
            reading = [asyncio.create_task(collect(run, one)) for one in found]

            async def all_have_begun():
                return all(count_words(one) for one in found)

            await wait_until(all_have_begun)
            before = dict(reads)
            (tmp_path / "0.1").touch()
            await wait_for(asyncio.gather(*reading))
            assert reads["read_journal"] - before["read_journal"] < 100
            assert reads["get_run"] - before["get_run"] < 500
            assert {event.type for event in found[-1]} == {event.type for event in found[0]}
            for one in found:
                assert check_story(one, words=20) == make_texts(5, 20)
    finally:
        await backend.close()


async def test_live_events_of_encrypted_runs_are_sent_encrypted(spawn, shared_url, tmp_path):
    options = {"responses": 2, "words": 10, "gates": ["0.5"], "encryption_key": KEY}
    received = []

    class Spy:
        """Somebody with access to the link and without the key."""

        def receive(self, sender, data):
            received.append(data)

        def note_loss(self, sender):
            pass

    backend = await open_backend(shared_url)
    try:
        async with spawn("drive_talker", shared_url, str(tmp_path), options) as driver:
            run_id = await read_until(driver, "run")
            await read_until(driver, "gate 0.5")
            link = await backend.open_link("spy", Spy())
            try:
                link.broadcast(msgspec.msgpack.encode(Watch([Watched(run_id, True, -1, 0)])))

                async def has_received():
                    return len(received) > 0

                await wait_until(has_received)
                (tmp_path / "0.5").touch()
                await read_until(driver, "completed")
            finally:
                await link.close()
    finally:
        await backend.close()
    assert not [data for data in received if b"0.1 " in data or b"delta" in data]


async def test_nothing_is_sent_without_readers(spawn, shared_url, tmp_path):
    agent = talker(tmp_path, responses=2, words=10, gates=["0.5"])
    async with (
        Runtime.open(shared_url, agents=[agent], live=True) as driver,
        Runtime.open(shared_url) as elsewhere,
    ):
        run = await driver.start("talker", "go")
        relay = driver._ctx.subscriptions.relay
        reading = asyncio.create_task(collect(await elsewhere.run(run.id), found := []))
        await wait_for_words(found, 5)
        assert relay.is_watched(run.id, live=True)
        reading.cancel()

        async def is_unwatched():
            return not relay.is_watched(run.id, live=False)

        await wait_until(is_unwatched)
        (tmp_path / "0.5").touch()
        await wait_for(run.wait())


async def test_without_a_link_the_store_is_polled(tmp_path, monkeypatch, caplog):
    private = tmp_path / f"standfast-{os.getuid()}"
    private.mkdir()
    private.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    caplog.set_level("INFO", "standfast")
    url = f"sqlite:///{tmp_path / 'app.db'}"
    agent = talker(tmp_path, responses=2, words=10)
    async with Runtime.open(url, agents=[agent]) as driver, Runtime.open(url) as elsewhere:
        run = await driver.start("talker", "go")
        found = await wait_for(collect(await elsewhere.run(run.id), []))
        assert (await wait_for((await elsewhere.run(run.id)).wait())).status == "completed"
    assert check_story(found, words=10) == ["", ""]
    assert len([record for record in caplog.records if "polled" in record.getMessage()]) == 2


@repeat(3, 60)
async def test_every_reader_gets_the_journal_and_no_live_event_twice_under_random_faults(
    spawn, shared_url, tmp_path, count
):
    """Drivers are killed and readers come and go; those present from the beginning of a response hear all of it."""
    for round_number in range(count):
        dice, folder = random.Random(round_number), tmp_path / str(round_number)
        folder.mkdir()
        await check_one_round(spawn, shared_url, folder, dice, f"round {round_number}")


async def check_one_round(spawn, url, folder: Path, dice, name):
    words, responses = dice.choice((5, 50, 400)), dice.randint(2, 4)
    options = {"responses": responses, "words": words, "pace": dice.choice((0, 0.001)), "name": name}
    async with Runtime.open(url) as runtime:
        stories, reading = [], []
        for deaths in range(dice.randint(1, 3), -1, -1):
            async with spawn("drive_talker", url, str(folder), options, True, 2.0) as driver:
                run = await runtime.run(await read_until(driver, "run"))
                for _ in range(dice.randint(1, 3)):
                    stories.append([])
                    reading.append(asyncio.create_task(collect(run, stories[-1])))
                if deaths:
                    await asyncio.sleep(dice.random() * 0.3)
                    driver.signal(signal.SIGKILL)
                    await driver.end()
                else:
                    await wait_for(asyncio.gather(*reading), 300)
        steps = (await run.info()).steps
    for story in stories:
        check_story(story, words=words)
        assert len([event for event in story if not event.live]) == steps
