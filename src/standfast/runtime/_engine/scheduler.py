"""How runs begin, wait for their session, and are taken up: at most one run has a session."""

import asyncio
import hashlib
import logging
from contextlib import suppress
from typing import Any, Literal

from msgspec.structs import replace

from standfast.base.errors import FenceLost, RunMoved, StoreUnavailable
from standfast.base.ids import new_id
from standfast.lifecycle.scope import Scope
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.executor import RunExecutor
from standfast.runtime._engine.leases import RunLeases, acquire_leases
from standfast.runtime._engine.records import (
    QUEUED_STATUSES,
    SESSION_HOLDING_STATUSES,
    JournalEntry,
    RunClaimed,
    RunHeader,
    RunQueued,
    decode_header,
    encode,
    encode_entry,
)
from standfast.store.contract import AppendJournal, Backend, Op, RunRecord, SaveRun


def make_run_id(key: str | None) -> str:
    """The id of a new run. One with a key has the same id wherever and whenever it is asked for."""
    return new_id("run") if key is None else f"run_{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def build_create_ops(
    run_id: str,
    header: RunHeader,
    first: RunQueued,
    *,
    session_id: str | None,
    status: Literal["next", "queued"] = "queued",
) -> list[Op]:
    """What creates a run, to wait for its turn."""
    return [
        SaveRun(run_id=run_id, expected=0, status=status, data=encode(header), session_id=session_id),
        AppendJournal(run_id=run_id, entries=(encode_entry(JournalEntry(first)),)),
    ]


async def find_session_holder(backend: Backend, session_id: str) -> RunRecord | None:
    """The run that has the session: it is under way or waits for somebody."""
    found = await backend.list_runs(status=SESSION_HOLDING_STATUSES, session_id=session_id, limit=1, after=0)
    return found[0] if found else None


async def find_next_queued(backend: Backend, session_id: str) -> RunRecord | None:
    """The run whose turn it is when the session is free."""
    for status in QUEUED_STATUSES:
        found = await backend.list_runs(status=(status,), session_id=session_id, limit=1, after=0)
        if found:
            return found[0]
    return None


async def claim_run(ctx: RuntimeContext, record: RunRecord) -> tuple[RunRecord, RunLeases] | None:
    """Own the run and note that it is under way; ``None`` when it is not its turn, or somebody else was faster."""
    if record.status not in QUEUED_STATUSES or record.session_id is None:
        return await _acquire_run(ctx, record)
    # Whoever has the session's lease is alone in letting a run of that session begin.
    hold = await acquire_leases(
        ctx.backend, record.run_id, record.session_id, owner=ctx.owner, ttl=ctx.lease_ttl, ops=[]
    )
    if hold is None:
        return None
    try:
        first = await find_next_queued(ctx.backend, record.session_id)
        if first is None or first.run_id != record.run_id or await find_session_holder(ctx.backend, record.session_id):
            return None
        found = await _acquire_run(ctx, first)
        hold = None if found is not None else hold
        return found
    finally:
        if hold is not None:
            await ctx.backend.commit(*hold.build_release_ops())


async def _acquire_run(ctx: RuntimeContext, record: RunRecord) -> tuple[RunRecord, RunLeases] | None:
    header = replace(decode_header(record), problem=None)
    if record.status in QUEUED_STATUSES and header.base is None and record.session_id is not None:
        before = await ctx.backend.get_session(record.session_id)
        header = replace(header, base=before.length if before else 0)
    begun_before: Literal["started", "continued"] = "started" if record.journal_length == 1 else "continued"
    note = RunClaimed(ctx.owner, "recovered" if record.status == "running" else begun_before)
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status="running",
        data=encode(header),
        session_id=record.session_id,
    )
    journal = AppendJournal(run_id=record.run_id, entries=(encode_entry(JournalEntry(note)),))
    try:
        hold = await acquire_leases(
            ctx.backend, record.run_id, record.session_id, owner=ctx.owner, ttl=ctx.lease_ttl, ops=[save, journal]
        )
    except (RunMoved, FenceLost):
        return None
    if hold is None:
        return None
    ctx.subscriptions.notify_written(record.run_id)
    kept: dict[str, Any] = {"status": "running", "revision": record.revision + 1, "data": save.data}
    return replace(record, **kept), hold


SHUTDOWN_GRACE = 5.0
"""Seconds that tools may go on when a runtime closes. After that they are cancelled, and their calls are uncertain."""

_log = logging.getLogger(__name__)


class Scheduler:
    """Tasks that drive runs, inside the scope of their runtime."""

    def __init__(self, ctx: RuntimeContext, scope: Scope) -> None:
        self.ctx, self._scope = ctx, scope
        self.executors: dict[str, RunExecutor] = {}
        self._claiming: set[str] = set()

    async def claim(self, record: RunRecord) -> bool:
        """Drive the run here, if it is its turn and nobody else does."""
        run_id = record.run_id
        if self.ctx.closing or run_id in self.executors or run_id in self._claiming:
            return False
        self._claiming.add(run_id)
        try:
            found = await claim_run(self.ctx, record)
        except StoreUnavailable as problem:  # the reaper will try again
            _log.warning("run %s could not be taken up yet: %s", run_id, problem)
            return False
        finally:
            self._claiming.discard(run_id)
        if found is None:
            return False
        owned, hold = found
        if self.ctx.closing:
            await self.ctx.backend.commit(*hold.build_release_ops())
            return False
        execution = self.executors[run_id] = RunExecutor(self.ctx, owned, hold)
        self._scope.start(self._drive(execution), name=f"run {run_id}")
        return True

    async def claim_if_runnable(self, run_id: str) -> None:
        """Take the run up if it is ready and its agent is known here."""
        record = await self.ctx.get_run(run_id)
        if record.status in ("woken", *QUEUED_STATUSES) and decode_header(record).agent in self.ctx.graphs:
            await self.claim(record)

    async def start_next(self, session_id: str | None) -> None:
        """Let the next run of a session begin, if it is free."""
        if session_id is None or self.ctx.closing:
            return
        with suppress(StoreUnavailable):
            following = await find_next_queued(self.ctx.backend, session_id)
            if following is not None and decode_header(following).agent in self.ctx.graphs:
                await self.claim(following)

    async def _drive(self, executor: RunExecutor) -> None:
        run_id = executor.record.run_id
        try:
            await executor.run()
        except Exception:  # noqa: BLE001 - one run must not end the others
            # Its leases run out, and it is taken up again: by this runtime or another.
            _log.exception("driving the run %s failed", run_id)
        finally:
            self.executors.pop(run_id, None)
        await self.start_next(executor.record.session_id)

    async def aclose(self) -> None:
        """Stop driving: after what is under way, or after a while."""
        self.ctx.retry.stopped = True
        tasks = {one.task for one in self.executors.values() if one.task is not None}
        for execution in list(self.executors.values()):
            execution.suspend()
        if tasks:
            await asyncio.wait(tasks, timeout=SHUTDOWN_GRACE)
