"""URLs that name the tables of a database."""

from pathlib import Path

import standfast


async def is_reached_by_table_names(url: str) -> bool:
    session = standfast.SQLAlchemySession.from_url("user-7", url=url, create_tables=True)
    await session.add_items([{"role": "user", "content": "hello"}])
    await session.close()
    separator = "&" if "?" in url else "?"
    async with standfast.open_store(f"{url}{separator}tables=agent_sessions,agent_messages") as store:
        found = [info.session_id for info in await store.sessions()]
    async with standfast.open_store(url) as store:
        return found == ["user-7"] and await store.sessions() == []


async def test_a_url_may_name_the_tables_of_the_ecosystems_sessions(tmp_path: Path) -> None:
    assert await is_reached_by_table_names(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")


async def test_a_postgres_url_may_name_the_tables_of_the_ecosystems_sessions(postgres_url: str) -> None:
    assert await is_reached_by_table_names(postgres_url)
