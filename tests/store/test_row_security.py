"""Row-level security on PostgreSQL, for a user of the database who is no superuser."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool
from test_sqlalchemy_contract import list_stored_items

from factories.migrations import list_undo_statements
from servers import dsn
from standfast import InvalidInput, NotFound, OutsideScope, Store, Unsupported, open_store
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendEvents,
    AppendJournal,
    AppendVersions,
    DeleteRun,
    Erase,
    PutBlob,
    PutDocument,
    SaveApproval,
    SaveCheckpoint,
    SaveRun,
    Splice,
)
from standfast.store.sql import schema
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlalchemy.row_security import ENTER_SCOPE, SCOPED_ROLE
from standfast.testing import FakeClock, closing_backend
from standfast.testing.store.contract import RandomCommitClauses
from standfast.testing.store.fixtures import append, make_fork, make_rewind, read_data
from standfast.workspaces.versions import name_nested_workspace, parse_session_id

OWNERS = ("ann", "bob", None)
HOLDING = (
    *("sessions", "items", "generations", "links", "keys", "quarantine", "runs", "journal", "events", "approvals"),
    *("workspaces", "versions", "checkpoints", "blobs", "blob_data"),
)
ALL_TABLES = (*HOLDING, "leases", "documents")


@pytest.fixture
async def user_url(postgres_url: str) -> AsyncIterator[str]:
    """The database of a test, as its owner sees it: a user without any right beyond it."""
    user = f"app_{os.getpid()}"
    admin = await asyncpg.connect(dsn(postgres_url))
    database = await admin.fetchval("SELECT current_database()")
    try:
        await admin.execute(f"CREATE ROLE {user} LOGIN NOSUPERUSER NOCREATEROLE NOBYPASSRLS PASSWORD 'secret'")
        await admin.execute(f"ALTER DATABASE {database} OWNER TO {user}")
        await admin.execute(f"ALTER SCHEMA public OWNER TO {user}")
        if not await admin.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", SCOPED_ROLE):
            await admin.execute(f"CREATE ROLE {SCOPED_ROLE} NOLOGIN")
        await admin.execute(f"GRANT {SCOPED_ROLE} TO {user} WITH INHERIT FALSE, SET TRUE")
        url = sqlalchemy.make_url(postgres_url).set(username=user, password="secret")
        yield url.render_as_string(hide_password=False)
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", user)
        await admin.execute(f"REASSIGN OWNED BY {user} TO CURRENT_USER")
        await admin.execute(f"DROP OWNED BY {user}")
        await admin.execute(f"DROP OWNED BY {SCOPED_ROLE}")
        await admin.execute(f"DROP ROLE {user}")
    finally:
        await admin.close()


async def fill(backend: SqlBackend) -> None:
    """Write everything that an owner can have, for two owners and for nobody."""
    for number, owner in enumerate(OWNERS):
        name, digest = f"s-{owner}", f"digest-{owner}"
        await append(backend, name, b"one", b"two", words=("alpha", f"beta{owner}"), tape=number + 1, owner=owner)
        await backend.commit(await make_rewind(backend, name, 1, b"three"))
        await backend.commit(await make_fork(backend, name, f"fork-{owner}", 1))
        await backend.commit(Annotate(session_id=f"fork-{owner}", metadata={}, owner=owner))
        await backend.commit(
            SaveRun(run_id=f"r-{owner}", expected=0, status="running", data=b"{}", session_id=name),
            AppendJournal(run_id=f"r-{owner}", entries=(("k", b"1"),)),
            AppendEvents(run_id=f"r-{owner}", events=(("k", b"1"),)),
            SaveApproval(
                approval_id=f"a-{owner}", expected=0, run_id=f"r-{owner}", status="s", data=b"", session_id=name
            ),
            AppendVersions(key=f"session:{name}", workspace_id="w", expected=0, versions=(b"v",)),
            PutBlob(digest=digest, size=4, data=digest.encode()),
            PutBlob(digest="shared", size=4, data=b"same"),
            SaveCheckpoint(
                key=f"session:{name}",
                workspace_id="w",
                version=1,
                checkpoint_id=f"c-{owner}",
                data=b"",
                blobs=(digest, "shared"),
                size=4,
            ),
            AcquireLease(name=f"session:{name}", owner="process", ttl=60),
            PutDocument(kind="k", key=f"{owner}", data=b"{}"),
        )
    await backend.commit(SaveRun(run_id="r-alone", expected=0, status="running", data=b"{}"))
    await backend.commit(AppendVersions(key="run:r-alone", workspace_id="w", expected=0, versions=(b"v",)))


@pytest.fixture
async def backend(user_url: str) -> AsyncIterator[SqlBackend]:
    async with closing_backend(SqlBackend.from_url(user_url)) as backend:
        await fill(backend)
        await backend.enable_row_security()
        yield backend


@asynccontextmanager
async def raw_scope(url: str, owner: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction like those of a scoped store, for statements without any filter."""
    connection = await asyncpg.connect(dsn(url))
    try:
        async with connection.transaction():
            await connection.fetch(ENTER_SCOPE.replace(":owner", "$1"), owner)
            yield connection
    finally:
        await connection.close()


