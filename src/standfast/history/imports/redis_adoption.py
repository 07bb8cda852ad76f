"""Take over the sessions of openai-agents under a key prefix in Redis, and give them back.

Each session is taken over, or given back, in one transaction of the server. If the process is killed, the others are
still what they were, both programs continue with each session where it is, and the command is run again.
"""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from standfast.base.errors import InvalidInput, MissingExtra, Unsupported, WrongKey
from standfast.base.items import encode_item
from standfast.history.codec import decode_page
from standfast.history.encryption.codec import EncryptingCodec
from standfast.history.encryption.openai_agents import EnvelopeCipher
from standfast.history.imports.copies import CopiedSession
from standfast.history.imports.openai_agents import list_redis_sessions, read_openai_agents
from standfast.store.operations import Erase, Splice
from standfast.store.records import HistoryPage, SessionRecord

try:
    from redis.asyncio import Redis
    from redis.exceptions import WatchError

    from standfast.store.redis.backend import RedisBackend
    from standfast.store.redis.committer import COMMIT_SCRIPT, RedisCommitter
    from standfast.store.redis.encoding import CommitStep, make_tag
    from standfast.store.redis.openai_agents_keys import LOCK, OpenAIAgentsKeys
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("redis", "sessions in Redis") from error

_PAGE_SIZE = 200


async def adopt_prefix(url: str, *, prefix: str, secrets: Sequence[str], dry_run: bool) -> list[CopiedSession]:
    """Take over the sessions under a prefix, each in one transaction, and return a report.

    Afterwards ``RedisSession`` has all features for them and for new sessions, and openai-agents gets an error when it
    reads or writes them.
    """
    async with _open_prefix(url, prefix) as place:
        report = [
            CopiedSession(
                session_id=source.session_id,
                outcome="refused" if await place.has_record(source.session_id) else "adopted",
                items=len(source.items),
                note="; ".join([*source.notes, *filter(None, [source.problem])]),
            )
            async for source in read_openai_agents(url, prefix=prefix, secrets=secrets)
        ]
        report = [_explain(entry) for entry in report]
        if not report and await place.client.exists(place.shared.mark_key):
            raise InvalidInput(f"the sessions under {prefix!r} are adopted already")
        if dry_run or any(entry.outcome == "refused" for entry in report):
            return report
        await place.client.set(place.shared.mark_key, LOCK)
        adopted = dict[str, int]()
        # Again until none is left: openai-agents may create sessions meanwhile.
        while found := await list_redis_sessions(place.client, prefix):
            for session_id in found:
                adopted[session_id] = await place.take(session_id)
        notes = {entry.session_id: entry.note for entry in report}
    return [
        CopiedSession(session_id=session_id, outcome="adopted", items=items, note=notes.get(session_id, ""))
        for session_id, items in sorted(adopted.items())
    ]


def _explain(entry: CopiedSession) -> CopiedSession:
    if entry.outcome != "refused":
        return entry
    return msgspec.structs.replace(entry, note="standfast has another session with this id: delete one of them first")


async def return_prefix(url: str, *, prefix: str, secrets: Sequence[str], dry_run: bool) -> list[CopiedSession]:
    """Give the sessions under a prefix back to openai-agents, with what was written since, and return a report.

    If an encrypted session cannot be read, its outcome is ``refused``, and nothing is changed.
    """
    async with _open_prefix(url, prefix) as place:
        if not await place.client.exists(place.shared.mark_key):
            raise InvalidInput(f"the sessions under {prefix!r} are not adopted: there is nothing to give back")
        report = []
        for record in await place.list_records():
            try:
                texts = await place.read_texts(record.session_id, secrets)
            except WrongKey as error:
                report.append(CopiedSession(session_id=record.session_id, outcome="refused", note=str(error)))
                continue
            report.append(CopiedSession(session_id=record.session_id, outcome="returned", items=len(texts or ())))
        report.sort(key=lambda entry: entry.session_id)
        if dry_run or any(entry.outcome == "refused" for entry in report):
            return report
        for entry in report:
            await place.return_session(entry.session_id, secrets)
        await place.client.delete(place.shared.mark_key)
    return report


