"""The SQLAlchemy backend: connections, concurrency, cancellation, engines and tables."""

import asyncio
import itertools
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

import standfast
from factories.store import Program, dump, programs, try_commit
from servers import CUT_OTHERS, OTHERS, dsn
from standfast import open_store
from standfast.base.errors import (
    Closed,
    HistoryMoved,
    InvalidInput,
    MissingExtra,
    SchemaTooNew,
    SchemaTooOld,
    StoreUnavailable,
)
from standfast.store.memory import MemoryBackend
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendJournal,
    BatchKey,
    Erase,
    RequireVersion,
    SaveRun,
    Splice,
    ViewUpdate,
)
from standfast.store.records import Head
from standfast.store.sql import schema
from standfast.store.sql.connection import TableNames
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlalchemy.connections import DEFAULT_POOL_SIZE
from standfast.store.tape import TapeSpan
from standfast.testing import FakeClock, closing_backend
from wiretap import RequestAfter, Wiretap

# --- random programs ----------------------------------------------------------------------------

_numbers = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgres", "postgres with statements"])
async def backend(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_tables_url: str, clock: FakeClock
) -> AsyncIterator[SqlBackend]:
    if request.param == "sqlite":
        made = SqlBackend.from_url(f"sqlite:///{tmp_path / 'store.db'}", clock=clock)
    else:
        made = SqlBackend(
            create_async_engine(postgres_tables_url),
            owns_engine=True,
            clock=clock,
            server_side=request.param == "postgres",
        )
    async with closing_backend(made):
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


COMMON = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(COMMON, max_examples=3)
@given(program=programs)
async def test_a_random_program_matches_the_reference(
    backend: SqlBackend, clock: FakeClock, program: list[Any]
) -> None:
    await compare_with_reference(backend, clock, program)


@pytest.mark.soak
@settings(COMMON, max_examples=200)
@given(program=programs)
async def test_many_random_programs_match_the_reference(
    backend: SqlBackend, clock: FakeClock, program: list[Any]
) -> None:
    await compare_with_reference(backend, clock, program)


async def compare_with_reference(backend: SqlBackend, clock: FakeClock, program: list[Any]) -> None:
    reference = MemoryBackend(clock=clock)
    prefix = f"p{next(_numbers)}."
    steps = Program(reference, prefix)
    for seconds, batch in program:
        clock.advance(seconds)
        ops = [op for step in batch for op in await steps.build_ops(step)]
        assert await try_commit(backend, ops) == await try_commit(reference, ops)
    assert await dump(backend, prefix) == await dump(reference, prefix)


# --- connections that break ---------------------------------------------------------------------


async def read_items(backend: SqlBackend, session_id: str) -> list[bytes | None]:
    page = await backend.read(session_id)
    return [row.data for row in page.rows] if page else []