async def test_statements_without_a_filter_return_nothing_of_others(backend: SqlBackend, user_url: str) -> None:
    async with raw_scope(user_url, "ann") as connection:
        found = {table: await connection.fetch(f"SELECT * FROM standfast_{table}") for table in ALL_TABLES}
    names = {
        "sessions": {"s-ann", "fork-ann"},
        "links": {"fork-ann"},
        "generations": {"s-ann"},
        "runs": {"r-ann"},
        "journal": {"r-ann"},
        "events": {"r-ann"},
        "approvals": {"a-ann"},
        "workspaces": {"session:s-ann"},
        "versions": {"session:s-ann"},
        "checkpoints": {"session:s-ann"},
        "blobs": {"digest-ann", "shared"},
        "blob_data": {"digest-ann", "shared"},
    }
    columns = {"links": "session_id", "events": "run_id", "blob_data": "digest"}
    for table, expected in names.items():
        assert {row[columns.get(table, find_name_column(table))] for row in found[table]} == expected, table
    assert {row["tape"] for row in found["items"]} == {1}
    assert found["leases"] == found["documents"] == []


def find_name_column(table: str) -> str:
    if table in ("sessions", "generations"):
        return "session_id"
    if table in ("runs", "journal"):
        return "run_id"
    return {"approvals": "approval_id", "blobs": "digest"}.get(table, "name")


async def test_every_table_is_protected(backend: SqlBackend, user_url: str) -> None:
    connection = await asyncpg.connect(dsn(user_url))
    try:
        rows = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'standfast%'"
            " AND NOT (relrowsecurity AND relforcerowsecurity)"
        )
    finally:
        await connection.close()
    assert [row["relname"] for row in rows] == ["standfast_schema"]


async def test_an_owner_without_anything_sees_nothing(backend: SqlBackend, user_url: str) -> None:
    for owner in ("eve", "", "ann' OR '1'='1"):
        async with raw_scope(user_url, owner) as connection:
            for table in ALL_TABLES:
                assert await connection.fetch(f"SELECT * FROM standfast_{table}") == [], table


