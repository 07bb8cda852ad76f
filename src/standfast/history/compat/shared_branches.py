"""Branches of ``AdvancedSQLiteSession`` in tables of openai-agents that are not adopted: both programs use them."""

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from standfast.base.errors import InvalidInput, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.base.items import decode_item
from standfast.history.compat.branches import MAIN_BRANCH, NamedBranch, choose_name
from standfast.history.compat.sqlite import SQLiteSession
from standfast.history.compat.turns import Turn, TurnUsage, classify_item, format_timestamp, get_tool_name
from standfast.store.operations import Op, OpResult
from standfast.store.records import HistoryPage, SessionRecord
from standfast.store.sql.connection import DatabaseConnection, TableNames, are_left_to_owner
from standfast.store.sql.openai_agents_branch import OpenAIAgentsBranch
from standfast.store.sql.openai_agents_tables import AdoptedMeanwhile
from standfast.store.sqlite.backend import MEMORY, SqliteBackend

T = TypeVar("T")


def has_stored_branches(
    path: str | os.PathLike[str], sessions_table: str = "agent_sessions", messages_table: str = "agent_messages"
) -> bool:
    """Return whether openai-agents stores branches in a file, and its tables are not adopted."""
    if str(path) == MEMORY or not Path(path).is_file():
        return False
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:

        def get_columns(table: str) -> list[str]:
            return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]

        try:
            foreign = are_left_to_owner(TableNames(sessions_table, messages_table), get_columns)
            return foreign and all("branch_id" in get_columns(table) for table in ("message_structure", "turn_usage"))
        except sqlite3.Error:  # opening the file says what is wrong with it
            return False


class BranchBackend:
    """The backend of one branch: that of the file, with the items of the branch."""

    indexes_words = False

    def __init__(self, file: SqliteBackend, branch: str) -> None:
        self.file, self.branch = file, branch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    async def open_branch(self) -> OpenAIAgentsBranch:
        await self.file.open()
        if self.file.openai_agents is None:
            raise self.make_adopted_error()
        return OpenAIAgentsBranch(self.file.openai_agents, self.branch, describe_text)

    async def get_session(self, session_id: str) -> SessionRecord | None:
        return await self.query((await self.open_branch()).get_session, session_id)

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> HistoryPage | None:
        read = (await self.open_branch()).read
        return await self.query(read, session_id, start=start, stop=stop, last=last, generation=generation)

    async def commit(self, *ops: Op) -> list[OpResult]:
        branch = await self.open_branch()
        return await self.write(lambda db: branch.apply(db, ops))

    async def query(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        try:
            return await self.file.run_query_once(function, *args, **options)
        except AdoptedMeanwhile:
            raise self.make_adopted_error() from None

    async def write(self, work: Callable[[DatabaseConnection], T]) -> T:
        try:
            return await self.file.write(work)
        except AdoptedMeanwhile:
            raise self.make_adopted_error() from None

    def make_adopted_error(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.file.location}: the tables were adopted by standfast; open the session again")


class SharedBranch(NamedBranch):
    """A branch in tables of openai-agents. A branch without items exists only in this object, as in openai-agents."""

    backend: BranchBackend

    def __init__(self, origin: SQLiteSession, name: str) -> None:
        super().__init__(origin.session_id, origin, name=name)
        self.backend = BranchBackend(origin.backend, name)  # type: ignore[arg-type]


class SharedTurnLog:
    """Usage and times of the turns of all branches at the time of reading."""

    def __init__(self, usage: Sequence[dict[str, Any]], times: dict[tuple[str, int], str]) -> None:
        self._usage = {(row.pop("branch_id"), row.pop("user_turn_number")): row for row in usage}
        self._times = times

    def find_usage(self, branch: NamedBranch, turn: Turn) -> dict[str, Any] | None:
        """Return the counts that were stored last for a turn of a branch."""
        row = self._usage.get((branch.name, turn.number))
        if row is None:
            return None
        details = {name: json.loads(row[name]) if row[name] else {} for name in row if name.endswith("_details")}
        return {**row, **details}

    def get_write_time(self, branch: NamedBranch, turn: Turn, *, default: float) -> str:
        """Return the timestamp at which a turn began."""
        return self._times.get((branch.name, turn.number), format_timestamp(default))


class SharedBranchRegistry:
    """The branches of a session in tables of openai-agents."""

    def __init__(self, origin: SQLiteSession) -> None:
        self.origin = origin
        self.main = SharedBranch(origin, MAIN_BRANCH)

    async def read_pages(self) -> list[tuple[SharedBranch, HistoryPage | None]]:
        """Return all branches with their items, in the order of creation."""
        tables = await self.main.backend.open_branch()
        names = await self.main.backend.query(tables.list_branches, self.origin.session_id)
        branches = [SharedBranch(self.origin, name) for name in names]
        return [(branch, await branch.read_page()) for branch in branches]

    async def read_log(self) -> SharedTurnLog:
        tables, query = await self.main.backend.open_branch(), self.main.backend.query
        usage = await query(tables.read_usage, self.origin.session_id)
        return SharedTurnLog(usage, await query(tables.read_turn_times, self.origin.session_id))

    async def store_usage(self, branch: NamedBranch, usage: Any) -> None:
        """Store the usage of a run for the latest turn of a branch."""
        counts = TurnUsage.from_usage(usage, branch=branch.session_id, location=(0, 0)).get_counts()
        row = {name: json.dumps(count) if isinstance(count, dict) else count for name, count in counts.items()}
        shared = SharedBranch(self.origin, branch.name).backend
        tables = await shared.open_branch()
        await shared.write(lambda db: tables.store_usage(db, self.origin.session_id, row))

    async def find(self, name: str) -> SharedBranch | None:
        tables = await self.main.backend.open_branch()
        names = await self.main.backend.query(tables.list_branches, self.origin.session_id)
        return SharedBranch(self.origin, name) if name in names else None

    async def create(self, parent: NamedBranch, turn: int, name: str | None) -> SharedBranch:
        """Create a branch with the items of ``parent`` before a turn. Copies no items."""
        if name is not None:
            validate_name("branch name", name)
        shared = SharedBranch(self.origin, parent.name).backend
        tables, now = await shared.open_branch(), await shared.get_time()

        def create(db: DatabaseConnection) -> str | None:
            tables.check_ownership(db)
            used = tables.list_used_names(db, self.origin.session_id)
            chosen = name if name is not None else choose_name(turn, used, now=now)
            if chosen in used:
                raise InvalidInput(f"branch {chosen!r} already exists or existed: choose another name")
            return chosen if tables.create_branch(db, self.origin.session_id, chosen, turn) else None

        created = await shared.write(create)
        if created is None:
            raise InvalidInput(f"branch {parent.name!r} has no turn {turn!r} to branch from")
        return SharedBranch(self.origin, created)

    async def delete(self, name: str) -> None:
        shared = SharedBranch(self.origin, name).backend
        tables = await shared.open_branch()
        if not await shared.write(partial(tables.delete_branch, session_id=self.origin.session_id)):
            raise InvalidInput(f"unknown branch {name!r}; list_branches() returns the existing ones")

    async def clear(self) -> None:
        """Erase the session with all branches and usage, in one transaction."""
        await self.main.clear_session()


def describe_text(text: str) -> tuple[str, str | None]:
    """Return the type of an item, given as JSON, and the tool that it calls."""
    item = decode_item(text.encode())
    return classify_item(item), get_tool_name(item)
