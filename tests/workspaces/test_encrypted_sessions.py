"""The variables of an encrypted session are stored nowhere in clear."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from factories.runtime import reply, tool_calls
from standfast import Agent, CompactingSession, EncryptedSession, Runner, open_store, python_tool
from standfast.base.errors import Unsupported
from standfast.testing import ScriptedModel
from standfast.tool_calls.call import ToolFailed
from standfast.workers import PoolConfig, PythonSessions, SessionPool

KEY = "k" * 32
SECRET = "secret = 'top secret ' * 30"


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        yield pool


def analyst(sessions: PythonSessions, *codes: str) -> Agent[Any]:
    steps = [tool_calls(("run_python", {"code": code}, f"c{number}")) for number, code in enumerate(codes)]
    return Agent("analyst", tools=[python_tool(sessions)], model=ScriptedModel([*steps, reply("done")]))


def is_written(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.iterdir())


def compacting(session: EncryptedSession) -> CompactingSession:
    return CompactingSession(session, summarise=lambda items: "", trigger=lambda items: False)


@pytest.mark.parametrize("place", ["same", "other"])
@pytest.mark.parametrize("wrap", [lambda session: session, compacting], ids=["plain", "wrapped"])
async def test_a_run_in_an_encrypted_session_raises_instead_of_storing_its_variables_in_clear(
    tmp_path: Path, pool: SessionPool, place: str, wrap: Any
) -> None:
    url, other = f"sqlite:///{tmp_path / 'app.db'}", f"sqlite:///{tmp_path / 'other.db'}"
    async with open_store(url) as store, open_store(url if place == "same" else other) as kept:
        sessions = PythonSessions(pool, store=kept)
        session = wrap(EncryptedSession("talk", store.session("talk"), KEY))
        with pytest.raises(ToolFailed, match=r"encrypted.*encryption_key=.*memory://") as raised:
            await Runner.run(analyst(sessions, SECRET), "go", session=session)
        assert isinstance(raised.value.__cause__, Unsupported)
        assert await kept.backend.list_workspaces(limit=9, after="") == []
        sessions.close()
    assert not is_written(tmp_path, b"top secret")


async def test_a_nested_agent_stores_nothing_of_an_encrypted_session_in_clear(
    tmp_path: Path, pool: SessionPool
) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        sessions = PythonSessions(pool, store=store)
        inner = analyst(sessions, SECRET).as_tool("inner", "Inner.")
        steps = [tool_calls(("inner", {"input": "go"}, "o")), reply("done")]
        outer = Agent("outer", tools=[inner], model=ScriptedModel(steps))
        await Runner.run(outer, "go", session=EncryptedSession("talk", store.session("talk"), KEY))
        assert await store.backend.list_workspaces(limit=9, after="") == []
        sessions.close()


@pytest.mark.parametrize("options", [{"durability": "off"}, {"memory": True}])
async def test_what_the_error_names_works(tmp_path: Path, pool: SessionPool, options: dict[str, Any]) -> None:
    async with (
        open_store(f"sqlite:///{tmp_path / 'app.db'}") as store,
        open_store("memory://" if options.pop("memory", False) else f"sqlite:///{tmp_path / 'other.db'}") as kept,
    ):
        sessions = PythonSessions(pool, store=kept, **options)
        agent = analyst(sessions, SECRET, "print(len(secret))")
        result = await Runner.run(agent, "go", session=EncryptedSession("talk", store.session("talk"), KEY))
        outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        assert outputs[-1].strip() == "330"
        sessions.close()
    assert not is_written(tmp_path, b"top secret")
