"""The session contract over MongoDB, and documents of openai-agents."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mongodb_server import mongodb_url, pymongo
from standfast import MongoDBSession
from standfast.base.errors import StoreUnavailable
from standfast.history.imports.copies import copy_sessions
from standfast.history.imports.openai_agents import read_openai_agents
from standfast.history.session import SessionSettings
from standfast.history.store import open_store
from standfast.testing import PlainSessionContract
from standfast.testing.faults import Reopen

__all__ = ["mongodb_url"]
theirs = pytest.importorskip("agents.extensions.memory.mongodb_session")
AsyncMongoClient = pymongo.AsyncMongoClient


def make_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def database() -> str:
    return f"test_{secrets.token_hex(6)}"


class TestOverMongoDB(PlainSessionContract):
    @pytest.fixture
    def reopen(self, mongodb_url: str, database: str) -> Reopen:
        @asynccontextmanager
        async def reopen() -> AsyncIterator[Any]:
            async with AsyncMongoClient(mongodb_url) as client:
                yield client[database]

        return reopen

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> MongoDBSession:
        return MongoDBSession(session_id, client=storage.client, database=storage.name, session_settings=settings)


async def test_both_programs_use_a_session_in_turn(mongodb_url: str, database: str) -> None:
    async with AsyncMongoClient(mongodb_url) as client:
        their = theirs.MongoDBSession("ann", client=client, database=database)
        our = MongoDBSession("ann", client=client, database=database)
        await their.add_items([make_message("1"), make_message("2, é")])
        await our.add_items([make_message("3"), make_message("4")])
        await their.add_items([make_message("5")])
        assert (
            await our.get_items() == await their.get_items() == [make_message(t) for t in ("1", "2, é", "3", "4", "5")]
        )
        assert await our.get_items(2) == await their.get_items(2)
        assert [(await our.pop_item() or {})["content"] for _ in range(2)] == ["5", "4"]
        assert len(await their.get_items()) == 3
        await our.clear_session()
        assert await their.get_items() == []
        await their.add_items([make_message("again")])
        assert await our.get_items() == [make_message("again")]
        await their.clear_session()
        assert await our.get_items() == []


async def test_documents_of_earlier_versions_and_damaged_ones(mongodb_url: str, database: str) -> None:
    """openai-agents 0.17 writes a document per item, without a generation."""
    async with AsyncMongoClient(mongodb_url) as client:
        await client[database]["agent_sessions"].insert_one({"session_id": "ann", "_seq": 3})
        documents = [
            {"session_id": "ann", "seq": seq, "message_data": text}
            for seq, text in enumerate(['{"role":"user","content":"1"}', '{"role":"user","content":"2"}', "nonsense"])
        ]
        await client[database]["agent_messages"].insert_many(documents)
        session = MongoDBSession("ann", client=client, database=database)
        assert await session.get_items() == [make_message("1"), make_message("2")]
        assert await session.get_items(1) == [make_message("2")]
        await session.add_items([make_message("3")])
        assert await session.pop_item() == make_message("3")
        assert await session.pop_item() == make_message("2")
        assert await session.get_items() == [make_message("1")]
        assert await session.ping()


async def test_sessions_in_mongodb_are_copied(mongodb_url: str, database: str) -> None:
    async with AsyncMongoClient(mongodb_url) as client:
        their = theirs.MongoDBSession("ann", client=client, database=database)
        await their.add_items([make_message("forgotten")])
        await their.clear_session()
        await their.add_items([make_message("1"), make_message("2")])
    async with open_store("memory://") as store:
        source = read_openai_agents(f"{mongodb_url}/{database}")
        (report,) = await copy_sessions(source, store, framework="openai-agents")
        assert (report.session_id, report.outcome, report.items) == ("ann", "copied", 2)
        assert await store.session("ann").get_items() == [make_message("1"), make_message("2")]


async def test_a_server_that_is_away_is_an_error() -> None:
    session = MongoDBSession.from_uri(
        "ann", uri="mongodb://127.0.0.1:9", client_kwargs={"serverSelectionTimeoutMS": 1, "connectTimeoutMS": 1}
    )
    assert not await session.ping()
    with pytest.raises(StoreUnavailable, match="MongoDB"):
        await session.add_items([make_message("lost")])
    await session.close()