NEW_SESSION = (
    "INSERT INTO standfast_sessions SELECT 'new', {tape}, version, length, next_seq, open_from, erased_upto, closed,"
    " generation, seal, owner, metadata, created_at, updated_at FROM standfast_sessions WHERE session_id = 's-ann'"
)
WRITES = (
    "UPDATE standfast_sessions SET metadata = '{}'",
    "UPDATE standfast_sessions SET owner = 'ann'",
)
REFUSED = (
    "INSERT INTO standfast_items (tape, seq, data) VALUES (2, 99, 'x')",
    "INSERT INTO standfast_generations VALUES ('s-bob', 9, 0, '[]', 0, 0)",
    "INSERT INTO standfast_keys VALUES ('s-bob', 'k', 'd', 1, 1)",
    "INSERT INTO standfast_quarantine VALUES ('s-bob', 2, 0, 'x', 0)",
    "INSERT INTO standfast_links (tape, session_id, upto) VALUES (2, 's-ann', 9)",
    "INSERT INTO standfast_links (tape, session_id, upto, held) VALUES (2, 's-ann', 0, '[[0,1]]')",
    NEW_SESSION.format(tape=2),
    NEW_SESSION.format(tape=7),
    "INSERT INTO standfast_links (tape, session_id, upto) VALUES (1, 's-bob', 9)",
    "INSERT INTO standfast_versions VALUES ('session:s-bob', 9, 'x', 0)",
    "INSERT INTO standfast_versions VALUES ('sandbox:session:s-bob', 9, 'x', 0)",
    "INSERT INTO standfast_versions VALUES ('run:r-ann', 9, 'x', 0)",
    "UPDATE standfast_sessions SET owner = 'bob'",
    "UPDATE standfast_sessions SET owner = NULL",
    "UPDATE standfast_sessions SET tape = 2",
    "UPDATE standfast_items SET data = 'x'",
    "UPDATE standfast_runs SET status = 'x'",
    "UPDATE standfast_approvals SET status = 'x'",
    "INSERT INTO standfast_journal VALUES ('r-bob', 9, 'k', 'x', 0)",
    "INSERT INTO standfast_documents VALUES ('k', 'new', 'x', 1, 0)",
    "INSERT INTO standfast_leases VALUES ('new', 'me', 1, 0)",
    "DELETE FROM standfast_sessions",
    "DELETE FROM standfast_items",
    "DELETE FROM standfast_links",
    "TRUNCATE standfast_sessions",
    "ALTER TABLE standfast_sessions DISABLE ROW LEVEL SECURITY",
    "DROP TABLE standfast_documents",
)


async def test_statements_without_a_filter_change_nothing_of_others(backend: SqlBackend, user_url: str) -> None:
    before = [await backend.get_session(f"{kind}-{owner}") for kind in ("s", "fork") for owner in ("bob", None)]
    for statement in WRITES:
        async with raw_scope(user_url, "ann") as connection:
            assert await connection.execute(statement) == "UPDATE 2"
    after = [await backend.get_session(f"{kind}-{owner}") for kind in ("s", "fork") for owner in ("bob", None)]
    assert after == before


async def test_a_statement_that_touches_others_fails(backend: SqlBackend, user_url: str) -> None:
    await append(backend, "gone", b"x", tape=7, owner="bob")  # its fork still shows it
    await backend.commit(await make_fork(backend, "gone", "left", 1))
    await backend.commit(Erase(session_id="gone", forget=True))
    refused = []
    async with raw_scope(user_url, "ann") as connection:
        for statement in REFUSED:
            try:
                async with connection.transaction():
                    await connection.execute(statement)
            except asyncpg.InsufficientPrivilegeError:
                refused.append(statement)
    assert refused == list(REFUSED)


async def test_a_fork_of_a_foreign_session_shows_what_it_began_with_and_no_more(
    backend: SqlBackend, user_url: str
) -> None:
    await append(backend, "lent", b"one", b"two", b"three", tape=9, owner="bob")
    await backend.commit(await make_fork(backend, "lent", "borrowed", 2))
    await backend.commit(Annotate(session_id="borrowed", metadata={}, owner="ann"))
    await Store(backend).scoped("ann").backend.commit(await make_fork(backend, "borrowed", "again", 1))
    assert await read_data(backend, "again") == [b"one"]
    insert = "INSERT INTO standfast_links (tape, session_id, upto, held) VALUES (9, 's-ann', $1, $2)"
    read = "SELECT data FROM standfast_items WHERE tape = 9 ORDER BY seq"
    async with raw_scope(user_url, "ann") as connection:
        for upto, held in ((3, None), (2, "[[0,3]]"), (2, "[[0,1],[2,3]]"), (3, "broken"), (99, "[[1,1000]]")):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await connection.execute(insert, upto, held)
        await connection.execute(insert, 9, "[[1,2]]")
        assert [row["data"] for row in await connection.fetch(read)] == [b"one", b"two"]


