"""Read and write sessions of openai-agents in Redis in its own format, as long as they are not adopted.

openai-agents stores a session under three keys: the hash ``prefix:ID`` with its times, the list ``prefix:ID:messages``
with a JSON text per item, and ``prefix:ID:counter``. Both programs can use it: every change is one script, and
openai-agents watches the keys while it changes them. The keys have no place for idempotency keys and earlier
generations, which are not kept, nor for forks and metadata, which raise :class:`NotAdopted`.

An adopted session has a text in place of the list, so that openai-agents can neither read nor write it. The text in
``prefix:{standfast}:adopted`` says that new sessions are those of standfast.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from redis.crc import key_slot

from standfast.base.errors import HistoryMoved, NotAdopted, SessionDamaged
from standfast.store import operations, preconditions
from standfast.store.operations import Op, OpResult
from standfast.store.records import EMPTY_HEAD, Head, HistoryPage, Row, SessionRecord
from standfast.store.redis.connection import LuaScript
from standfast.store.redis.encoding import decode_text, encode_number, encode_text, make_tag
from standfast.store.redis.keys import Keyspace

LOCK = "this session was adopted by standfast; give it back with: standfast adopt URL --undo"
"""What an adopted session has in place of the list of openai-agents."""

_SCRIPT = LuaScript("openai_agents.lua")
_MAX_TEXTS = 5000


class SessionAdopted(Exception):
    """The session is one of standfast: it was adopted, or created after its prefix was adopted."""


class OpenAIAgentsKeys:
    """The sessions of openai-agents under one prefix.

    Every method raises :class:`SessionAdopted` for a session that openai-agents did not store. ``ttl`` is that of
    openai-agents: all keys of a session expire that many seconds after a write.
    """

    def __init__(self, keyspace: Keyspace, prefix: str, *, ttl: float | None) -> None:
        self.keyspace, self.connection, self.prefix = keyspace, keyspace.connection, prefix
        self.ttl = b"" if ttl is None else encode_number(math.ceil(ttl * 1000))
        self.own_ids = set[str]()
        self.adoptable = "{" not in prefix and "}" not in prefix

    @property
    def mark_key(self) -> str:
        return f"{self.prefix}:{{standfast}}:adopted"

    def list_keys(self, session_id: str) -> list[str]:
        base = f"{self.prefix}:{session_id}"
        return [base, f"{base}:messages", f"{base}:counter"]

    def holds(self, session_id: str) -> bool:
        """Return whether a session was one of openai-agents when it was last used."""
        return session_id not in self.own_ids

    async def get_session(self, session_id: str) -> SessionRecord | None:
        return parse_record(session_id, (await self.run("record", session_id))[1])

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> HistoryPage | None:
        while True:
            record, first, end, texts = await self.read_part(session_id, start, stop, last)
            if record is None or generation is not None:
                return None
            unchanged = True
            while unchanged and len(texts) < end - first:
                again, _, _, more = await self.read_part(session_id, first + len(texts), end, None)
                unchanged = again == record
                texts += more
            if unchanged:
                rows = [Row(at, record.tape, at, text) for at, text in enumerate(texts, start=first)]
                return HistoryPage(record, rows)

    async def read_part(
        self, session_id: str, start: int, stop: int | None, last: int | None
    ) -> tuple[SessionRecord | None, int, int, list[bytes]]:
        """Return the record, where the range begins and ends, and at most a part of its texts.

        The driver limits the time for a reply, and parsing a long one takes longer.
        """
        limits = [b"" if value is None else encode_number(value) for value in (start, stop, last, _MAX_TEXTS)]
        _, fields, first, end, texts = await self.run("read", session_id, *limits)
        return parse_record(session_id, fields), int(first), int(end), texts

    async def commit(self, session_id: str, ops: Sequence[Op]) -> list[OpResult]:
        """Apply the operations in one script, or raise :class:`NotAdopted`."""
        words = [encode_text(session_id)]
        try:
            for op in ops:
                words += await self.encode(session_id, op)
        except (NotAdopted, HistoryMoved):
            await self.get_session(session_id)  # raises if it is no session of openai-agents
            raise
        expected = next((op.expected for op in ops if isinstance(op, (operations.Splice, operations.Erase))), None)
        status, fields = await self.run("commit", session_id, *words)
        record = parse_record(session_id, fields)
        head = record.head if record else EMPTY_HEAD
        if status == b"moved":
            raise HistoryMoved(session_id, expected=Head(expected or 0, 0), found=head)
        return [head if isinstance(op, (operations.Splice, operations.Erase)) else None for op in ops]

    async def encode(self, session_id: str, op: Op) -> list[bytes]:
        """Return the kind of a change, the expected version, how many items stay, and the texts that are added."""
        match op:
            case operations.Quarantine():  # the item is removed, as openai-agents does
                return []
            case operations.RequireVersion():
                return [b"require", encode_number(op.version), b"", b"0"]
            case operations.Erase(seal=None):
                expected = b"" if op.expected is None else encode_number(op.expected)
                return [b"erase", expected, b"", b"0"]
            case operations.Splice(seal=None, links=()):
                preconditions.check_view_update(op)
                expected = b"" if op.expected is None else encode_number(op.expected)
                update = op.view_update
                kept, added = (b"", op.add) if update is None else await self.plan_update(op, update)
                return [b"splice", expected, kept, encode_number(len(added)), *added]
            case _:
                return self.refuse(type(op).__name__)

    async def plan_update(self, op: operations.Splice, update: operations.ViewUpdate) -> tuple[bytes, Sequence[bytes]]:
        """Return how many items stay as they are, and what follows them. It fits the expected version only."""
        page = await self.read(op.session_id)
        head = page.record.head if page else EMPTY_HEAD
        preconditions.check_version(op.session_id, op.expected, found=head)
        if any(span.tape != op.tape for span in update.closed):
            self.refuse("a view of another session")
        stored = [row.data or b"" for row in page.rows] if page else []
        texts = [*stored, *op.add]
        places = [place for span in update.closed for place in range(span.start, span.stop)]
        places += range(update.open_from, len(texts))
        kept = next((at for at, place in enumerate(places) if at != place), len(places))
        kept = min(kept, len(stored))
        return encode_number(kept), [texts[place] for place in places[kept:]]

    async def run(self, command: str, session_id: str, *words: bytes) -> list[Any]:
        keys = self.list_keys(session_id)
        if await self.keyspace.is_clustered():
            if len({key_slot(key.encode()) for key in keys}) > 1:
                self.own_ids.add(session_id)  # openai-agents cannot use them
                raise SessionAdopted
        elif self.adoptable:
            keys += [self.keyspace.make_key(make_tag(session_id)), self.mark_key, self.keyspace.sessions_key]
        args = [command.encode(), LOCK.encode(), self.ttl, *words]
        reply: list[Any] = await self.connection.run_script(_SCRIPT, keys, args, retry=command != "commit")
        if reply[0] == b"adopted":
            self.own_ids.add(session_id)
            raise SessionAdopted
        self.own_ids.discard(session_id)
        if reply[0] == b"damaged":
            key, kind = map(decode_text, reply[1:])
            raise SessionDamaged(session_id, f"the key {key!r} is a {kind}")
        return reply

    async def extend_lock(self, session_id: str) -> None:
        """Let the text in place of the list expire with the session."""
        key = self.list_keys(session_id)[1]
        if self.ttl and self.adoptable:
            await self.connection.execute("PEXPIRE", key.encode(), self.ttl, key=key)

    def refuse(self, operation: str) -> NoReturn:
        raise NotAdopted(f"{self.connection.location} {self.prefix}", operation=operation)


def parse_record(session_id: str, fields: Sequence[Any]) -> SessionRecord | None:
    version, length, created, updated = int(fields[0]), int(fields[1]), fields[2], fields[3]
    if not version:
        return None
    return SessionRecord(
        session_id=session_id,
        tape=compute_tape(session_id),
        version=version,
        length=length,
        next_seq=length,
        open_from=0,
        created_at=parse_time(created),
        updated_at=parse_time(updated),
    )


def compute_tape(session_id: str) -> int:
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 2) + 1


def parse_time(text: bytes) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
