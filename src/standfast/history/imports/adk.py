"""Read the sessions that ``DatabaseSessionService`` of Google's Agent Development Kit stored, without that package."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.imports.sources import (
    MALFORMED,
    Query,
    SourceSession,
    describe_malformed,
    has_table,
    make_call,
    make_image,
    make_output,
    make_text_message,
    open_database,
    to_text,
)
from standfast.store.sql.openai_agents_tables import to_timestamp


async def read_adk(url: str) -> AsyncIterator[SourceSession]:
    """Yield the conversation of each session, under the id ``APP/USER/SESSION``.

    ``url`` is ``sqlite:///PATH`` or the URL of an asynchronous SQLAlchemy engine, such as ``postgresql+asyncpg://...``.
    """
    async with open_database(url) as query:
        if not await has_table(query, "events", "invocation_id"):
            raise InvalidInput("there is no table 'events' of the Agent Development Kit")
        data = "event_data" if await has_table(query, "events", "event_data") else None
        rows = await query("SELECT app_name, user_id, id, state, create_time FROM sessions ORDER BY 1, 2, 3", {})
        for app, user, session, state, created in rows:
            session_id = f"{app}/{user}/{session}"
            try:
                events = await _read_events(query, data, {"app": app, "user": user, "session": session})
                found = _convert_session(session_id, events, _load(state), to_timestamp(created, 0.0) or None)
            except MALFORMED as error:
                problem = f"its events cannot be read: {describe_malformed(error)}"
                found = SourceSession(session_id=session_id, problem=problem)
            yield found


async def _read_events(query: Query, data: str | None, here: Mapping[str, Any]) -> list[dict[str, Any]]:
    where = "WHERE app_name = :app AND user_id = :user AND session_id = :session ORDER BY timestamp, id"
    if data is not None:
        return [_load(row[0]) or {} for row in await query(f"SELECT {data} FROM events {where}", here)]
    rows = await query(f"SELECT id, author, content, partial FROM events {where}", here)
    return [
        {"id": event, "author": author, "content": _load(content), "partial": partial}
        for event, author, content, partial in rows
    ]


def _load(value: Any) -> Any:
    """Return a JSON column, which some drivers decode."""
    return json.loads(value) if isinstance(value, (str, bytes)) else value


def _convert_session(
    session_id: str, events: list[dict[str, Any]], state: Any, created_at: float | None
) -> SourceSession:
    left_out: Counter[str] = Counter()
    pending: defaultdict[str, deque[str]] = defaultdict(deque)
    items = [item for event in events for item in _convert_event(event, pending, left_out)]
    notes = [f"{count} parts of the kind {kind!r} are left out" for kind, count in left_out.items()]
    notes += ["the state of the session is left out"] if state else []
    return SourceSession(session_id=session_id, items=items, created_at=created_at, notes=tuple(notes))


def _convert_event(
    event: Mapping[str, Any], pending: defaultdict[str, deque[str]], left_out: Counter[str]
) -> Iterator[Item]:
    """Yield the items of an event. ``pending`` has the ids of calls without an id of their own, by function."""
    if event.get("partial"):
        return
    parts_so_far: list[Item] = []
    texts: list[str] = []
    for number, part in enumerate((event.get("content") or {}).get("parts") or ()):
        if call := part.get("function_call"):
            call_id = call.get("id") or f"{event.get('id')}-{number}"
            pending[call["name"]].append(call_id)
            yield from _flush(event, parts_so_far, texts)
            yield make_call(call_id, call["name"], call.get("args"))
        elif response := part.get("function_response"):
            waiting = pending[response["name"]]
            call_id = response.get("id") or (waiting[0] if waiting else f"{event.get('id')}-{number}")
            if call_id in waiting:
                waiting.remove(call_id)
            yield make_output(call_id, _read_response(response.get("response")))
        elif part.get("thought"):
            left_out["thought"] += 1
        elif part.get("text") is not None:
            parts_so_far.append({"type": "input_text", "text": part["text"]})
            texts.append(part["text"])
        elif (image := _find_image(part)) is not None and event.get("author") == "user":
            parts_so_far.append(make_image(image))
        else:
            left_out[next((name for name, value in part.items() if value is not None), "empty")] += 1
    yield from _flush(event, parts_so_far, texts)


def _flush(event: Mapping[str, Any], parts_so_far: list[Item], texts: list[str]) -> Iterator[Item]:
    """Yield the parts of the event so far as one message."""
    if event.get("author") == "user" and parts_so_far:
        plain = len(parts_so_far) == 1 and parts_so_far[0]["type"] == "input_text"
        yield {"role": "user", "content": parts_so_far[0]["text"] if plain else list(parts_so_far)}
    elif texts:
        yield make_text_message("".join(texts))
    parts_so_far.clear()
    texts.clear()


def _read_response(response: Any) -> str:
    """Return the output of a function. ADK puts what is not an object into a field ``result``."""
    return to_text(response["result"] if isinstance(response, dict) and list(response) == ["result"] else response)


def _find_image(part: Mapping[str, Any]) -> str | None:
    """Return the URL of an image, or ``None`` if the part is something else."""
    inline, file = part.get("inline_data") or {}, part.get("file_data") or {}
    if str(inline.get("mime_type", "")).startswith("image/"):
        data = str(inline["data"]).replace("-", "+").replace("_", "/")
        return f"data:{inline['mime_type']};base64,{data}"
    return file["file_uri"] if str(file.get("mime_type", "")).startswith("image/") else None