async def test_a_scoped_store_reads_and_writes_what_its_owner_has(backend: SqlBackend) -> None:
    store = Store(backend).scoped("ann")
    assert {info.session_id for info in await store.sessions()} == {"s-ann", "fork-ann"}
    assert await read_data(store.backend, "s-ann") == [b"one", b"three"]
    assert await read_data(store.backend, "s-ann", generation=0) == [b"one", b"two"]
    assert await read_data(store.backend, "fork-ann") == [b"one"]
    session = store.session("new")
    await session.add_items([{"role": "user", "content": "gamma"}], key="k1")
    await session.add_items([{"role": "user", "content": "gamma"}], key="k1")
    await session.add_items([{"role": "user", "content": "delta"}])
    await session.rewind(1)
    fork = await session.fork(session_id="new-fork")
    await fork.add_items([{"role": "assistant", "content": "yes"}])
    assert [hit.session_id for hit in await store.search("gamma")] == ["new-fork", "new"]
    assert (await store.annotate("new", {"title": "x"})).owner == "ann"
    assert len(await fork.get_items()) == 2
    assert (await Store(backend).describe("new-fork")).owner == "ann"
    assert [run.run_id for run in await store.backend.list_runs(status=None, session_id=None, limit=9, after=0)] == [
        "r-ann"
    ]
    assert await store.backend.get_workspace("session:s-ann") is not None
    [blob] = await store.backend.find_blobs(["digest-ann", "digest-bob"])
    assert await store.backend.read_blob(blob) == b"digest-ann"
    assert await store.backend.get_document("k", "ann") is None


async def test_what_others_have_does_not_exist_in_a_scoped_store(backend: SqlBackend) -> None:
    store = Store(backend).scoped("ann")
    for name in ("s-bob", "s-None", "fork-bob"):
        with pytest.raises(NotFound):
            await store.describe(name)
        assert await read_data(store.backend, name) == []
        with pytest.raises(OutsideScope):
            await store.session(name).add_items([{"role": "user", "content": "hello"}])
        with pytest.raises(OutsideScope):
            await store.annotate(name, {"x": 1})
    assert await store.search("betabob") == []
    assert await store.backend.get_run("r-bob") is None
    assert await store.backend.read_journal("r-bob", after=0) == []
    assert await store.backend.get_approval("a-bob") is None
    assert await store.sessions(owner="bob") == []
    assert (await Store(backend).describe("s-bob")).head.version == 2


async def test_a_scoped_store_gives_nothing_away(backend: SqlBackend) -> None:
    scoped = backend.for_owner("ann")
    with pytest.raises(OutsideScope):
        await scoped.commit(Splice(session_id="mine", add=(b"x",), owner="bob"))
    with pytest.raises(OutsideScope):
        await scoped.commit(Annotate(session_id="s-ann", metadata={}, owner="bob"))
    with pytest.raises(OutsideScope):
        await scoped.commit(await make_fork(backend, "s-bob", "stolen", 1))
    with pytest.raises(OutsideScope):
        scoped.for_owner("bob")
    record = await backend.get_session("s-ann")
    assert record is not None
    assert record.owner == "ann"
    assert await backend.get_session("stolen") is None


async def test_a_scoped_store_destroys_nothing(backend: SqlBackend) -> None:
    scoped = backend.for_owner("ann")
    for op in (
        Erase(session_id="s-ann", forget=True),
        DeleteRun(run_id="r-ann", expected=1),
        SaveRun(run_id="r-ann", expected=1, status="x", data=b""),
        PutDocument(kind="k", key="ann", data=b""),
        AcquireLease(name="x", owner="y", ttl=1),
    ):
        with pytest.raises(Unsupported):
            await scoped.commit(op)
    with pytest.raises(Unsupported):
        await Store(scoped).session("s-ann").clear_session()


