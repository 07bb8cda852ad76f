"""A history in an SQLite file with branches, turns and usage, with the ecosystem's constructor."""

import logging
import os
from collections import Counter
from typing import Any

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.history.compat.branches import MAIN_BRANCH, Branch, BranchRegistry
from standfast.history.compat.sqlite import SQLiteSession
from standfast.history.compat.turns import (
    Turn,
    TurnLog,
    TurnUsage,
    build_log_append,
    classify_item,
    format_timestamp,
    get_tool_name,
    is_tool_call,
)
from standfast.history.session import SessionSettings
from standfast.history.wrapper import SessionWrapper

_log = logging.getLogger(__name__)
_USAGE_FIELDS = ("requests", "input_tokens", "output_tokens", "total_tokens")


class AdvancedSQLiteSession(SessionWrapper):
    """A conversation in an SQLite file that can be tried in several ways: each branch is a fork of it, and costs a row.

    Reading and writing are about the current branch, which every object chooses for itself; it begins with ``main``.
    A turn is a user's message and everything until the next one. Where a method takes ``branch_id``, it is about that
    branch instead, and answers as for an empty one when there is none of that name.

    ``create_tables`` is accepted for the sake of existing programs: tables are made when they are needed.
    """

    inner: Branch

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
        self._sqlite_session = SQLiteSession(session_id, db_path, session_settings=session_settings, **kwargs)
        self._branches = BranchRegistry(self._sqlite_session)
        self._logger = logger or _log
        super().__init__(session_id, self._branches.main)

    def close(self) -> None:
        """Let go of the file. Using the session afterwards raises :class:`Closed`."""
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
        branch = await self._find_branch(branch_id)
        return await branch.get_items(limit, generation=generation) if branch else []

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Erase the whole session with all its branches and what was noted about it; ``main`` is current then."""
        await self._branches.clear()
        self._switch_to(self._branches.main)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> Any:
        """A session of its own that starts with the first ``at`` items of the current branch."""
        return await self.inner.fork(at, session_id)

    # --- branches -------------------------------------------------------------------------------

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Go back to before a turn of the current branch: a new branch with what came before it, which is current then.

        Answers the branch's name. ``ValueError`` when there is no such turn or the name is taken.
        """
        branch = await self._branches.create(self.inner, turn_number, branch_name)
        self._switch_to(branch)
        self._logger.debug("session %r: branch %r created before turn %s", self.session_id, branch.name, turn_number)
        return branch.name

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """The same, before the first turn in which the user said ``search_term``."""
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise InvalidInput(f"no user message of branch {self.inner.name!r} contains {search_term!r}")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Read and write another branch from now on. Other objects stay where they are."""
        branch = await self._branches.find(branch_id)
        if branch is None:
            raise InvalidInput(f"there is no branch {branch_id!r}: list_branches() tells which there are")
        self._switch_to(branch)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Destroy a branch; with ``force`` also the current one, after which ``main`` is current."""
        if branch_id == MAIN_BRANCH:
            raise InvalidInput("the branch 'main' cannot be deleted; clear_session() erases everything")
        current = branch_id == self.inner.name
        if current and not force:
            raise InvalidInput(f"branch {branch_id!r} is the current one: switch to another first, or pass force=True")
        await self._branches.delete(branch_id)
        if current:
            self._switch_to(self._branches.main)
        self._logger.debug("session %r: branch %r deleted", self.session_id, branch_id)

    async def list_branches(self) -> list[dict[str, Any]]:
        """Every branch in the order of creation: how much there is in it, since when, and whether it is current."""
        found = []
        for branch, page in await self._branches.read_pages():
            turns = branch.decode_turns(page)
            found.append(
                {
                    "branch_id": branch.name,
                    "message_count": sum(len(turn.entries) for turn in turns),
                    "user_turns": sum(turn.number > 0 for turn in turns),
                    "is_current": branch.name == self.inner.name,
                    "created_at": format_timestamp(page.record.created_at) if page else None,
                }
            )
        return found

    # --- turns ----------------------------------------------------------------------------------

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """What the user said, turn by turn, with the beginning of it as ``content``."""
        turns = await self._describe_turns(branch_id)
        return [{**told, "content": turn.preview} for turn, told in turns]

    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The turns in which the user said ``search_term``, in upper or lower case."""
        if not isinstance(search_term, str):
            raise InvalidInput(f"a search term is a string, not {type(search_term).__name__}")
        return [told for turn, told in await self._describe_turns(branch_id) if turn.contains(search_term)]

    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """The kind of every item and the tool it calls, by turn. Turn 0 is what stands before the first one."""
        return {
            turn.number: [
                {"type": classify_item(entry.item), "tool_name": get_tool_name(entry.item)} for entry in turn.entries
            ]
            for turn in await self._read_turns(branch_id)
        }

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """How often each tool was called in each turn: (tool, calls, turn), by turn and name."""
        calls = Counter(
            (turn.number, get_tool_name(entry.item) or "")
            for turn in await self._read_turns(branch_id)
            for entry in turn.entries
            if is_tool_call(entry.item)
        )
        return [(tool, count, number) for (number, tool), count in sorted(calls.items())]

    # --- usage ----------------------------------------------------------------------------------

    async def store_run_usage(self, result: Any) -> None:
        """Keep what a run cost with the latest turn of the current branch, in place of what was kept there before."""
        usage = getattr(getattr(result, "context_wrapper", None), "usage", None)
        if usage is None:
            raise InvalidInput(f"the result of a run has its usage, which {type(result).__name__} has not")
        branch = self.inner
        turn = await branch.read_latest_turn()
        if turn is not None:
            spent = TurnUsage.from_usage(usage, branch=branch.session_id, location=turn.location)
            await branch.backend.commit(build_log_append(self.session_id, spent))

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """What was stored about one turn, or about each turn of which something was. Empty when nothing was."""
        branch = await self._find_branch(branch_id)
        log = await TurnLog.read(self.inner.backend, self.session_id)
        turns = await branch.read_turns() if branch else []
        spent = {
            turn.number: found
            for turn in turns
            if branch and (found := log.find_usage(branch.session_id, turn.location))
        }
        if user_turn_number is not None:
            return spent[user_turn_number].get_counts() if user_turn_number in spent else {}
        return [{"user_turn_number": number, **found.get_counts()} for number, found in spent.items()]

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """The sum over all branches, or over one; ``None`` when nothing was stored.

        A turn counts in the branch in which it was run, as long as its user message is shown there.
        """
        log = await TurnLog.read(self.inner.backend, self.session_id)
        spent = [
            found
            for branch, page in await self._branches.read_pages()
            if branch_id in (None, branch.name)
            for turn in branch.decode_turns(page)
            if (found := log.find_usage(branch.session_id, turn.location))
        ]
        if not spent:
            return None
        return {**{name: sum(getattr(it, name) for it in spent) for name in _USAGE_FIELDS}, "total_turns": len(spent)}

    # --- shared parts ---------------------------------------------------------------------------

    def _switch_to(self, branch: Branch) -> None:
        branch.session_settings = self.session_settings
        self.inner = self.stored_session = branch

    async def _find_branch(self, branch_id: str | None) -> Branch | None:
        if branch_id is None or branch_id == self.inner.name:
            return self.inner
        return await self._branches.find(branch_id)

    async def _read_turns(self, branch_id: str | None) -> list[Turn]:
        branch = await self._find_branch(branch_id)
        return await branch.read_turns() if branch else []

    async def _describe_turns(self, branch_id: str | None) -> list[tuple[Turn, dict[str, Any]]]:
        """The turns that users began, as they are told."""
        branch = await self._find_branch(branch_id)
        page = await branch.read_page() if branch else None
        if branch is None or page is None:
            return []
        log = await TurnLog.read(branch.backend, self.session_id)
        return [
            (
                turn,
                {
                    "turn": turn.number,
                    "content": turn.text,
                    "full_content": turn.content,
                    "timestamp": log.get_write_time(turn.location, default=page.record.created_at),
                    "can_branch": True,
                },
            )
            for turn in branch.decode_turns(page)
            if turn.number
        ]
