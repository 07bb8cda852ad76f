"""Writing a run down while it is driven: items, journal and questions of a step in one commit, under its leases."""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from holdfast.base.errors import FenceLost, StoreUnavailable
from holdfast.base.items import Item, encode_items, text_of, words_of
from holdfast.history.session import StoredSession
from holdfast.lifecycle.finishing import finish
from holdfast.runs import steps
from holdfast.runs.apply import apply
from holdfast.runs.contexts import SavedContext
from holdfast.runs.decide import decide, saveable
from holdfast.runs.live import Live
from holdfast.runs.persistence import may_be_refused, save, stored_form
from holdfast.runs.state import State
from holdfast.runs.steps import Outcome
from holdfast.runtime.context_changes import ContextChanges
from holdfast.runtime.filing import dated, filed, saved
from holdfast.runtime.folding import Folding
from holdfast.runtime.home import Home
from holdfast.runtime.journal import Place, without_children
from holdfast.runtime.leases import Hold
from holdfast.runtime.patience import Backoff
from holdfast.runtime.records import Asked, JournalEntry, Note, entry_of, logged
from holdfast.store.contract import Journal, Op, RunRecord, Splice

_log = logging.getLogger(__name__)


class Passed(BaseException):
    """The run belongs to another runtime by now. Not an error of the run: nothing may catch it and go on."""


