"""A program in a rolling deployment: it writes to sessions of one library, and reads them. Start it with a library.

Reads commands and prints answers, a JSON line each. A command names the kind of session, its place, its id, and what to
write: so many batches of two items by so many writers at once, or none to read the session::

    {"kind": "redis", "place": "redis://...", "session": "ann", "name": "old", "writers": 2, "batches": 20}
"""

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

LIBRARY = sys.argv[1]
MEMORY = import_module(f"{LIBRARY}.extensions.memory")


def open_session(kind: str, place: str, session_id: str) -> Any:
    if kind == "sqlite":
        return import_module(LIBRARY).SQLiteSession(session_id, place)
    if kind == "branches":
        return MEMORY.AdvancedSQLiteSession(session_id=session_id, db_path=place)
    if kind == "redis":
        return MEMORY.RedisSession.from_url(session_id, url=place)
    if kind == "mongodb":
        return MEMORY.MongoDBSession.from_uri(session_id, uri=place)
    return MEMORY.SQLAlchemySession.from_url(session_id, url=place, create_tables=False)


async def write(session: Any, name: str, batches: int) -> None:
    for number in range(batches):
        user, answer = {"role": "user"}, {"role": "assistant"}
        await session.add_items([user | {"content": f"{name} {number}"}, answer | {"content": f"{name} {number} re"}])


async def work(command: dict[str, Any]) -> list[Any]:
    count = max(command["writers"], 1)
    sessions = [open_session(command["kind"], command["place"], command["session"]) for _ in range(count)]
    writers = [
        write(session, f"{command['name']}{number}", command["batches"])
        for number, session in enumerate(sessions)
        if command["writers"]
    ]
    await asyncio.gather(*writers)
    items: list[Any] = await sessions[0].get_items()
    for session in sessions:
        closing = session.close() if hasattr(session, "close") else None
        if closing is not None:
            await closing
    return items


async def main() -> None:
    if LIBRARY == "standfast":  # as in the tests: an old mongod is enough
        import_module("pymongo").common.MIN_SUPPORTED_WIRE_VERSION = 6
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await work(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
