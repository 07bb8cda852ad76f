"""Branches of a session: named forks, which are listed in the metadata of the session."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from standfast.base.errors import HistoryMoved, InvalidInput, NotFound, SessionDamaged
from standfast.base.ids import new_id, validate_name
from standfast.history.compat.sqlite import SharedFileSession
from standfast.history.compat.turns import (
    Turn,
    TurnLog,
    TurnUsage,
    WriteTime,
    build_log_append,
    get_log_id,
    split_into_turns,
)
from standfast.history.session import make_contention_error
from standfast.history.stored_session import StoredSession, wait_before_retry
from standfast.history.view_updates import build_fork_splice
from standfast.store.operations import Annotate, Erase, Op, RequireVersion, Splice
from standfast.store.records import Head, HistoryPage, SessionRecord
from standfast.store.tape import generate_tape_id, slice_spans

T = TypeVar("T")
MAIN_BRANCH = "main"
# Before version 0.1.0 was released, the product was called holdfast. The name is in stored data and stays, so that
# programs of both versions see the same branches.
_BRANCHES_KEY = "holdfast.branches"
_MAX_ATTEMPTS = 100


class NamedBranch(SharedFileSession):
    """A branch of a session, with its turns. ``main`` always exists."""

    def __init__(self, session_id: str, origin: StoredSession, *, name: str) -> None:
        super().__init__(session_id, origin)
        self.name = name

    def open_sibling(self, session_id: str) -> Any:
        return SharedFileSession(session_id, self.origin)

    async def read_turns(self) -> list[Turn]:
        """Return the turns of the branch."""
        return self.decode_turns(await self.read_page())

    async def read_latest_turn(self) -> Turn | None:
        """Return the latest turn, if any. Its number is not that in the branch: earlier turns are not read."""
        window = 16
        while True:
            page = await self.read_page(last=window)
            turns = [turn for turn in self.decode_turns(page) if turn.number]
            if turns or page is None or len(page.rows) < window:
                return turns[-1] if turns else None
            window *= 4

    def decode_turns(self, page: HistoryPage | None) -> list[Turn]:
        return split_into_turns(self.decode_page(page)[0]) if page else []


class Branch(NamedBranch):
    """A branch that is a fork of the session; ``main`` is the session itself.

    Using a deleted branch raises :class:`NotFound`; writing to it does not create it again.
    """

    async def read_verified_record(self) -> SessionRecord | None:
        record = await super().read_verified_record()
        self._require_exists(record)
        return record

    async def read_page(self, **window: Any) -> HistoryPage | None:
        page = await super().read_page(**window)
        if window.get("generation") is None:
            self._require_exists(page)
        return page

    async def commit_with_retry(
        self,
        build_ops: Callable[[SessionRecord | None], Awaitable[list[Op]]],
        *,
        expected: Head | None,
        read_first: bool,
    ) -> Head:
        """Commit as any stored session does, and record the time of the write in the turn log in the same commit."""

        async def build_logged_ops(record: SessionRecord | None) -> list[Op]:
            ops = [self._pin_version(op, record) for op in await build_ops(record)]
            appends = [op for op in ops if isinstance(op, Splice) and op.add]
            now = await self.backend.get_time() if appends else 0.0
            return [*ops, *(self._build_time_entry(op, record, now) for op in appends)]

        return await super().commit_with_retry(build_logged_ops, expected=expected, read_first=True)

    def _require_exists(self, stored: object) -> None:
        if stored is None and self.name != MAIN_BRANCH:
            raise NotFound("branch", self.name)

    def _pin_version(self, op: Op, record: SessionRecord | None) -> Op:
        """Return an append with an expected version, so that it cannot recreate a branch that is deleted meanwhile."""
        if isinstance(op, Splice) and op.expected is None and record is not None and self.name != MAIN_BRANCH:
            return msgspec.structs.replace(op, expected=record.version)
        return op

    def _build_time_entry(self, op: Splice, record: SessionRecord | None, now: float) -> Op:
        tape, seq = (record.tape, record.next_seq) if record else (op.tape, 0)
        return build_log_append(self.origin.session_id, WriteTime(tape, seq, now))


class BranchRegistry:
    """The branches of a session, which are stored in its metadata.

    Every change of the branches also increments the version of the session, so that concurrent changes are serialised
    across processes.
    """

    def __init__(self, origin: StoredSession) -> None:
        self.origin = origin
        self.main = Branch(origin.session_id, origin, name=MAIN_BRANCH)

    async def list_all(self) -> list[Branch]:
        """Return all branches in the order of creation."""
        record = await self.main.read_verified_record()
        return [self.main, *(self._make_branch(*entry) for entry in parse_branches(record).items())]

    async def read_pages(self) -> list[tuple[Branch, HistoryPage | None]]:
        """Return all branches with their items. The page of ``main`` is ``None`` before the first write."""
        pages = [(branch, await branch.backend.read(branch.session_id)) for branch in await self.list_all()]
        return [(branch, page) for branch, page in pages if page is not None or branch.name == MAIN_BRANCH]

    async def read_log(self) -> TurnLog:
        return await TurnLog.read(self.main.backend, self.main.session_id)

    async def store_usage(self, branch: NamedBranch, usage: Any) -> None:
        """Store the usage of a run for the latest turn of a branch."""
        turn = await branch.read_latest_turn()
        if turn is not None:
            entry = TurnUsage.from_usage(usage, branch=branch.session_id, location=turn.location)
            await branch.backend.commit(build_log_append(self.main.session_id, entry))

    async def find(self, name: str) -> Branch | None:
        return next((branch for branch in await self.list_all() if branch.name == name), None)

    async def create(self, parent: NamedBranch, turn: int, name: str | None) -> Branch:
        """Create a branch with the items of ``parent`` before a turn. Copies no items."""

        def find_start(page: HistoryPage | None) -> int:
            start = next((it for it in parent.decode_turns(page) if it.number == turn and turn), None)
            if start is None:
                raise InvalidInput(f"branch {parent.name!r} has no turn {turn!r} to branch from")
            return start.entries[0].row.position

        return await self._fork(parent, find_start, name, turn)

    async def create_at(self, parent: Branch, position: int, name: str) -> Branch:
        """Create a branch with the first ``position`` items of ``parent``. Copies no items."""
        return await self._fork(parent, lambda page: position, name, 0)

    async def _fork(
        self, parent: NamedBranch, find_position: Callable[[HistoryPage | None], int], name: str | None, turn: int
    ) -> Branch:
        if name is not None:
            validate_name("branch name", name)
        child_id = new_id("branch")

        async def build_ops(record: SessionRecord | None) -> tuple[Branch, list[Op]]:
            page = await parent.read_page()
            position = find_position(page)
            if page is None or record is None:
                raise InvalidInput(f"branch {parent.name!r} is empty: there is nothing to branch from")
            branches = parse_branches(record)
            chosen = name if name is not None else choose_name(turn, branches, now=await self.main.backend.get_time())
            if chosen in branches or chosen == MAIN_BRANCH:
                raise InvalidInput(f"branch {chosen!r} already exists: choose another name, or use switch_to_branch()")
            shown = slice_spans(page.record.view, 0, position)
            splice = build_fork_splice(page.record, shown, session_id=child_id, tape=generate_tape_id())
            return self._make_branch(chosen, child_id), [
                RequireVersion(parent.session_id, page.record.version),
                Splice(session_id=self.main.session_id, expected=record.version),
                msgspec.structs.replace(splice, expected=0),
                Annotate(session_id=child_id, metadata={"branch": chosen, "branch_of": self.main.session_id}),
                self._build_annotation({**branches, chosen: child_id}),
            ]

        return await self._commit_with_retry(build_ops)

    async def delete(self, name: str) -> None:
        """Delete a branch. Branches that were created from it keep the items that they share with it."""

        async def build_ops(record: SessionRecord | None) -> tuple[None, list[Op]]:
            branches = parse_branches(record)
            if record is None or name not in branches:
                raise InvalidInput(f"unknown branch {name!r}; list_branches() returns the existing ones")
            return None, [
                Splice(session_id=self.main.session_id, expected=record.version),
                Erase(session_id=branches.pop(name), forget=True),
                self._build_annotation(branches),
            ]

        await self._commit_with_retry(build_ops)

    async def clear(self) -> None:
        """Erase ``main``, delete all other branches and the turn log, in one commit."""

        async def build_ops(record: SessionRecord | None) -> tuple[None, list[Op]]:
            if record is None:
                return None, []
            return None, [
                Erase(session_id=self.main.session_id, expected=record.version),
                *(Erase(session_id=branch, forget=True) for branch in parse_branches(record).values()),
                Erase(session_id=get_log_id(self.main.session_id), forget=True),
                self._build_annotation({}),
            ]

        await self._commit_with_retry(build_ops)

    async def _commit_with_retry(
        self, build_ops: Callable[[SessionRecord | None], Awaitable[tuple[T, Sequence[Op]]]]
    ) -> T:
        for attempt in range(_MAX_ATTEMPTS):
            result, ops = await build_ops(await self.main.read_verified_record())
            try:
                await self.main.backend.commit(*ops)
            except HistoryMoved:
                await wait_before_retry(attempt)
                continue
            return result
        raise make_contention_error(self.main.session_id, _MAX_ATTEMPTS)

    def _make_branch(self, name: str, session_id: str) -> Branch:
        return Branch(session_id, self.origin, name=name)

    def _build_annotation(self, branches: dict[str, str]) -> Annotate:
        return Annotate(session_id=self.main.session_id, metadata={_BRANCHES_KEY: branches or None})


def parse_branches(record: SessionRecord | None) -> dict[str, str]:
    """Return the id of the stored session of each branch, by branch name."""
    if record is None:
        return {}
    try:
        return msgspec.convert(record.metadata.get(_BRANCHES_KEY, {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise SessionDamaged(record.session_id, f"the list of branches cannot be read: {error}") from None


def choose_name(turn: int, taken: Collection[str], *, now: float) -> str:
    name = f"branch_from_turn_{turn}_{int(now)}"
    number = 1
    while (chosen := name if number == 1 else f"{name}_{number}") in taken:
        number += 1
    return chosen