async def test_connections_are_returned_without_a_scope(user_url: str) -> None:
    pool = {"pool_size": 1, "max_overflow": 0}
    async with closing_backend(SqlBackend.from_url(user_url, engine_kwargs=pool)) as backend:
        await fill(backend)
        await backend.enable_row_security()
        stores = {owner: Store(backend).scoped(owner) for owner in ("ann", "bob")}

        async def look(owner: str) -> None:
            for _ in range(5):
                assert {info.owner for info in await stores[owner].sessions()} == {owner}
                assert len(await Store(backend).sessions()) == 6
                with pytest.raises(OutsideScope):
                    await stores[owner].session("s-None").add_items([{"role": "user", "content": "x"}])

        await asyncio.gather(look("ann"), look("bob"), look("ann"))
        async with backend.engine.connect() as connection:
            query = "SELECT current_user, session_user, current_setting('standfast.owner', true)"
            row = (await connection.execute(sqlalchemy.text(query))).one()
            assert row[0] == row[1]
            assert not row[2]


async def test_a_scope_works_without_state_in_connections(backend: SqlBackend, user_url: str) -> None:
    options = {"connect_args": {"statement_cache_size": 0}, "poolclass": NullPool}
    pooled = SqlBackend.from_url(f"{user_url}&prepared_statement_cache_size=0", engine_kwargs=options)
    async with closing_backend(pooled):
        store = Store(pooled).scoped("bob")
        await store.session("s-bob").add_items([{"role": "user", "content": "x"}])
        assert {info.owner for info in await store.sessions()} == {"bob"}


async def test_the_whole_store_works_as_before(backend: SqlBackend) -> None:
    assert len(await Store(backend).sessions()) == 6
    await append(backend, "another", b"x")
    await backend.commit(Erase(session_id="s-bob", forget=True), Erase(session_id="fork-bob", forget=True))
    assert len(await Store(backend).sessions()) == 5
    assert await Store(backend).search("betabob") == []


