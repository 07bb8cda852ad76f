"""Somebody edits the SQLite file: what does not fit is refused by name, and calls that are stored are run again."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast import open_store
from standfast.workers import PoolConfig, PythonSessions, SessionPool

CELLS = ("n = [1]; open('f', 'w').write('one')", "n.append(2); open('f', 'a').write('two')", "n.append(3)")
EXPECTED = "([1, 2, 3], 'onetwo')"


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        yield pool


async def write_both(path: Path, pool: SessionPool) -> None:
    """Write the workspaces of two people, each with a checkpoint of each version."""
    async with open_store(f"sqlite:///{path}") as store:
        sessions = PythonSessions(pool, store=store)
        for key, cells in (("ann", CELLS), ("bob", ("secret = 7", "secret += 1", "secret += 1"))):
            for code in cells:
                await sessions.run(code, key=key)
                await sessions.save(key)
        sessions.close()


async def read_ann(path: Path, pool: SessionPool) -> str:
    async with open_store(f"sqlite:///{path}") as store:
        sessions = PythonSessions(pool, store=store)
        assert (await sessions.run("'secret' in globals()", key="ann")).as_text().splitlines()[-1] == "False"
        text = (await sessions.run("n, open('f').read()", key="ann")).as_text()
        sessions.close()
        return text.splitlines()[-1]


def edit(path: Path, *statements: str) -> int:
    with closing(sqlite3.connect(path)) as raw, raw:
        return sum(raw.execute(statement).rowcount for statement in statements)


ANN, BOB = "name LIKE '%ann'", "name LIKE '%bob'"
BLOBS = "digest IN (SELECT value FROM standfast_checkpoints, json_each(blobs) WHERE name LIKE '%ann')"
TOO_NEW = "CAST(X'7374616E64666173742D776F726B7370616365FF' || substr(data, 21) AS BLOB)"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE standfast_checkpoints SET data = substr(data, 1, 200) WHERE {ann}", "digest does not match"),
        ("UPDATE standfast_checkpoints SET data = substr(data, 1, 10) WHERE {ann}", "not the manifest"),
        ("UPDATE standfast_checkpoints SET data = X'' WHERE {ann}", "not the manifest"),
        ("UPDATE standfast_checkpoints SET data = CAST('{{}}' AS BLOB) WHERE {ann}", "not the manifest"),
        ("UPDATE standfast_checkpoints SET data = CAST(data || 'x' AS BLOB) WHERE {ann}", "digest does not match"),
        ("UPDATE standfast_checkpoints SET data = {new} WHERE {ann}", "format 255"),
        (
            "UPDATE standfast_checkpoints AS c SET data = (SELECT data FROM standfast_checkpoints o"
            " WHERE o.{bob} AND o.version = c.version) WHERE {ann}",
            "made for another",
        ),
        (
            "UPDATE standfast_checkpoints AS c SET data = (SELECT data FROM standfast_checkpoints o"
            " WHERE o.{ann} AND o.version = 1) WHERE {ann} AND version > 1",
            "made for another",
        ),
        ("UPDATE standfast_blob_data SET data = substr(data, 1, length(data) - 1) WHERE {blobs}", "chunk"),
        ("UPDATE standfast_blob_data SET data = CAST(X'09' || data AS BLOB) WHERE {blobs}", "unknown encoding"),
        ("UPDATE standfast_blob_data SET data = X'' WHERE {blobs}", "chunk"),
        ("DELETE FROM standfast_blob_data WHERE {blobs}", "is not stored"),
    ],
)
async def test_an_altered_checkpoint_is_refused_by_name_and_the_calls_are_run_again(
    tmp_path: Path, pool: SessionPool, caplog: pytest.LogCaptureFixture, statement: str, named: str
) -> None:
    path = tmp_path / "app.db"
    await write_both(path, pool)
    assert edit(path, statement.format(ann=ANN, bob=BOB, blobs=BLOBS, new=TOO_NEW))
    with caplog.at_level(logging.WARNING):
        assert await read_ann(path, pool) == EXPECTED
    assert named in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE standfast_versions SET data = CAST('{}' AS BLOB) WHERE {ann} AND version = 2",
        "UPDATE standfast_versions SET data = X'00FF' WHERE {ann} AND version = 2",
        "UPDATE standfast_versions SET data = CAST(replace(CAST(data AS TEXT), '\"parent\":1', '\"parent\":9') AS BLOB)"
        " WHERE {ann} AND version = 2",
        "DELETE FROM standfast_versions WHERE {ann} AND version = 2",
        "UPDATE standfast_workspaces SET version = 2 WHERE {ann}",
        "UPDATE standfast_workspaces SET version = 9 WHERE {ann}",
        "DELETE FROM standfast_workspaces WHERE {ann}",
    ],
)
async def test_versions_that_do_not_fit_together_are_refused_and_nothing_is_written(
    tmp_path: Path, pool: SessionPool, statement: str
) -> None:
    path = tmp_path / "app.db"
    await write_both(path, pool)
    assert edit(path, statement.replace("{ann}", ANN))
    before = read_everything(path)
    with pytest.raises(Exception, match=r"damaged|missing|put back|version") as raised:
        await read_ann(path, pool)
    assert type(raised.value).__name__ == "WorkspaceRefused"
    assert read_everything(path) == before


def read_everything(path: Path) -> list[Any]:
    tables = ("workspaces", "versions", "checkpoints", "blobs", "blob_data")
    with closing(sqlite3.connect(path)) as raw:
        return [raw.execute(f"SELECT * FROM standfast_{table} ORDER BY 1, 2").fetchall() for table in tables]
