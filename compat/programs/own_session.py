import asyncio

from agents import Agent, Runner, Session, SessionABC, function_tool


class ListSession(SessionABC):
    session_settings = None

    def __init__(self, session_id: str) -> None:
        self.session_id, self.items, self.log = session_id, [], []

    async def get_items(self, limit=None):
        self.log.append(f"get {limit}")
        return list(self.items if limit is None else self.items[-limit:])

    async def add_items(self, items) -> None:
        self.log.append(f"add {[item.get('type') or item.get('role') for item in items]}")
        self.items += items

    async def pop_item(self):
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    session = ListSession("s")
    print(isinstance(session, Session))
    agent = Agent(name="A", tools=[add], model="gpt-4.1")
    await Runner.run(agent, "one", session=session)
    await Runner.run(agent, 'call add {"a": 1, "b": 2}', session=session)
    streamed = Runner.run_streamed(agent, "three", session=session)
    async for _ in streamed.stream_events():
        pass
    print(session.log)
    print(session.items)


asyncio.run(main())
