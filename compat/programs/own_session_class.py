"""A session class of one's own, one that fails, and one that compacts."""

import asyncio

from agents import Agent, Runner, SessionABC, SessionSettings, function_tool
from agents.memory import OpenAIResponsesCompactionSession, Session, SQLiteSession


class Notebook(SessionABC):
    session_settings = SessionSettings()

    def __init__(self, session_id):
        self.session_id, self.items, self.log = session_id, [], []

    async def get_items(self, limit=None):
        self.log.append(f"get {limit}")
        return list(self.items if limit is None else self.items[-limit:])

    async def add_items(self, items):
        self.log.append(f"add {[item.get('type', item.get('role')) for item in items]}")
        self.items += items

    async def pop_item(self):
        self.log.append("pop")
        return self.items.pop() if self.items else None

    async def clear_session(self):
        self.log.append("clear")
        self.items = []


class Broken(Notebook):
    async def add_items(self, items):
        await super().add_items(items)
        if len(self.items) > 2:
            raise OSError("the disk is full")


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


agent = Agent(name="A", model="gpt-4.1", tools=[add])


async def main() -> None:
    notebook = Notebook("mine")
    print(isinstance(notebook, Session), issubclass(Notebook, SessionABC))
    for text in ("one", 'call add {"a": 1, "b": 2}'):
        await Runner.run(agent, text, session=notebook)
    result = Runner.run_streamed(agent, 'call add {"a": 3, "b": 4}', session=notebook)
    async for _ in result.stream_events():
        pass
    print(*notebook.log, sep="\n")
    broken = Broken("broken")
    for text in ("one", "two"):
        try:
            print((await Runner.run(agent, text, session=broken)).final_output)
        except Exception as error:
            print(type(error).__name__, error, len(broken.items))
    under = SQLiteSession("under")
    compacting = OpenAIResponsesCompactionSession(
        "under", under, should_trigger_compaction=lambda context: False, model="gpt-4.1"
    )
    await Runner.run(agent, "hello", session=compacting)
    print(compacting.session_id, len(await under.get_items()), len(await compacting.get_items(limit=1)))
    try:
        await Runner.run(agent, [{"role": "user", "content": "list"}], session=under)
        print(len(await under.get_items()))
        await Runner.run(agent, "x", session=under, conversation_id="conv_1")
    except Exception as error:
        print(type(error).__name__)


asyncio.run(main())
