"""Write ``sessions_VERSION.json.gz`` with the installed google-adk: what ``DatabaseSessionService`` stores.

Run it with the Python of a virtual environment with ``google-adk``, ``sqlalchemy`` and ``aiosqlite``. The database is
kept as SQL, and beside it the texts that ADK reads from it.
"""

import asyncio
import gzip
import json
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService
from google.genai import types

FOLDER = Path(__file__).parent


def make_events() -> list[Event]:
    call = types.FunctionCall(id="call_1", name="add", args={"a": 3, "b": 4})
    response = types.FunctionResponse(id="call_1", name="add", response={"result": 7})
    image = types.Blob(mime_type="image/png", data=b"\x89PNG\r\n\x1a\n")

    def content(role: str, *parts: types.Part) -> types.Content:
        return types.Content(role=role, parts=list(parts))

    return [
        Event(author="user", invocation_id="1", content=content("user", types.Part(text="What is 3 + 4?"))),
        Event(author="calculator", invocation_id="1", content=content("model", types.Part(function_call=call))),
        Event(author="calculator", invocation_id="1", content=content("user", types.Part(function_response=response))),
        Event(
            author="calculator",
            invocation_id="1",
            content=content("model", types.Part(text="I add.", thought=True), types.Part(text="It is 7. é")),
        ),
        Event(
            author="user",
            invocation_id="2",
            content=content("user", types.Part(text="Look"), types.Part(inline_data=image)),
        ),
        Event(author="calculator", invocation_id="2", actions=EventActions(state_delta={"seen": True})),
        Event(author="calculator", invocation_id="2", content=content("model", types.Part(text="A picture."))),
    ]


async def talk(path: Path) -> dict[str, Any]:
    driver = "sqlite" if version("google-adk").startswith("1.") else "sqlite+aiosqlite"
    service = DatabaseSessionService(db_url=f"{driver}:///{path}")
    session = await service.create_session(app_name="shop", user_id="ann", session_id="s1", state={"language": "en"})
    for event in make_events():
        await service.append_event(session, event)
    await service.create_session(app_name="shop", user_id="bob", session_id="s1")
    read = await service.get_session(app_name="shop", user_id="ann", session_id="s1")
    assert read is not None
    texts = [part.text for event in read.events if event.content for part in event.content.parts or [] if part.text]
    disposed: Any = service.db_engine.dispose()
    if disposed is not None:
        await disposed
    return {"texts": texts}


def main() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"
        made = asyncio.run(talk(path))
        with closing(sqlite3.connect(path)) as db:
            made["sql"] = list(db.iterdump())
    text = json.dumps(made)
    name = f"sessions_{version('google-adk')}.json.gz"
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(name, len(text), made["texts"])


if __name__ == "__main__":
    main()
