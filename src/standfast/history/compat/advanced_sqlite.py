"""Sessions in an SQLite file with branches, turns and usage, with the same constructor as in openai-agents."""

import logging
import os
from collections import Counter
from typing import Any

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.log import get_logger
from standfast.history.compat.branches import MAIN_BRANCH, BranchRegistry, NamedBranch
from standfast.history.compat.openai_agents_branches import take_over_branches
from standfast.history.compat.shared_branches import SharedBranchRegistry, has_stored_branches
from standfast.history.compat.sqlite import SQLiteSession
from standfast.history.compat.turns import (
    Turn,
    classify_item,
    format_timestamp,
    get_tool_name,
    is_tool_call,
)
from standfast.history.session import SessionSettings
from standfast.history.wrapper import SessionWrapper

_log = get_logger(__name__)
_USAGE_FIELDS = ("requests", "input_tokens", "output_tokens", "total_tokens")


class BranchingFile(SQLiteSession):
    """The session ``main``. Its branches need tables of standfast."""

    foreign_tables = "refuse"


class AdvancedSQLiteSession(SessionWrapper):
    """A session in an SQLite file with branches. A branch is a fork of the session and copies no items.

    Methods use the current branch, which is a property of this object, not of the file; it starts as ``main``. Methods
    with the parameter ``branch_id`` use that branch instead; an unknown one is treated as empty. A turn is a user
    message and everything up to the next one. Branches and usage in tables of openai-agents are used as they are, until
    the tables are adopted: both programs can use the session. A file in which openai-agents stores no branches has to
    be adopted first, otherwise methods raise :class:`NotAdopted`.

    ``create_tables`` is accepted for compatibility and has no effect: tables are created when needed.
    """

    inner: NamedBranch

    def __init__(
        self,
        *,
        session_id: str,
        db_path: str | os.PathLike[str] = ":memory:",
        create_tables: bool = False,
        logger: logging.Logger | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._sqlite_session: SQLiteSession
        self._branches: BranchRegistry | SharedBranchRegistry
        if has_stored_branches(db_path, **kwargs):
            self._sqlite_session = SQLiteSession(session_id, db_path, session_settings=session_settings, **kwargs)
            self._branches = SharedBranchRegistry(self._sqlite_session)
        else:
            self._sqlite_session = BranchingFile(session_id, db_path, session_settings=session_settings, **kwargs)
            self._branches = BranchRegistry(self._sqlite_session)
        self.db_path = db_path
        self.sessions_table = self._sqlite_session.sessions_table
        self.messages_table = self._sqlite_session.messages_table
        self._logger = logger or _log
        self._foreign_branches_checked = False
        super().__init__(session_id, self._branches.main)

    def close(self) -> None:
        """Release the file. Using the session afterwards raises :class:`Closed`."""
        self._sqlite_session.close()
        self._branches.main.backend = self.inner.backend = self._sqlite_session.backend

    # --- the current branch ---------------------------------------------------------------------

    async def get_items(
        self,
        limit: int | None = None,
        branch_id: str | None = None,
        *,
        generation: int | None = None,
        wrapper: Any = None,
    ) -> list[Item]:
        """Return the items of a branch, by default of the current one, oldest first."""
        branch = await self._find_branch(branch_id)
        return await branch.get_items(limit, generation=generation) if branch else []

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Erase the session with all its branches and usage. The current branch is ``main`` afterwards."""
        await self._take_over_branches()
        await self._branches.clear()
        self._switch_to(self._branches.main)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> Any:
        """Return an independent session that starts with the first ``at`` items of the current branch."""
        return await self.inner.fork(at, session_id)

    # --- branches -------------------------------------------------------------------------------

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Create a branch with the items before a turn of the current branch, switch to it and return its name.

        Raise ``ValueError`` if there is no such turn or the name is taken.
        """
        await self._take_over_branches()
        branch = await self._branches.create(self.inner, turn_number, branch_name)
        self._switch_to(branch)
        self._logger.debug("session %r: branch %r created before turn %s", self.session_id, branch.name, turn_number)
        return branch.name

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """Create a branch before the first turn whose user message contains ``search_term``.

        See :meth:`create_branch_from_turn`.
        """
        turns = await self.find_turns_by_content(search_term)
        if not turns:
            raise InvalidInput(f"no user message of branch {self.inner.name!r} contains {search_term!r}")
        return await self.create_branch_from_turn(turns[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Make another branch the current one of this object. Other objects keep theirs."""
        await self._take_over_branches()
        branch = await self._branches.find(branch_id)
        if branch is None:
            raise InvalidInput(f"unknown branch {branch_id!r}; list_branches() returns the existing ones")
        self._switch_to(branch)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Delete a branch. The current one is deleted only with ``force``; ``main`` becomes current then."""
        if branch_id == MAIN_BRANCH:
            raise InvalidInput("the branch 'main' cannot be deleted; clear_session() erases everything")
        current = branch_id == self.inner.name
        if current and not force:
            raise InvalidInput(f"branch {branch_id!r} is current: switch to another first, or pass force=True")
        await self._take_over_branches()
        await self._branches.delete(branch_id)
        if current:
            self._switch_to(self._branches.main)
        self._logger.debug("session %r: branch %r deleted", self.session_id, branch_id)

    async def list_branches(self) -> list[dict[str, Any]]:
        """Return a description of each branch, in the order of creation."""
        await self._take_over_branches()
        listed = []
        for branch, page in await self._branches.read_pages():
            turns = branch.decode_turns(page)
            listed.append(
                {
                    "branch_id": branch.name,
                    "message_count": sum(len(turn.entries) for turn in turns),
                    "user_turns": sum(turn.number > 0 for turn in turns),
                    "is_current": branch.name == self.inner.name,
                    "created_at": format_timestamp(page.record.created_at) if page else None,
                }
            )
        return listed

    # --- turns ----------------------------------------------------------------------------------

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return a description of each turn, with the beginning of the user message as ``content``."""
        turns = await self._describe_turns(branch_id)
        return [{**description, "content": turn.preview} for turn, description in turns]

    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return a description of each turn whose user message contains ``search_term``, ignoring case."""
        if not isinstance(search_term, str):
            raise InvalidInput(f"search_term must be a string, not {type(search_term).__name__}")
        turns = await self._describe_turns(branch_id)
        return [description for turn, description in turns if turn.contains(search_term)]

    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """Return the kind and tool name of every item, by turn. Turn 0 is the items before the first user message."""
        return {
            turn.number: [
                {"type": classify_item(entry.item), "tool_name": get_tool_name(entry.item)} for entry in turn.entries
            ]
            for turn in await self._read_turns(branch_id)
        }

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """Return how often each tool was called in each turn, as tuples (tool, calls, turn), by turn and name."""
        calls = Counter(
            (turn.number, get_tool_name(entry.item) or "")
            for turn in await self._read_turns(branch_id)
            for entry in turn.entries
            if is_tool_call(entry.item)
        )
        return [(tool, count, number) for (number, tool), count in sorted(calls.items())]

    # --- usage ----------------------------------------------------------------------------------

    async def store_run_usage(self, result: Any) -> None:
        """Store the usage of a run for the latest turn of the current branch. It replaces that of an earlier call."""
        usage = getattr(getattr(result, "context_wrapper", None), "usage", None)
        if usage is None:
            raise InvalidInput(f"result must be the result of a run, with its usage, not {type(result).__name__}")
        await self._branches.store_usage(self.inner, usage)

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """Return the stored usage of one turn, or of all turns with stored usage. It is empty if none was stored."""
        branch = await self._find_branch(branch_id)
        log = await self._branches.read_log()
        turns = await branch.read_turns() if branch else []
        usage_by_turn = {turn.number: usage for turn in turns if branch and (usage := log.find_usage(branch, turn))}
        if user_turn_number is not None:
            return usage_by_turn.get(user_turn_number, {})
        return [{"user_turn_number": number, **usage} for number, usage in usage_by_turn.items()]

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """Return the total usage of all branches, or of one; ``None`` if none was stored.

        A turn counts in the branch in which it was run, as long as that shows its user message.
        """
        await self._take_over_branches()
        log = await self._branches.read_log()
        entries = [
            usage
            for branch, page in await self._branches.read_pages()
            if branch_id in (None, branch.name)
            for turn in branch.decode_turns(page)
            if (usage := log.find_usage(branch, turn))
        ]
        if not entries:
            return None
        totals = {name: sum(entry[name] for entry in entries) for name in _USAGE_FIELDS}
        return {**totals, "total_turns": len(entries)}

    # --- shared parts ---------------------------------------------------------------------------

    def _switch_to(self, branch: NamedBranch) -> None:
        branch.session_settings = self.session_settings
        self.inner = self.stored_session = branch

    async def _take_over_branches(self) -> None:
        """Take over the branches of openai-agents in this file, once per object."""
        if isinstance(self._branches, BranchRegistry) and not self._foreign_branches_checked:
            await take_over_branches(self._branches)
            self._foreign_branches_checked = True

    async def _find_branch(self, branch_id: str | None) -> NamedBranch | None:
        await self._take_over_branches()
        if branch_id is None or branch_id == self.inner.name:
            return self.inner
        return await self._branches.find(branch_id)

    async def _read_turns(self, branch_id: str | None) -> list[Turn]:
        branch = await self._find_branch(branch_id)
        return await branch.read_turns() if branch else []

    async def _describe_turns(self, branch_id: str | None) -> list[tuple[Turn, dict[str, Any]]]:
        """Return the turns that begin with a user message, with their descriptions."""
        branch = await self._find_branch(branch_id)
        page = await branch.read_page() if branch else None
        if branch is None or page is None:
            return []
        log = await self._branches.read_log()
        return [
            (
                turn,
                {
                    "turn": turn.number,
                    "content": turn.text,
                    "full_content": turn.content,
                    "timestamp": log.get_write_time(branch, turn, default=page.record.created_at),
                    "can_branch": True,
                },
            )
            for turn in branch.decode_turns(page)
            if turn.number
        ]