async def test_plans_of_the_whole_store_are_as_before(user_url: str) -> None:
    queries = (
        "SELECT data FROM standfast_items WHERE tape = 1 AND seq >= 0 AND seq < 9 ORDER BY seq",
        "SELECT * FROM standfast_items WHERE words @@ 'alpha':*::tsquery".replace("'alpha':*", "'alpha:*'"),
        "SELECT * FROM standfast_sessions WHERE lower(metadata) LIKE '%x%' ORDER BY updated_at DESC LIMIT 5",
        "SELECT * FROM standfast_runs WHERE status = 'running' AND position > 3 ORDER BY position LIMIT 5",
        "SELECT * FROM standfast_journal WHERE run_id = 'r' ORDER BY seq",
    )

    async def explain() -> list[str]:
        connection = await asyncpg.connect(dsn(user_url))
        try:
            await connection.execute("SET enable_seqscan = off; ANALYZE")
            return [row[0] for query in queries for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {query}")]
        finally:
            await connection.close()

    async with closing_backend(SqlBackend.from_url(user_url)) as backend:
        await fill(backend)
        before = await explain()
        await backend.enable_row_security()
        assert await explain() == before
        assert any("by_word" in line for line in before)


async def test_a_store_that_is_not_protected_cannot_be_scoped(user_url: str) -> None:
    async with closing_backend(SqlBackend.from_url(user_url)) as backend:
        await fill(backend)
        assert not await backend.has_row_security()
        with pytest.raises(Unsupported, match="standfast owners protect"):
            await Store(backend).scoped("ann").sessions()


async def test_protection_can_be_switched_off_and_on_again(backend: SqlBackend) -> None:
    scoped = Store(backend).scoped("ann")
    assert len(await scoped.sessions()) == 2
    await backend.disable_row_security()
    assert not await backend.has_row_security()
    with pytest.raises(OutsideScope):
        await scoped.sessions()
    for _ in range(2):
        await backend.enable_row_security()
    assert await backend.has_row_security()
    assert len(await scoped.sessions()) == 2


async def test_tables_of_a_later_version_are_protected_with_the_others(backend: SqlBackend, user_url: str) -> None:
    async with backend.engine.begin() as connection:
        for statement in list_undo_statements(schema.DOCUMENTS, "postgresql"):
            await connection.execute(sqlalchemy.text(statement))
    async with closing_backend(SqlBackend.from_url(user_url)) as later:
        assert await later.has_row_security()
        await later.commit(PutDocument(kind="k", key="a", data=b""))
        assert await later.for_owner("ann").list_documents("k", limit=9) == []


async def test_the_error_for_a_user_who_may_not_create_roles_says_what_to_do(user_url: str, postgres_url: str) -> None:
    user = sqlalchemy.make_url(user_url).username
    admin = await asyncpg.connect(dsn(postgres_url))
    try:
        await admin.execute(f"REVOKE {SCOPED_ROLE} FROM {user}")
        async with closing_backend(SqlBackend.from_url(user_url)) as backend:
            await append(backend, "s", b"x")
            with pytest.raises(Unsupported, match=f'GRANT {SCOPED_ROLE} TO "{user}"'):
                await backend.enable_row_security()
            assert not await backend.has_row_security()
            await admin.execute(f"ALTER ROLE {user} CREATEROLE")
            await admin.execute(f"GRANT {SCOPED_ROLE} TO {user} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
            await backend.enable_row_security()
            assert await Store(backend).scoped("ann").sessions() == []
    finally:
        await admin.close()


async def test_a_superuser_can_have_scoped_stores(postgres_url: str) -> None:
    async with closing_backend(SqlBackend.from_url(postgres_url)) as backend:
        await fill(backend)
        await backend.enable_row_security()
        assert {info.owner for info in await Store(backend).scoped("ann").sessions()} == {"ann"}
        await backend.disable_row_security()
        async with backend.engine.begin() as connection:
            await connection.execute(sqlalchemy.text(f"DROP OWNED BY {SCOPED_ROLE}"))


async def test_the_session_of_a_workspace_is_the_one_that_python_finds(backend: SqlBackend) -> None:
    expected = {
        "session:a:b": "a:b",
        "sandbox:session:x": "x",
        name_nested_workspace("session:a:b", ["c1", "c2"]): "a:b",
        name_nested_workspace("sandbox:session:ä1", ["c1"]): "ä1",
        "nested:x:session:y": None,
        "run:r": None,
        "session:": "",
        "": None,
    }
    assert {key: parse_session_id(key) for key in expected} == expected
    statement = sqlalchemy.text("SELECT standfast_scope_session(:key)")
    async with backend.engine.begin() as connection:
        for key, session_id in {**expected, "nested:99999999999:session:x": None}.items():
            assert (await connection.execute(statement, {"key": key})).scalar_one() == session_id, key


class TestWholeStoreWithRowSecurity(RandomCommitClauses):
    """Random commits to the whole store, by its user, have the effect that they have without row-level security."""

    examples = 2

    @pytest.fixture
    def list_items(self):
        return list_stored_items

    @pytest.fixture
    def reopen(self, user_url: str, clock: FakeClock):
        async def protect() -> None:
            async with closing_backend(SqlBackend.from_url(user_url)) as backend:
                await backend.enable_row_security()

        asyncio.run(protect())
        return lambda: closing_backend(SqlBackend.from_url(user_url, clock=clock))


async def test_other_stores_cannot_be_scoped(tmp_path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path / 'a.db'}", f"sqlite+aiosqlite:///{tmp_path / 'b.db'}"):
        async with open_store(url) as store:
            with pytest.raises(Unsupported):
                store.scoped("ann")
    async with open_store("memory://") as store:
        with pytest.raises((InvalidInput, Unsupported)):
            store.scoped("")