@asynccontextmanager
async def observer(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test, in addition to those of the backend."""
    connection = await asyncpg.connect(dsn(url))
    try:
        yield connection
    finally:
        await connection.close()


async def until(connection: asyncpg.Connection, condition: str) -> None:
    async with asyncio.timeout(120):
        while not await connection.fetchval(condition):  # noqa: ASYNC110 - the server sends no notification
            await asyncio.sleep(0.005)


WAITING = f"SELECT count(*) > 0 FROM {OTHERS} AND wait_event_type = 'Lock'"


async def test_a_commit_takes_one_round_trip(postgres_tables_url: str) -> None:
    async with (
        Wiretap.start(postgres_tables_url) as tap,
        closing_backend(SqlBackend.from_url(tap.proxy_url, engine_kwargs=tap.engine_kwargs)) as backend,
    ):
        await backend.commit(Splice(session_id="s", add=(b"a",)))
        tap.reset()
        await backend.commit(Splice(session_id="s", add=(b"b", b"c"), words=("one", "two")))
        assert tap.round_trips == 1
        tap.reset()
        await backend.commit(
            AcquireLease(name="l", owner="me", ttl=3),
            SaveRun(run_id="r", expected=0, status="running", data=b"{}"),
            AppendJournal(run_id="r", entries=(("call", b"{}"),)),
            Annotate(session_id="s", metadata={"title": "x"}),
            Splice(session_id="new", add=(b"a",), key=BatchKey("turn", "digest")),
        )
        assert tap.round_trips == 1
        tap.reset()
        with pytest.raises(HistoryMoved):
            await backend.commit(RequireVersion("s", 99))
        assert tap.round_trips == 1


async def test_a_commit_on_an_existing_engine_takes_one_round_trip(postgres_tables_url: str) -> None:
    async with Wiretap.start(postgres_tables_url) as tap:
        engine = create_async_engine(tap.proxy_url, **tap.engine_kwargs)
        async with closing_backend(SqlBackend(engine)) as backend:
            await backend.commit(Splice(session_id="s", add=(b"a",)))
            tap.reset()
            await backend.commit(Splice(session_id="s", add=(b"b",)))
            assert tap.round_trips == 1
        await engine.dispose()


@pytest.mark.parametrize("server_side", [True, False], ids=["with function", "with statements"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "without a key"])
async def test_a_commit_with_a_lost_response_is_only_repeated_with_a_key(
    postgres_tables_url: str, keyed: bool, server_side: bool
) -> None:
    async with Wiretap.start(postgres_tables_url) as tap:
        engine = create_async_engine(tap.proxy_url, **tap.engine_kwargs)
        async with closing_backend(SqlBackend(engine, owns_engine=True, server_side=server_side)) as backend:
            key, again = (BatchKey("turn 1", "x"), BatchKey("turn 2", "x")) if keyed else (None, None)
            await backend.commit(Splice(session_id="s", add=(b"a",), key=key))
            # Without the function, the items are followed by the key, if any, and then by COMMIT.
            tap.cut_at = RequestAfter(b"hold me", 0 if server_side else 1 + keyed)
            splice = Splice(session_id="s", add=(b"hold me",), key=again)
            if keyed:
                assert await backend.commit(splice) == [Head(2, 2)]
            else:
                with pytest.raises(StoreUnavailable):
                    await backend.commit(splice)
            assert tap.cut_at is None
            assert await read_items(backend, "s") == [b"a", b"hold me"]


async def test_a_commit_is_repeated_if_the_connection_is_lost_before_it(postgres_tables_url: str) -> None:
    async with Wiretap.start(postgres_tables_url) as tap:
        engine = create_async_engine(tap.proxy_url, **tap.engine_kwargs)
        async with closing_backend(SqlBackend(engine, owns_engine=True, server_side=False)) as backend:
            await backend.commit(Splice(session_id="s", add=(b"a",)))
            tap.cut_at = RequestAfter(b"hold me", 0)
            await backend.commit(Splice(session_id="s", add=(b"hold me",)))
            assert tap.cut_at is None
            assert await read_items(backend, "s") == [b"a", b"hold me"]


async def test_a_killed_server_process_is_reported_and_replaced(
    postgres_tables_url: str,
) -> None:
    async with (
        observer(postgres_tables_url) as admin,
        observer(postgres_tables_url) as rival,
        closing_backend(SqlBackend.from_url(postgres_tables_url)) as backend,
    ):
        await backend.commit(Splice(session_id="s", add=(b"a",)))
        async with rival.transaction():
            await rival.execute("SELECT 1 FROM standfast_sessions FOR UPDATE")
            writing = asyncio.create_task(backend.commit(Splice(session_id="s", add=(b"b",))))
            await until(admin, WAITING)
            await admin.execute(f"{CUT_OTHERS} AND wait_event_type = 'Lock'")
            with pytest.raises(StoreUnavailable, match="postgresql"):
                await writing
        assert await read_items(backend, "s") == [b"a"]
        assert await backend.commit(Splice(session_id="s", add=(b"b",))) == [Head(2, 2)]


async def test_an_idle_connection_that_was_lost_is_replaced(postgres_tables_url: str) -> None:
    async with (
        observer(postgres_tables_url) as admin,
        closing_backend(SqlBackend.from_url(postgres_tables_url)) as backend,
    ):
        opened: list[asyncpg.Connection] = []
        sqlalchemy.event.listen(
            backend.engine.sync_engine, "connect", lambda connection, _: opened.append(connection.driver_connection)
        )
        await backend.commit(Splice(session_id="s", add=(b"a",)))
        await asyncio.gather(*(backend.read("s") for _ in range(4)))
        await admin.execute(f"{CUT_OTHERS} AND backend_type = 'client backend'")
        await until(admin, f"SELECT count(*) = 0 FROM {OTHERS} AND backend_type = 'client backend'")
        async with asyncio.timeout(120):
            while not all(connection.is_closed() for connection in opened):  # noqa: ASYNC110 - the driver does not tell
                await asyncio.sleep(0.005)
        assert await backend.commit(Splice(session_id="s", add=(b"b",))) == [Head(2, 2)]
        assert await read_items(backend, "s") == [b"a", b"b"]


@asynccontextmanager
async def withhold_end(url: str, folder: Path) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Forward connections to the server, but not the first end: that client learns only from a message that it was cut.

    Yields the URL of the forwarder, and an event that is set when the server has ended a connection.
    """
    original, ended = sqlalchemy.make_url(url), asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while data := await reader.read(65_536):
            writer.write(data)
        if ended.is_set():
            writer.close()
        ended.set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(f"{original.query['host']}/.s.PGSQL.5432")
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    server = await asyncio.start_unix_server(forward, folder / ".s.PGSQL.5432")
    try:
        yield original.update_query_dict({"host": str(folder)}).render_as_string(hide_password=False), ended
    finally:
        for writer in writers:
            writer.close()
        server.close()


@pytest.mark.parametrize("first", ["commit", "read"])
async def test_a_connection_that_the_server_has_ended_is_replaced_before_its_end_arrives(
    postgres_tables_url: str, first: str, tmp_path: Path
) -> None:
    async with (
        observer(postgres_tables_url) as admin,
        withhold_end(postgres_tables_url, tmp_path) as (url, ended),
        closing_backend(SqlBackend.from_url(url)) as backend,
    ):
        await backend.commit(Splice(session_id="s", add=(b"a",)))
        await admin.execute(f"{CUT_OTHERS} AND backend_type = 'client backend'")
        await ended.wait()
        for _ in range(10):  # until the message has been read
            await asyncio.sleep(0)
        if first == "read":
            assert await read_items(backend, "s") == [b"a"]
        assert await backend.commit(Splice(session_id="s", add=(b"b",))) == [Head(2, 2)]
        assert await read_items(backend, "s") == [b"a", b"b"]


async def test_connections_are_kept_however_many_commits_and_reads_happen_at_once(postgres_tables_url: str) -> None:
    """Opening one takes the server many times as long as a commit."""
    async with closing_backend(SqlBackend.from_url(postgres_tables_url)) as backend:
        opened: list[object] = []
        sqlalchemy.event.listen(
            backend.engine.sync_engine, "connect", lambda connection, _: opened.append(connection.driver_connection)
        )
        for _ in range(4):
            commits = (backend.commit(Splice(session_id=f"s{number}", add=(b"a",))) for number in range(20))
            await asyncio.gather(*commits, *(backend.read("s1") for _ in range(20)))
        assert len(opened) <= DEFAULT_POOL_SIZE
        assert await read_items(backend, "s1") == [b"a"] * 4


async def test_the_size_of_the_pool_can_be_chosen(postgres_tables_url: str) -> None:
    joint = "&" if "?" in postgres_tables_url else "?"
    async with closing_backend(SqlBackend.from_url(postgres_tables_url, engine_kwargs={"pool_size": 2})) as backend:
        await asyncio.gather(*(backend.commit(Splice(session_id="s", add=(b"a",))) for _ in range(8)))
        assert backend.engine.pool.size() == 2
    # As behind a pooler that gives each transaction another connection.
    options = {"poolclass": NullPool, "connect_args": {"statement_cache_size": 0}}
    unpooled = SqlBackend.from_url(
        f"{postgres_tables_url}{joint}prepared_statement_cache_size=0", engine_kwargs=options
    )
    async with closing_backend(unpooled), observer(postgres_tables_url) as admin:
        await asyncio.gather(*(unpooled.commit(Splice(session_id="s", add=(b"a",))) for _ in range(3)))
        await until(admin, f"SELECT count(*) = 0 FROM {OTHERS} AND backend_type = 'client backend'")
        assert len(await read_items(unpooled, "s")) == 11


async def test_an_engine_of_the_caller_sees_every_statement(postgres_tables_url: str) -> None:
    engine, seen = create_async_engine(postgres_tables_url), list[str]()
    sqlalchemy.event.listen(
        engine.sync_engine, "before_cursor_execute", lambda _1, _2, statement, *_: seen.append(statement)
    )
    async with closing_backend(SqlBackend(engine)) as backend:
        await backend.commit(Splice(session_id="s", add=(b"a",)))
        seen.clear()
        await backend.commit(Splice(session_id="s", add=(b"b",)))
        assert ["standfast_commit" in statement for statement in seen] == [True]
        assert await read_items(backend, "s") == [b"a", b"b"]
        assert len(seen) > 1
    await engine.dispose()


async def test_an_unreachable_server_is_reported_without_the_password() -> None:
    async with closing_backend(SqlBackend.from_url("postgresql://app:secret@127.0.0.1:1/nothing")) as backend:
        for call in (backend.get_session("s"), backend.commit(Splice(session_id="s"))):
            with pytest.raises(StoreUnavailable) as refused:
                await call
            assert "127.0.0.1:1/nothing" in str(refused.value)
            assert "secret" not in str(refused.value)


# --- concurrency --------------------------------------------------------------------------------


@pytest.mark.parametrize("server_side", [True, False], ids=["with function", "with statements"])
async def test_eight_concurrent_writers_lose_nothing(postgres_tables_url: str, server_side: bool) -> None:
    engine = create_async_engine(postgres_tables_url)
    async with closing_backend(SqlBackend(engine, owns_engine=True, server_side=server_side)) as backend:

        async def writer(number: int) -> None:
            for batch in range(25):
                await backend.commit(Splice(session_id="s", add=(b"%d.%d" % (number, batch),) * 2))

        await asyncio.gather(*map(writer, range(8)))
        stored = await read_items(backend, "s")
        assert stored[::2] == stored[1::2]
        assert sorted(stored[::2]) == sorted(b"%d.%d" % (number, batch) for number in range(8) for batch in range(25))


async def test_a_repeated_batch_waits_for_the_first_one(backend: SqlBackend) -> None:
    splice = Splice(session_id="s", add=(b"a",), key=BatchKey("turn", "digest"), expected=0)
    assert await asyncio.gather(*(backend.commit(splice) for _ in range(8))) == [[Head(1, 1)]] * 8
    assert await read_items(backend, "s") == [b"a"]


async def test_deadlocked_commits_are_retried(backend: SqlBackend) -> None:
    async def write(first: str, second: str) -> None:
        await backend.commit(Splice(session_id=first, add=(b"x",)), Splice(session_id=second, add=(b"x",)))

    await write("a", "b")
    await asyncio.gather(*(write(*pair) for pair in [("a", "b"), ("b", "a")] * 2))
    assert await read_items(backend, "a") == await read_items(backend, "b") == [b"x"] * 5


async def test_concurrently_erased_forks_leave_no_items(backend: SqlBackend) -> None:
    for attempt in range(5):
        parent, forks = f"parent {attempt}", [f"fork {attempt} {number}" for number in range(4)]
        await backend.commit(Splice(session_id=parent, add=(b"secret",) * 3, tape=100 + attempt))
        for fork in forks:
            view = ViewUpdate((TapeSpan(100 + attempt, 0, 2),), 0, 2)
            links = ((100 + attempt, 2),)
            await backend.commit(Splice(session_id=fork, view_update=view, expected=0, links=links))
        await asyncio.gather(
            *(backend.commit(Erase(session_id=name, forget=attempt % 2 == 0)) for name in [*forks, parent])
        )
    async with backend.engine.connect() as connection:
        left = await connection.execute(sqlalchemy.text("SELECT COUNT(*) FROM standfast_items"))
        assert left.scalar_one() == 0


OPENERS = """
import asyncio, os, sys
import aiosqlite, asyncpg  # before the forks, so that only one process spends time on it
from standfast.store.operations import Splice
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlalchemy.connections import DEFAULT_POOL_SIZE

async def open_and_write(number):
    backend = SqlBackend.from_url(sys.argv[1], engine_kwargs={"pool_size": 1})
    await backend.commit(Splice(session_id="s", add=(b"x",)))
    await backend.close()

async def main():
    await asyncio.gather(*map(open_and_write, range(8)))

# All processes wait for the end of a pipe, which they see at the same time.
start, keep_waiting = os.pipe()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        os.close(keep_waiting)
        os.read(start, 1)
        asyncio.run(main())
        os._exit(0)
    children.append(child)
os.close(keep_waiting)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_processes_that_open_a_new_database_concurrently_all_succeed(
    database: str, postgres_url: str, tmp_path: Path
) -> None:
    url = postgres_url if database == "postgres" else f"sqlite+aiosqlite:///{tmp_path / 'store.db'}"
    environment = {"PYTHONPATH": str(Path(standfast.__file__).parents[1])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OPENERS, url, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
    async with closing_backend(SqlBackend.from_url(url)) as backend:
        assert len(await read_items(backend, "s")) == 32


# --- cancellation -------------------------------------------------------------------------------


async def test_a_later_commit_does_not_overtake_one_whose_caller_was_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with closing_backend(SqlBackend.from_url(f"sqlite+aiosqlite:///{path}")) as backend:
        await backend.commit(Splice(session_id="other", add=(b"x",)))
        for name in "abc":
            with closing(sqlite3.connect(path, isolation_level=None)) as rival:
                rival.execute("BEGIN IMMEDIATE")
                first = asyncio.create_task(backend.commit(Splice(session_id=name, add=(b"first",))))
                while not backend.connections.pending_tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                first.cancel()
                # SQLite polls for a lock ever less often: without waiting, the next commit would get it first.
                done, _ = await asyncio.wait(backend.connections.pending_tasks, timeout=0.4)
                assert not done, "the rival has the lock"
                rival.execute("COMMIT")
            await backend.commit(Splice(session_id=name, add=(b"later",)))
            assert await read_items(backend, name) == [b"first", b"later"]


async def test_cancelled_callers_leak_no_connection_or_transaction(postgres_tables_url: str) -> None:
    def make_engine() -> AsyncEngine:
        return create_async_engine(postgres_tables_url, pool_size=2, max_overflow=0, pool_timeout=60)

    engine = make_engine()
    for made in (
        SqlBackend(engine),
        SqlBackend(engine, server_side=False),
        SqlBackend(make_engine(), owns_engine=True),
    ):
        pool = made.engine.pool
        async with closing_backend(made) as backend:
            for turns in range(0, 60, 2):
                calls = [
                    asyncio.create_task(backend.commit(Splice(session_id="s", add=(b"%d" % turns,) * 2))),
                    asyncio.create_task(backend.read("s")),
                    asyncio.create_task(backend.search(["x"], session_id=None, owner=None, limit=1, skip=0)),
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            stored = await read_items(backend, "s")
            assert stored[::2] == stored[1::2]
            await asyncio.gather(*(backend.commit(Splice(session_id="t", add=(b"x",))) for _ in range(4)))
        assert pool.checkedout() == 0
    async with observer(postgres_tables_url) as admin:
        await until(admin, f"SELECT count(*) = 0 FROM {OTHERS} AND state LIKE 'idle in transaction%'")
        assert not await admin.fetchval(WAITING)
    await engine.dispose()


async def test_a_running_commit_is_finished_when_its_caller_is_cancelled(postgres_tables_url: str) -> None:
    async with (
        observer(postgres_tables_url) as admin,
        observer(postgres_tables_url) as rival,
        closing_backend(SqlBackend.from_url(postgres_tables_url)) as backend,
    ):
        await backend.commit(Splice(session_id="s", add=(b"a",)))
        async with rival.transaction():
            await rival.execute("SELECT 1 FROM standfast_sessions FOR UPDATE")
            writing = asyncio.create_task(backend.commit(Splice(session_id="s", add=(b"b",))))
            await until(admin, WAITING)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        await backend.commit(Splice(session_id="s", add=(b"c",)))
        assert await read_items(backend, "s") == [b"a", b"b", b"c"]


# --- engines and tables -------------------------------------------------------------------------


async def test_an_existing_engine_stays_open(postgres_tables_url: str) -> None:
    engine = create_async_engine(postgres_tables_url)
    backend = SqlBackend(engine)
    await backend.commit(Splice(session_id="s", add=(b"a",)))
    await backend.close()
    with pytest.raises(Closed):
        await backend.get_session("s")
    assert engine.pool.checkedin() == 1
    async with engine.begin() as connection:
        # Its connections are not in autocommit mode: this is undone without a commit.
        await connection.execute(sqlalchemy.text("DELETE FROM standfast_items"))
        await connection.rollback()
    async with closing_backend(SqlBackend(engine)) as again:
        assert await read_items(again, "s") == [b"a"]
    await engine.dispose()


async def test_tables_have_the_requested_names(postgres_url: str) -> None:
    names = TableNames(sessions="Team_sessions", items="Team_entries")
    async with closing_backend(SqlBackend.from_url(postgres_url, names=names)) as backend:
        await backend.commit(Splice(session_id="s", add=(b"a",), words=("word",)))
    async with closing_backend(SqlBackend.from_url(postgres_url, names=names, create_tables=False)) as backend:
        assert len(await backend.search(["wo"], session_id=None, owner=None, limit=9, skip=0) or []) == 1
    async with observer(postgres_url) as admin:
        tables = await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        functions = await admin.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        assert {name.split("_")[0] for (name,) in [*tables, *functions]} == {"team"}


async def test_missing_tables_are_not_created_without_create_tables(postgres_url: str) -> None:
    async with closing_backend(SqlBackend.from_url(postgres_url, create_tables=False)) as backend:
        with pytest.raises(SchemaTooOld, match="create_tables=True") as missing:
            await backend.get_session("s")
        assert (missing.value.found, missing.value.supported) == (0, schema.LATEST_VERSION)
    async with observer(postgres_url) as admin:
        assert await admin.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0


async def test_a_newer_schema_is_left_untouched(postgres_url: str) -> None:
    async with closing_backend(SqlBackend.from_url(postgres_url)) as backend:
        await backend.commit(Splice(session_id="s", add=(b"a",)))
    async with observer(postgres_url) as admin:
        await admin.execute("INSERT INTO standfast_schema VALUES (99, 'tomorrow', 0)")
    async with closing_backend(SqlBackend.from_url(postgres_url)) as backend:
        with pytest.raises(SchemaTooNew) as newer:
            await backend.commit(Splice(session_id="s", add=(b"b",)))
        assert newer.value.found == 99


async def test_the_address_that_hosting_services_give_is_one_of_postgresql(postgres_tables_url: str) -> None:
    async with open_store(postgres_tables_url.replace("postgresql+asyncpg://", "postgres://")) as store:
        await store.session("s").add_items([{"role": "user", "content": "hello"}])
        assert [one.session_id for one in await store.sessions()] == ["s"]


@pytest.mark.parametrize("url", ["nonsense", "warehouse://x/y", "postgresql+psycopg2://x/y", "sqlite+pysqlite://"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises((InvalidInput, MissingExtra)):
        SqlBackend.from_url(url)


def test_the_error_names_a_missing_driver() -> None:
    with pytest.raises(InvalidInput, match="the driver asyncmy is not installed: pip install asyncmy"):
        SqlBackend.from_url("mysql+asyncmy://x/y")


# --- values and clocks --------------------------------------------------------------------------


async def test_leases_expire_by_the_clock_of_the_server(postgres_tables_url: str) -> None:
    async with (
        observer(postgres_tables_url) as admin,
        closing_backend(SqlBackend.from_url(postgres_tables_url)) as with_function,
        closing_backend(
            SqlBackend(create_async_engine(postgres_tables_url), owns_engine=True, server_side=False)
        ) as with_statements,
    ):
        for number, backend in enumerate((with_function, with_statements)):
            before = await admin.fetchval("SELECT extract(epoch FROM clock_timestamp())")
            (lease,) = await backend.commit(AcquireLease(name=f"l{number}", owner="me", ttl=100))
            after = await admin.fetchval("SELECT extract(epoch FROM clock_timestamp())")
            assert float(before) <= lease.expires_at - 100 <= float(after)


async def test_metadata_is_stored_unchanged(backend: SqlBackend) -> None:
    first = {"float": 1e5, "whole": 2.0, "large": 2**63, "nul": "a\0b", "nested": {"none": None, "list": [1, "ß"]}}
    await backend.commit(Annotate(session_id="s", metadata=first))
    await backend.commit(Annotate(session_id="s", metadata={"nul\0": 1, "float": None, "new": True}))
    record = await backend.get_session("s")
    assert repr(record.metadata) == repr(
        {"whole": 2.0, "large": 2**63, "nul": "a\0b", "nested": first["nested"], "nul\0": 1, "new": True}
    )


async def test_a_name_that_the_database_cannot_store_is_refused(postgres_tables_url: str) -> None:
    async with closing_backend(SqlBackend.from_url(postgres_tables_url)) as backend:
        for name in ("a\0b", "\ud800"):
            with pytest.raises(InvalidInput):
                await backend.commit(Splice(session_id=name, add=(b"a",)))
        assert await backend.list_sessions(owner=None, query=None, limit=9, after=None) == []
