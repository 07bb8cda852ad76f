"""A program that uses sessions of the installed openai-agents. Reads commands and prints answers, a JSON line each.

Run it with the Python of an environment that has openai-agents, whichever version. A command names a session (kind, id,
place and key), a method and its arguments::

    {"session": ["sqlite", "ann", "conversations.db", null], "call": ["get_items", 2]}
"""

import asyncio
import json
import sys
from typing import Any

import agents
from agents.extensions.memory.encrypt_session import EncryptedSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession


def open_session(kind: str, session_id: str, place: str, key: str | None) -> Any:
    plain: Any
    if kind == "sqlite":
        plain = agents.SQLiteSession(session_id, place)
    else:
        plain = SQLAlchemySession.from_url(session_id, url=place, create_tables=True)
    return EncryptedSession(session_id, plain, key) if key else plain


async def main() -> None:
    sessions: dict[str, Any] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        name = json.dumps(command["session"])
        session = sessions.get(name) or sessions.setdefault(name, open_session(*command["session"]))
        method, *args = command["call"]
        try:
            answer = {"result": await getattr(session, method)(*args)}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
