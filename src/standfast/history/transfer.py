"""Export and import of sessions as JSON Lines: a header, then one line per item."""

import base64
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

import msgspec

from standfast.base.errors import AlreadyExists, HistoryMoved, InvalidInput
from standfast.base.ids import validate_name, validate_owner
from standfast.base.items import Item, encode_items
from standfast.history.codec import UnreadableRecord
from standfast.history.stored_session import StoredSession
from standfast.store.operations import Annotate, Splice
from standfast.store.records import SessionRecord

EXPORT_FORMAT = 1
# Before version 0.1.0 was released, the product was called holdfast and wrote that name into the header; such exports
# are still imported.
_HEADER_KEYS = ("standfast", "holdfast")


async def export_lines(record: SessionRecord, session: StoredSession) -> AsyncIterator[str]:
    """Yield the lines of an export. A record that cannot be decoded is exported as stored, with the reason."""
    header = {
        _HEADER_KEYS[0]: "session",
        "format": EXPORT_FORMAT,
        "session_id": record.session_id,
        "owner": record.owner,
        "metadata": record.metadata,
        "created_at": record.created_at,
        "length": record.length,
    }
    yield msgspec.json.encode(header).decode()
    async for row, item in session.export():
        if isinstance(item, UnreadableRecord):
            stored = base64.b64encode(row.data or b"").decode()
            yield msgspec.json.encode({"unreadable": stored, "reason": str(item)}).decode()
        else:
            yield msgspec.json.encode({"item": item}).decode()


class ExportedSession(msgspec.Struct, frozen=True):
    """A parsed export: its header, and its lines with their numbers."""

    header: dict[str, Any]
    lines: list[tuple[int, dict[str, Any]]]

    @property
    def session_id(self) -> str:
        return validate_name("session id", self.header.get("session_id"))


async def parse_lines(lines: Iterable[str] | AsyncIterable[str]) -> ExportedSession:
    """Return the parsed lines of an export, or raise :class:`InvalidInput` with the number of the wrong one."""
    parsed = [(number, parse_line(number, line)) async for number, line in number_lines(lines) if line.strip()]
    if not parsed or not any(parsed[0][1].get(key) == "session" for key in _HEADER_KEYS):
        raise InvalidInput("line 1: not the header of an exported session")
    (_, header), *item_lines = parsed
    if header.get("format") != EXPORT_FORMAT:
        raise InvalidInput(f"line 1: unknown export format {header.get('format')!r}; expected {EXPORT_FORMAT}")
    return ExportedSession(header, item_lines)


async def import_session(exported: ExportedSession, session: StoredSession) -> None:
    """Write an export to a session that does not exist yet, in one commit; :class:`AlreadyExists` if it does."""
    header, metadata = exported.header, exported.header.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"line 1: metadata must be a mapping, not {type(metadata).__name__}")
    sealed = session.codec.location_bound
    data = [decode_exported_record(number, line, readable=sealed) for number, line in exported.lines]
    record = session.make_empty_record()
    splice = Splice(
        session_id=session.session_id,
        add=session.codec.encode(data, tape=record.tape, seq=0),
        words=session.extract_words([line.get("item") or {} for _, line in exported.lines]),
        expected=0,
        tape=record.tape,
        owner=validate_owner(header.get("owner")),
    )
    annotate = Annotate(session_id=session.session_id, metadata=metadata, owner=splice.owner, claim=session.claims)
    try:
        await session.backend.commit(session.complete_splice(record, splice), annotate)
    except HistoryMoved:
        raise AlreadyExists("session", session.session_id) from None


async def number_lines(lines: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[tuple[int, str]]:
    """Yield each line with its number, counted from 1."""
    number = 0
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            number += 1
            yield number, validate_text(f"line {number}", line)
    elif isinstance(lines, Iterable) and not isinstance(lines, (str, bytes)):
        for line in lines:
            number += 1
            yield number, validate_text(f"line {number}", line)
    else:
        raise InvalidInput(f"lines must be an iterable of strings, not {type(lines).__name__}")


def validate_text(what: str, text: object) -> str:
    """Return ``text`` if it is a string of valid Unicode; otherwise raise :class:`InvalidInput` that names ``what``."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{what} is not valid Unicode (a lone surrogate)") from None
        return text
    raise InvalidInput(f"{what} must be a string, not {type(text).__name__}")


def parse_line(number: int, line: str) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"line {number}: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidInput(f"line {number}: expected a JSON object")
    return parsed


def decode_exported_record(number: int, line: dict[str, Item], *, readable: bool = False) -> bytes:
    """Return the record to store for a line: the JSON of its item, or the bytes of an unreadable record."""
    if "unreadable" in line:
        if readable:
            raise InvalidInput(f"line {number}: a record that could not be read cannot be encrypted: remove the line")
        try:
            return base64.b64decode(str(line["unreadable"]), validate=True)
        except ValueError as error:
            raise InvalidInput(f"line {number}: 'unreadable' is not valid base64: {error}") from None
    if not isinstance(line.get("item"), dict):
        raise InvalidInput(f"line {number}: expected an object with the key 'item' or 'unreadable'")
    return encode_items([line["item"]])[0]
