"""Branches of a session: forks of it that are known by name."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.base.errors import HistoryMoved, InvalidInput, NotFound, SessionDamaged
from holdfast.base.ids import checked_name, new_id
from holdfast.history.session import first_items, pause
from holdfast.history.sqlite_session import SameFile, SQLiteSession
from holdfast.history.turn_log import Written, log_name, logged
from holdfast.history.turns import Turn, turns_of
from holdfast.store.contract import Annotate, Erase, Head, Op, Page, Require, SessionRecord, Splice, new_tape

T = TypeVar("T")
MAIN = "main"
_NOTED = "holdfast.branches"
_MOST_TRIES = 100


class Branch(SameFile):
    """One branch. ``main`` is the session itself and always there; others are there until they are deleted.

    Whoever still uses a deleted branch is told so (:class:`NotFound`); writing does not bring it back.
    """

    def __init__(self, session_id: str, origin: SQLiteSession, *, name: str) -> None:
        super().__init__(session_id, origin)
        self.name = name

    def sibling(self, session_id: str) -> Any:
        return SameFile(session_id, self.origin)

    async def verified_record(self) -> SessionRecord | None:
        record = await super().verified_record()
        self._must_be_there(record)
        return record

    async def page(self, **window: Any) -> Page | None:
        page = await super().page(**window)
        if window.get("generation") is None:
            self._must_be_there(page)
        return page

    async def write(
        self, plan: Callable[[SessionRecord | None], list[Op]], *, expected: Head | None, look_first: bool
    ) -> Head:
        """As ever, and in the same commit note when it was."""

        def noted(record: SessionRecord | None) -> list[Op]:
            ops = [self._kept_there(op, record) for op in plan(record)]
            added = [op for op in ops if isinstance(op, Splice) and op.add]
            return [*ops, *(self._time_of(op, record) for op in added)]

        return await super().write(noted, expected=expected, look_first=True)

    async def turns(self) -> list[Turn]:
        """What it shows now, as turns."""
        return self.turns_on(await self.page())

    async def latest_turn(self) -> Turn | None:
        """The turn that is not over yet; its number is not known, for the others are not read."""
        window = 16
        while True:
            page = await self.page(last=window)
            turns = [turn for turn in self.turns_on(page) if turn.number]
            if turns or page is None or len(page.rows) < window:
                return turns[-1] if turns else None
            window *= 4

    def turns_on(self, page: Page | None) -> list[Turn]:
        return turns_of(self.decoded(page.rows)[0]) if page else []

    def _must_be_there(self, found: object) -> None:
        if found is None and self.name != MAIN:
            raise NotFound("branch", self.name)

    def _kept_there(self, op: Op, record: SessionRecord | None) -> Op:
        """An append that must not create the branch anew, should it be deleted this moment."""
        if isinstance(op, Splice) and op.expected is None and record is not None and self.name != MAIN:
            return msgspec.structs.replace(op, expected=record.version)
        return op

    def _time_of(self, op: Splice, record: SessionRecord | None) -> Op:
        tape, seq = (record.tape, record.next_seq) if record else (op.tape, 0)
        return logged(self.origin.session_id, Written(tape, seq, self.backend.clock()))


class Branches:
    """Which branches a session has. They are noted in its annotations.

    Every change of them is a change of the session's version too, so that of two at the same time one happens after
    the other, whatever process they are in.
    """

    def __init__(self, origin: SQLiteSession) -> None:
        self.origin = origin
        self.main = Branch(origin.session_id, origin, name=MAIN)

    async def all(self) -> list[Branch]:
        """Every branch, in the order of creation."""
        record = await self.main.verified_record()
        return [self.main, *(self._branch(*entry) for entry in _noted(record).items())]

    async def pages(self) -> list[tuple[Branch, Page | None]]:
        """Every branch with all that it shows. ``main`` may never have been written to."""
        read = [(branch, await branch.backend.read(branch.session_id)) for branch in await self.all()]
        return [(branch, page) for branch, page in read if page is not None or branch.name == MAIN]

    async def find(self, name: str) -> Branch | None:
        return next((branch for branch in await self.all() if branch.name == name), None)

    async def create(self, parent: Branch, turn: int, name: str | None) -> Branch:
        """A branch that shows what ``parent`` shows before a turn. No items are copied."""
        if name is not None:
            checked_name("branch name", name)
        child = new_id("branch")

        async def plan(record: SessionRecord | None) -> tuple[Branch, list[Op]]:
            page = await parent.page()
            found = next((it for it in parent.turns_on(page) if it.number == turn and turn), None)
            if page is None or record is None or found is None:
                raise InvalidInput(
                    f"turn {turn!r} is not a user message of branch {parent.name!r}: nothing to branch from"
                )
            noted = _noted(record)
            chosen = name if name is not None else _unused(turn, noted, now=self.main.backend.clock())
            if chosen in noted or chosen == MAIN:
                raise InvalidInput(f"branch {chosen!r} exists already: use another name, or switch_to_branch")
            start = first_items(page.record, found.entries[0].row.position, session_id=child, tape=new_tape())
            return self._branch(chosen, child), [
                Require(parent.session_id, page.record.version),
                Splice(session_id=self.main.session_id, expected=record.version),
                msgspec.structs.replace(start, expected=0),
                Annotate(session_id=child, metadata={"branch": chosen, "branch_of": self.main.session_id}),
                self._note({**noted, chosen: child}),
            ]

        return await self._change(plan)

    async def delete(self, name: str) -> None:
        """Destroy a branch. Others keep what they show of it."""

        async def plan(record: SessionRecord | None) -> tuple[None, list[Op]]:
            noted = _noted(record)
            if record is None or name not in noted:
                raise InvalidInput(f"there is no branch {name!r}")
            return None, [
                Splice(session_id=self.main.session_id, expected=record.version),
                Erase(session_id=noted.pop(name), forget=True),
                self._note(noted),
            ]

        await self._change(plan)

    async def clear(self) -> None:
        """Destroy the items of all branches, all branches but ``main``, and the log, in one commit."""

        async def plan(record: SessionRecord | None) -> tuple[None, list[Op]]:
            if record is None:
                return None, []
            return None, [
                Erase(session_id=self.main.session_id, expected=record.version),
                *(Erase(session_id=branch, forget=True) for branch in _noted(record).values()),
                Erase(session_id=log_name(self.main.session_id), forget=True),
                self._note({}),
            ]

        await self._change(plan)

    async def _change(self, plan: Callable[[SessionRecord | None], Awaitable[tuple[T, Sequence[Op]]]]) -> T:
        for attempt in range(_MOST_TRIES):
            made, ops = await plan(await self.main.verified_record())
            try:
                await self.main.backend.commit(*ops)
            except HistoryMoved:
                await pause(attempt)
                continue
            return made
        raise HistoryMoved(self.main.session_id, expected="a quiet moment", found="constant change")

    def _branch(self, name: str, session_id: str) -> Branch:
        return Branch(session_id, self.origin, name=name)

    def _note(self, branches: dict[str, str]) -> Annotate:
        return Annotate(session_id=self.main.session_id, metadata={_NOTED: branches or None})


def _noted(record: SessionRecord | None) -> dict[str, str]:
    """The stored session of each branch, by name."""
    if record is None:
        return {}
    try:
        return msgspec.convert(record.metadata.get(_NOTED, {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise SessionDamaged(record.session_id, f"its branches cannot be read: {error}") from None


def _unused(turn: int, taken: dict[str, str], *, now: float) -> str:
    name = f"branch_from_turn_{turn}_{int(now)}"
    number = 1
    while (chosen := name if number == 1 else f"{name}_{number}") in taken:
        number += 1
    return chosen
