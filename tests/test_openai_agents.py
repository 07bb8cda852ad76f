"""Sessions work in the runner of openai-agents, and sessions that openai-agents stored are continued."""

import sqlite3
from contextlib import closing
from pathlib import Path

import agents
import pytest
from agents.extensions.memory import SQLAlchemySession as OriginalSQLAlchemySession
from agents.testing import ScriptedModel, assistant_message, function_call
from sqlalchemy.ext.asyncio import create_async_engine

from standfast import SQLAlchemySession, SQLiteSession, open_store
from standfast.testing import assert_replayable


@agents.function_tool
def weather(city: str) -> str:
    return f"sunny in {city}"


def untraced() -> agents.RunConfig:
    return agents.RunConfig(tracing_disabled=True)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_with_a_tool_is_stored_and_continued(tmp_path: Path, streamed: bool) -> None:
    model = ScriptedModel(
        [
            [function_call("weather", {"city": "Rome"}, call_id="c1")],
            [assistant_message("It is sunny.")],
            [assistant_message("You asked about Rome.")],
        ]
    )
    agent = agents.Agent(name="guide", model=model, tools=[weather])
    session = SQLiteSession("trip", tmp_path / "trip.db")

    async def run(text: str) -> str:
        if streamed:
            result = agents.Runner.run_streamed(agent, text, session=session, run_config=untraced())
            async for _ in result.stream_events():
                pass
            return str(result.final_output)
        return str((await agents.Runner.run(agent, text, session=session, run_config=untraced())).final_output)

    assert await run("How is the weather in Rome?") == "It is sunny."
    assert await run("What did I ask?") == "You asked about Rome."
    kinds = [item.get("type", item.get("role")) for item in await session.get_items()]
    assert kinds[:3] == ["user", "function_call", "function_call_output"]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 1
    assert len(kinds) == 6
    assert_replayable(await session.get_items())
    session.close()


async def test_items_written_by_openai_agents_are_listed_and_searched(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/app.db") as store:
        session = store.session("user-7", owner="ann")
        agent = agents.Agent(name="guide", model=ScriptedModel([[assistant_message("Refund granted.")]]))
        await agents.Runner.run(agent, "I want a refund", session=session, run_config=untraced())
        assert [info.session_id for info in await store.sessions(owner="ann")] == ["user-7"]
        assert [hit.position for hit in await store.search("refund")] == [1, 0]


async def test_sessions_of_openai_agents_are_continued(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = agents.SQLiteSession("ann", path)
    await old.add_items([{"role": "user", "content": "first"}, {"role": "assistant", "content": "second"}])
    other = agents.SQLiteSession("bob", path)
    await other.add_items([{"role": "user", "content": "mine"}])
    old.close()
    other.close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('ann', '{broken')")
    session = SQLiteSession("ann", path)
    assert [item["content"] for item in await session.get_items()] == ["first", "second"]
    assert [problem.position for problem in (await session.check()).corrupt] == [2]
    await session.add_items([{"role": "user", "content": "third"}])
    session.close()
    again = SQLiteSession("ann", path)
    assert [item["content"] for item in await again.get_items()] == ["first", "second", "third"]
    again.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT COUNT(*) FROM agent_messages").fetchone() == (5,)
    db.close()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_sessions_in_a_server_database_are_continued(kind: str, postgres_url: str, tmp_path: Path) -> None:
    url = postgres_url if kind == "postgresql" else f"sqlite+aiosqlite:///{tmp_path}/old.db"
    engine = create_async_engine(url)
    old = OriginalSQLAlchemySession("ann", engine=engine, create_tables=True)
    await old.add_items([{"role": "user", "content": "first refund"}, {"role": "assistant", "content": "second"}])
    session = SQLAlchemySession("ann", engine=engine, create_tables=True)
    assert [item["content"] for item in await session.get_items()] == ["first refund", "second"]
    await session.add_items([{"role": "user", "content": "third"}])
    assert [hit.position for hit in await session.search("refund")] == [0]
    assert (await session.check()).ok
    assert [item["content"] for item in await session.get_items(2)] == ["second", "third"]
    await engine.dispose()


async def test_sessions_keep_their_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old = agents.SQLiteSession("ann", path)
    await old.add_items([{"role": "user", "content": "first"}])
    old.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE agent_sessions SET created_at = '2020-01-01 00:00:00', updated_at = '2021-01-01 00:00:00'")
    session = SQLiteSession("ann", path)
    record = await session.backend.get_session("ann")
    session.close()
    assert (record.created_at, record.updated_at) == (1_577_836_800, 1_609_459_200)
