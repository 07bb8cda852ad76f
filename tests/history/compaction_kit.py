"""What the tests of compaction by the Responses API have in common."""

from collections.abc import Awaitable, Callable
from typing import Any

from openai_server import OpenAIServer
from standfast.history.encryption.session import EncryptedSession
from standfast.history.openai.compaction import OpenAIResponsesCompactionSession
from standfast.history.session import SessionABC, SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.memory import MemoryBackend

Item = dict[str, Any]


class ForeignSession(SessionABC):
    """Somebody else's session: four methods, no transactions, and it can break at any of its steps."""

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self.session_id = "foreign"
        self.session_settings = settings
        self.items: list[Item] = []
        self.steps: list[str] = []
        self.before: Callable[[str, int], Awaitable[None]] | None = None
        self.after: Callable[[str, int], Awaitable[None]] | None = None

    async def get_items(self, limit: int | None = None) -> list[Item]:
        limit = limit if limit is not None else self.session_settings.limit if self.session_settings else None
        return [dict(item) for item in (self.items if limit is None else self.items[-limit:] if limit else [])]

    async def add_items(self, items: list[Item]) -> None:
        await self.step("add", lambda: self.items.extend(dict(item) for item in items))

    async def pop_item(self) -> Item | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        await self.step("clear", self.items.clear)

    async def step(self, name: str, act: Callable[[], None]) -> None:
        self.steps.append(name)
        count = self.steps.count(name)
        if self.before is not None:
            await self.before(name, count)
        act()
        if self.after is not None:
            await self.after(name, count)


class ReplacingSession(ForeignSession):
    """A session with ``replace_items`` and ``head`` only."""

    splice_items = None

    def __init__(self) -> None:
        super().__init__()
        self.stored_session = StoredSession("replacing", MemoryBackend())
        for name in ("get_items", "add_items", "pop_item", "clear_session", "head", "replace_items"):
            setattr(self, name, getattr(self.stored_session, name))


def stored(**options: Any) -> StoredSession:
    return StoredSession("chat", MemoryBackend(), **options)


def encrypted(underlying: Any) -> EncryptedSession:
    return EncryptedSession(underlying.session_id, underlying, "a secret of some length")


def encrypted_stored() -> EncryptedSession:
    return encrypted(stored())


def encrypted_foreign() -> EncryptedSession:
    return encrypted(ForeignSession())


UNDERLYING = [stored, ForeignSession, ReplacingSession, encrypted_stored, encrypted_foreign]


def compacting(server: OpenAIServer, underlying: Any, **options: Any) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession("chat", underlying, client=server.client(), **options)


def user(text: object) -> Item:
    return {"role": "user", "content": str(text)}


def answer(text: object) -> Item:
    return {"role": "assistant", "content": str(text), "type": "message"}


def call(name: str) -> Item:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str) -> Item:
    return {"type": "function_call_output", "call_id": name, "output": "done"}


def turns(count: int) -> list[Item]:
    return [item for number in range(count) for item in (user(f"q{number}"), answer(f"a{number}"))]


def summary_of(items: list[Item]) -> str:
    """What the compaction item in the history says it stands for."""
    (found,) = [item["encrypted_content"] for item in items if item.get("type") == "compaction"]
    return str(found)