class _Prefix:
    """The sessions of both programs under one prefix."""

    def __init__(self, client: "Redis", prefix: str) -> None:
        self.client = client
        self.backend = RedisBackend(client, prefix=prefix)
        self.shared = OpenAIAgentsKeys(self.backend.keys, prefix, ttl=None)

    async def has_record(self, session_id: str) -> bool:
        return bool(await self.client.exists(self.backend.keys.make_key(make_tag(session_id))))

    async def list_records(self) -> list[SessionRecord]:
        return await self.backend.list_sessions(owner=None, query=None, limit=2**62, after=None)

    async def read_texts(self, session_id: str, secrets: Sequence[str]) -> list[bytes] | None:
        page = await self.backend.read(session_id)
        return None if page is None else _encode_page(page, secrets)

    async def take(self, session_id: str) -> int:
        """Replace the keys of openai-agents by those of standfast, and return the number of items."""
        facts, messages, counter = self.shared.list_keys(session_id)
        record = self.backend.keys.make_key(make_tag(session_id))
        while True:
            work: Any
            async with self.client.pipeline(transaction=True) as work:
                await work.watch(facts, messages, record)
                if await work.type(messages) != b"list" or await work.exists(record):
                    return 0
                texts = await work.lrange(messages, 0, -1)
                created, rest = await work.hget(facts, "created_at"), await work.pttl(messages)
                ttl = rest / 1000 if rest > 0 else None
                splice = Splice(session_id=session_id, add=tuple(texts), expected=0)
                work.multi()
                await self.queue(work, splice, ttl=ttl, time=float(created) if created else None)
                work.delete(facts, messages, counter)
                work.set(messages, LOCK, px=rest if ttl else None)
                if await _execute(work):
                    return len(texts)

    async def return_session(self, session_id: str, secrets: Sequence[str]) -> None:
        """Replace the keys of standfast by those of openai-agents."""
        facts, messages, counter = self.shared.list_keys(session_id)
        record_key = self.backend.keys.make_key(make_tag(session_id))
        while True:
            work: Any
            async with self.client.pipeline(transaction=True) as work:
                await work.watch(facts, messages, record_key)
                record = await self.backend.get_session(session_id)
                if record is None:
                    return
                texts, rest = await self.read_texts(session_id, secrets), await work.pttl(record_key)
                work.multi()
                await self.queue(work, Erase(session_id=session_id, forget=True), ttl=None, time=None)
                work.delete(messages)
                if texts:
                    work.rpush(messages, *texts)
                times = {"created_at": math.floor(record.created_at), "updated_at": math.floor(record.updated_at)}
                work.hset(facts, mapping={"session_id": session_id, **times})
                if rest > 0:
                    for key in (facts, messages, counter):
                        work.pexpire(key, rest)
                if await _execute(work):
                    return

    async def queue(self, work: Any, step: CommitStep, *, ttl: float | None, time: float | None) -> None:
        """Add a commit to a transaction."""
        clock = None if time is None else lambda: time
        committer = RedisCommitter(self.backend.keys, ttl=ttl, clock=clock)
        _, keys, args = await committer.encode_steps([step], {})
        work.eval(COMMIT_SCRIPT.source, len(keys), *keys, *args)


@asynccontextmanager
async def _open_prefix(url: str, prefix: str) -> AsyncIterator[_Prefix]:
    client: Redis = Redis.from_url(url, socket_timeout=None)  # long histories take long
    try:
        place = _Prefix(client, prefix)
        if await place.backend.keys.is_clustered():
            raise Unsupported(
                "sessions in a Redis cluster cannot be adopted in one transaction; copy them with"
                " `standfast import openai-agents`"
            )
        yield place
    finally:
        await client.aclose()


async def _execute(work: Any) -> bool:
    """Execute a transaction. Return False if another program has changed one of its keys: nothing was done."""
    try:
        await work.execute()
    except WatchError:
        return False
    return True


def _encode_page(page: HistoryPage, secrets: Sequence[str]) -> list[bytes]:
    """Return the texts of a session as openai-agents stores them."""
    session_id = page.record.session_id
    if page.record.seal is None:
        return [row.data for row in page.rows if row.data is not None]
    if not secrets:
        raise WrongKey(f"session {session_id!r} is encrypted: pass its key")
    codec, cipher = EncryptingCodec(list(secrets)), EnvelopeCipher(session_id, secrets)
    codec.verify_page(page)
    return [
        encode_item(cipher.encrypt(entry.item, written_at=entry.written_at)) for entry in decode_page(codec, page)[0]
    ]