class JournalKeeper:
    """Keeps one run and the runs nested in it.

    A step without consequences outside (judging, weighing) is written together with the next one that has some.
    """

    def __init__(self, home: Home, record: RunRecord, hold: Hold, *, marks: Iterator[int]) -> None:
        self.home, self.record, self.hold = home, record, hold
        self.asked: dict[Place, str] = {}
        self.trace: dict[str, Any] | None = None
        """The trace that the journal says the run is in."""
        self.context_changes: ContextChanges | None = None
        self.folding: Folding | None = None
        self.session: StoredSession | None = None if record.session_id is None else home.session(record.session_id)
        self._marks = marks
        self._seen = record.journal_length
        self._entries: list[JournalEntry] = []
        self._items: list[Item] = []
        self._ops: list[Op] = []
        self._turn = asyncio.Lock()

    async def keep(self, run: Live, outcome: Outcome) -> None:
        self._take_in(run, outcome)
        if not _can_wait(run, outcome):
            await self.flush()
        if run.route and run.session is not None:
            await self._keep_foreign(run, outcome)
        if not run.route:
            heard = self.home.feeds.listened_to(self.record.run_id)
            run.emit = partial(self.home.feeds.passed_on, self.record.run_id) if heard else None

    def _take_in(self, run: Live, outcome: Outcome) -> None:
        before = run.state
        run.state = apply(before, outcome)
        stored = self._settled(run, outcome) if not run.route and self.session is not None else None
        if stored is not None or not _is_nothing(outcome, changed=run.state is not before):
            news = (stored, self._new_trace(run), self._new_context(outcome))
            self._entries.append(JournalEntry(without_children(outcome), run.route, self._mark(), *news))
        if isinstance(outcome, steps.Judged):
            self.ask(run.state, run, run.route)

    def _settled(self, run: Live, outcome: Outcome) -> int | None:
        """Give what the session may have now to the next commit."""
        state = run.state
        failing = getattr(outcome, "error", None) is not None
        until = saveable(state, failing=failing, unjudged=may_be_refused(run))
        if until <= state.stored:
            return None
        new = state.transcript[state.stored : until]
        self._items += [stored_form(run, entry.item) for entry in new if not entry.hidden]
        run.state = apply(state, steps.Stored(until))
        return until

    def _new_trace(self, run: Live) -> dict[str, Any] | None:
        """The run's trace, if it is not written down yet: whoever takes the run up goes on in it."""
        if run.route or run.state.trace == self.trace:
            return None
        self.trace = run.state.trace
        return self.trace

    def _new_context(self, outcome: Outcome) -> SavedContext | None:
        if self.context_changes is None or not isinstance(outcome, steps.Answered | steps.CallsMade | steps.HandedOver):
            return None
        return self.context_changes.latest()

    async def _keep_foreign(self, run: Live, outcome: Outcome) -> None:
        """Store what a nested run has for a session of its own, and write that down afterwards."""
        before = run.state.stored
        await save(run, failing=getattr(outcome, "error", None) is not None)
        if run.state.stored != before:
            self._entries.append(JournalEntry(steps.Stored(run.state.stored), run.route, self._mark()))

    def ask(self, state: State, run: Live, route: tuple[str, ...] = ()) -> None:
        """File a question for every call that waits for a person, nested ones too, unless it is filed already."""
        for call in state.calls:
            if call.status != "waiting":
                continue
            if call.child is not None:
                self.ask(call.child, run, (*route, call.id))
            elif (route, call.id) not in self.asked:
                approval = filed(state, call, self.record, agent=run.agent(state.agent).name, route=route)
                approval = dated(approval, now=self.home.clock(), ttl=self.home.approval_ttl)
                self.asked[route, call.id] = approval.id
                self._ops.append(saved(approval, expected=0))
                self.note(Asked(approval.id, call.id, call.tool, call.uncertain), route=route)

    def note(self, note: Note, *, route: tuple[str, ...] = ()) -> None:
        """Write this with the next commit."""
        self._entries.append(JournalEntry(note, route, self._mark()))

    def unnote(self) -> None:
        """Do not write the latest note after all."""
        self._entries.pop()

    def write_down(self, outcome: Outcome, *, route: tuple[str, ...]) -> None:
        """Write an outcome with the next commit that was not the driver's."""
        self._entries.append(JournalEntry(outcome, route, self._mark()))

    def _mark(self) -> tuple[int, int]:
        return self.hold.token, next(self._marks)

    async def flush(self, *more: Op, release: bool = False) -> None:
        """Write everything down that was taken in, and ``more``, or raise and have written nothing.

        A cancelled caller hears of it when the commit has ended. What others take in meanwhile comes with the next.
        """
        async with self._turn:
            if self.hold.lost:
                raise Passed
            if self._entries or more:
                self.hold.releasing = release
                try:
                    await finish(self._commit(more, release), grace=None)
                except BaseException:
                    self.hold.releasing = False
                    raise

    async def _commit(self, more: tuple[Op, ...], release: bool) -> None:
        entries, items, filed = list(self._entries), list(self._items), list(self._ops)
        ops: list[Op] = [*self.hold.fences(), *self._spliced(items), *filed, *more]
        rows = tuple(logged(entry) for entry in entries)
        if rows:
            ops.append(Journal(run_id=self.record.run_id, entries=rows))
            ops += await self.folding.due() if self.folding is not None else ()
        if release:
            ops += self.hold.releases()
        await self._written(ops, entries)
        self._seen += len(entries)
        if self.folding is not None:
            self.folding.wrote(data for _, data in rows)
        del self._entries[: len(entries)], self._items[: len(items)], self._ops[: len(filed)]
        self.home.feeds.written(self.record.run_id, upto=entries[-1].mark if entries else None)

    def add_nothing(self) -> None:
        """Do not add to the session what was taken in: what is there already is taken back as well."""
        self._items = []

    def forget(self) -> None:
        """Do not write what was taken in: the store will not have it."""
        self._entries, self._items, self._ops, self.folding = [], [], [], None

    async def _written(self, ops: list[Op], entries: list[JournalEntry]) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.home.backend.commit(*ops)
                return
            except FenceLost:
                self.hold.lose()
                raise Passed from None
            except StoreUnavailable as problem:
                if self.home.closing:
                    raise
                _log.warning("run %s: the store does not answer, trying again: %s", self.record.run_id, problem)
                await backoff.pause()
                if await self._arrived(entries):
                    return

    async def _arrived(self, entries: list[JournalEntry]) -> bool:
        """Whether a commit without an answer was made: the mark of its last entry is in the journal then."""
        if not entries:
            return False
        rows = await self.home.backend.journal(self.record.run_id, after=self._seen)
        return any(entry_of(row).mark == entries[-1].mark for row in rows)

    def _spliced(self, items: list[Item]) -> list[Op]:
        if self.session is None or not items:
            return []
        words: tuple[str, ...] = ()
        if self.session.searchable:
            words = tuple(" ".join(words_of(text_of(item))) for item in items)
        return [Splice(session_id=self.session.session_id, add=tuple(encode_items(items)), words=words)]


def _is_nothing(outcome: Outcome, *, changed: bool) -> bool:
    """Whether there is nothing to write down: everything was kept already."""
    if isinstance(outcome, steps.Resumed):
        return not changed
    if isinstance(outcome, steps.CallsMade):
        return not (outcome.calls or outcome.entries or outcome.guardrails or outcome.error)
    return False


def _can_wait(run: Live, outcome: Outcome) -> bool:
    """Whether nothing would be lost with the outcome that could not be found out again."""
    if isinstance(outcome, steps.Finished):
        return run.state.ended  # the end of the run is written at once
    if not isinstance(outcome, steps.Judged | steps.Weighed | steps.Resumed):
        return False
    if run.view.needs_history(run.state):
        return False  # the session is about to be read, and has to show what the run has stored
    following = decide(run.state)
    return following is not None and not isinstance(following, steps.Invoke)
