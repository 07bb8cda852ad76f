import asyncio

from agents import Agent, Runner, SessionSettings, SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, AsyncSQLiteSession, EncryptedSession, SQLAlchemySession
from agents.testing import ScriptedModel, assistant_message


async def talk(session, *texts: str) -> None:
    model = ScriptedModel([[assistant_message(f"answer to {text}")] for text in texts])
    for text in texts:
        await Runner.run(Agent(name="A", model=model), text, session=session)
    print(session.session_id, [len(call.input) for call in model.calls], len(await session.get_items()))
    print(
        [
            item["content"] if isinstance(item["content"], str) else item["content"][0]["text"]
            for item in await session.get_items(limit=2)
        ]
    )
    last = await session.pop_item()
    print(last["role"], len(await session.get_items()))
    await session.clear_session()
    print(await session.get_items(), await session.pop_item())


async def main() -> None:
    await talk(SQLiteSession("memory"), "one", "two")
    file = SQLiteSession("file", "a.db", sessions_table="s", messages_table="m")
    await talk(file, "one", "two")
    await file.add_items([{"role": "user", "content": "stays"}])
    file.close()
    await talk(SQLiteSession("limited", session_settings=SessionSettings(limit=1)), "one", "two", "three")
    await talk(AsyncSQLiteSession("async", "b.db"), "one")
    alchemy = SQLAlchemySession.from_url("alchemy", url="sqlite+aiosqlite:///c.db", create_tables=True)
    await talk(alchemy, "one", "two")
    await talk(EncryptedSession("secret", SQLiteSession("secret", "d.db"), "a-very-secret-key-of-mine"), "one")
    advanced = AdvancedSQLiteSession(session_id="advanced", db_path="e.db", create_tables=True)
    await advanced.add_items([{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}])
    await advanced.add_items([{"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}])
    print(await advanced.create_branch_from_turn(2, "other"))
    await advanced.add_items([{"role": "user", "content": "q3"}])
    print(sorted((one["branch_id"], one["message_count"], one["is_current"]) for one in await advanced.list_branches()))
    print([(turn["turn"], turn["content"]) for turn in await advanced.get_conversation_turns()])
    await advanced.switch_to_branch("main")
    print([item["content"] for item in await advanced.get_items()])


asyncio.run(main())
