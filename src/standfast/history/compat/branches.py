"""Branches of a session: forks of it that are known by name."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from standfast.base.errors import HistoryMoved, InvalidInput, NotFound, SessionDamaged
from standfast.base.ids import new_id, validate_name
from standfast.history.compat.sqlite import SharedFileSession, SQLiteSession
from standfast.history.compat.turns import Turn, WriteTime, build_log_append, get_log_id, split_into_turns
from standfast.history.stored_session import build_fork_splice, wait_before_retry
from standfast.store.contract import (
    Annotate,
    Erase,
    Head,
    Op,
    Page,
    RequireVersion,
    SessionRecord,
    Splice,
    generate_tape_id,
)

T = TypeVar("T")
MAIN_BRANCH = "main"
_BRANCHES_KEY = "holdfast.branches"
_MAX_ATTEMPTS = 100


class Branch(SharedFileSession):
    """One branch. ``main`` is the session itself and always there; others are there until they are deleted.

    Whoever still uses a deleted branch is told so (:class:`NotFound`); writing does not bring it back.
    """

    def __init__(self, session_id: str, origin: SQLiteSession, *, name: str) -> None:
        super().__init__(session_id, origin)
        self.name = name

    def open_sibling(self, session_id: str) -> Any:
        return SharedFileSession(session_id, self.origin)

    async def read_verified_record(self) -> SessionRecord | None:
        record = await super().read_verified_record()
        self._require_exists(record)
        return record

    async def read_page(self, **window: Any) -> Page | None:
        page = await super().read_page(**window)
        if window.get("generation") is None:
            self._require_exists(page)
        return page

    async def commit_with_retry(
        self, build_ops: Callable[[SessionRecord | None], list[Op]], *, expected: Head | None, read_first: bool
    ) -> Head:
        """As ever, and in the same commit note when it was."""

        def noted(record: SessionRecord | None) -> list[Op]:
            ops = [self._pin_version(op, record) for op in build_ops(record)]
            added = [op for op in ops if isinstance(op, Splice) and op.add]
            return [*ops, *(self._build_time_entry(op, record) for op in added)]

        return await super().commit_with_retry(noted, expected=expected, read_first=True)

    async def read_turns(self) -> list[Turn]:
        """What it shows now, as turns."""
        return self.decode_turns(await self.read_page())

    async def read_latest_turn(self) -> Turn | None:
        """The turn that is not over yet; its number is not known, for the others are not read."""
        window = 16
        while True:
            page = await self.read_page(last=window)
            turns = [turn for turn in self.decode_turns(page) if turn.number]
            if turns or page is None or len(page.rows) < window:
                return turns[-1] if turns else None
            window *= 4

    def decode_turns(self, page: Page | None) -> list[Turn]:
        return split_into_turns(self.decode_rows(page.rows)[0]) if page else []

    def _require_exists(self, found: object) -> None:
        if found is None and self.name != MAIN_BRANCH:
            raise NotFound("branch", self.name)

    def _pin_version(self, op: Op, record: SessionRecord | None) -> Op:
        """An append that must not create the branch anew, should it be deleted this moment."""
        if isinstance(op, Splice) and op.expected is None and record is not None and self.name != MAIN_BRANCH:
            return msgspec.structs.replace(op, expected=record.version)
        return op

    def _build_time_entry(self, op: Splice, record: SessionRecord | None) -> Op:
        tape, seq = (record.tape, record.next_seq) if record else (op.tape, 0)
        return build_log_append(self.origin.session_id, WriteTime(tape, seq, self.backend.clock()))


class BranchRegistry:
    """Which branches a session has. They are noted in its annotations.

    Every change of them is a change of the session's version too, so that of two at the same time one happens after
    the other, whatever process they are in.
    """

    def __init__(self, origin: SQLiteSession) -> None:
        self.origin = origin
        self.main = Branch(origin.session_id, origin, name=MAIN_BRANCH)

    async def list_all(self) -> list[Branch]:
        """Every branch, in the order of creation."""
        record = await self.main.read_verified_record()
        return [self.main, *(self._make_branch(*entry) for entry in _parse_branches(record).items())]

    async def read_pages(self) -> list[tuple[Branch, Page | None]]:
        """Every branch with all that it shows. ``main`` may never have been written to."""
        read = [(branch, await branch.backend.read(branch.session_id)) for branch in await self.list_all()]
        return [(branch, page) for branch, page in read if page is not None or branch.name == MAIN_BRANCH]

    async def find(self, name: str) -> Branch | None:
        return next((branch for branch in await self.list_all() if branch.name == name), None)

    async def create(self, parent: Branch, turn: int, name: str | None) -> Branch:
        """A branch that shows what ``parent`` shows before a turn. No items are copied."""
        if name is not None:
            validate_name("branch name", name)
        child = new_id("branch")

        async def plan(record: SessionRecord | None) -> tuple[Branch, list[Op]]:
            page = await parent.read_page()
            found = next((it for it in parent.decode_turns(page) if it.number == turn and turn), None)
            if page is None or record is None or found is None:
                raise InvalidInput(
                    f"turn {turn!r} is not a user message of branch {parent.name!r}: nothing to branch from"
                )
            noted = _parse_branches(record)
            chosen = name if name is not None else _choose_name(turn, noted, now=self.main.backend.clock())
            if chosen in noted or chosen == MAIN_BRANCH:
                raise InvalidInput(f"branch {chosen!r} exists already: use another name, or switch_to_branch")
            start = build_fork_splice(
                page.record, found.entries[0].row.position, session_id=child, tape=generate_tape_id()
            )
            return self._make_branch(chosen, child), [
                RequireVersion(parent.session_id, page.record.version),
                Splice(session_id=self.main.session_id, expected=record.version),
                msgspec.structs.replace(start, expected=0),
                Annotate(session_id=child, metadata={"branch": chosen, "branch_of": self.main.session_id}),
                self._build_annotation({**noted, chosen: child}),
            ]

        return await self._commit_with_retry(plan)

    async def delete(self, name: str) -> None:
        """Destroy a branch. Others keep what they show of it."""

        async def plan(record: SessionRecord | None) -> tuple[None, list[Op]]:
            noted = _parse_branches(record)
            if record is None or name not in noted:
                raise InvalidInput(f"there is no branch {name!r}")
            return None, [
                Splice(session_id=self.main.session_id, expected=record.version),
                Erase(session_id=noted.pop(name), forget=True),
                self._build_annotation(noted),
            ]

        await self._commit_with_retry(plan)

    async def clear(self) -> None:
        """Destroy the items of all branches, all branches but ``main``, and the log, in one commit."""

        async def plan(record: SessionRecord | None) -> tuple[None, list[Op]]:
            if record is None:
                return None, []
            return None, [
                Erase(session_id=self.main.session_id, expected=record.version),
                *(Erase(session_id=branch, forget=True) for branch in _parse_branches(record).values()),
                Erase(session_id=get_log_id(self.main.session_id), forget=True),
                self._build_annotation({}),
            ]

        await self._commit_with_retry(plan)

    async def _commit_with_retry(
        self, build_ops: Callable[[SessionRecord | None], Awaitable[tuple[T, Sequence[Op]]]]
    ) -> T:
        for attempt in range(_MAX_ATTEMPTS):
            made, ops = await build_ops(await self.main.read_verified_record())
            try:
                await self.main.backend.commit(*ops)
            except HistoryMoved:
                await wait_before_retry(attempt)
                continue
            return made
        raise HistoryMoved(self.main.session_id, expected="a quiet moment", found="constant change")

    def _make_branch(self, name: str, session_id: str) -> Branch:
        return Branch(session_id, self.origin, name=name)

    def _build_annotation(self, branches: dict[str, str]) -> Annotate:
        return Annotate(session_id=self.main.session_id, metadata={_BRANCHES_KEY: branches or None})


def _parse_branches(record: SessionRecord | None) -> dict[str, str]:
    """The stored session of each branch, by name."""
    if record is None:
        return {}
    try:
        return msgspec.convert(record.metadata.get(_BRANCHES_KEY, {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise SessionDamaged(record.session_id, f"its branches cannot be read: {error}") from None


def _choose_name(turn: int, taken: dict[str, str], *, now: float) -> str:
    name = f"branch_from_turn_{turn}_{int(now)}"
    number = 1
    while (chosen := name if number == 1 else f"{name}_{number}") in taken:
        number += 1
    return chosen
