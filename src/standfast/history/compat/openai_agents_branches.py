"""Take over the branches and the usage that ``AdvancedSQLiteSession`` of openai-agents stored in the same file.

openai-agents lists the messages of every branch in ``message_structure`` and the usage of turns in ``turn_usage``. Its
tables are read and never changed.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from standfast.base.items import Item, decode_item
from standfast.base.log import get_logger
from standfast.history.compat.branches import MAIN_BRANCH, Branch, BranchRegistry
from standfast.history.compat.turns import TurnUsage, build_log_append
from standfast.store.operations import Annotate
from standfast.store.sql.connection import DatabaseConnection
from standfast.store.sql.openai_agents_branch import USAGE_COLUMNS
from standfast.store.sqlite.backend import SqliteBackend

_log = get_logger(__name__)
_TAKEN_OVER = "standfast.openai_agents_branches"


class StoredBranches(msgspec.Struct, frozen=True):
    """The branches of a session of openai-agents in the order of creation, and rows of their usage."""

    branches: dict[str, list[Item]]
    usage: list[dict[str, Any]]


class BranchChanges(msgspec.Struct, frozen=True):
    """The branches that were created or extended, and those that have other items here and stay as they are."""

    changed: tuple[str, ...] = ()
    different: tuple[str, ...] = ()


def read_branches(db: DatabaseConnection, messages: str, session_id: str) -> StoredBranches | None:
    """Return what openai-agents stored, or ``None`` if it stored no branches of this session."""
    for table in (messages, "message_structure"):
        if not db.fetch_one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name", {"name": table}):
            return None
    rows = db.fetch_all(
        f"SELECT s.branch_id, m.message_data FROM message_structure s JOIN {messages} m ON m.id = s.message_id"
        " WHERE s.session_id = :session_id ORDER BY s.sequence_number, s.id",
        {"session_id": session_id},
    )
    branches: dict[str, list[Item]] = {}
    for branch, data in rows:
        try:
            branches.setdefault(branch, []).append(decode_item(data.encode()))
        except ValueError:  # openai-agents does not show it, either
            _log.warning("session %r: an item of branch %r cannot be read and is left out", session_id, branch)
    usage = _read_usage(db, session_id)
    return StoredBranches(branches, usage) if branches else None


def _read_usage(db: DatabaseConnection, session_id: str) -> list[dict[str, Any]]:
    if not db.fetch_one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'turn_usage'", {}):
        return []
    rows = db.fetch_all(
        f"SELECT {', '.join(USAGE_COLUMNS)} FROM turn_usage WHERE session_id = :session_id ORDER BY id",
        {"session_id": session_id},
    )
    return [dict(zip(USAGE_COLUMNS, row, strict=True)) for row in rows]


async def take_over_branches(registry: BranchRegistry) -> None:
    """Create the branches that openai-agents has and this session has not, and store their usage.

    This happens once per session: a branch that is deleted afterwards is not created again.
    """
    main, backend = registry.main, registry.main.backend
    if not isinstance(backend, SqliteBackend):
        return
    record = await backend.get_session(main.session_id)
    if record is None or record.metadata.get(_TAKEN_OVER):
        return
    messages = backend.requested_names.items
    stored = await backend.write(lambda db: read_branches(db, messages, main.session_id))
    if stored is None:
        return
    items = await main.get_items()
    theirs = stored.branches.get(MAIN_BRANCH, [])
    if items[: len(theirs)] == theirs:  # otherwise these are two different conversations
        await create_branches(registry, stored)
    await backend.commit(Annotate(session_id=main.session_id, metadata={_TAKEN_OVER: True}))


async def create_branches(
    registry: BranchRegistry, stored: StoredBranches, *, created: Collection[str] = ()
) -> BranchChanges:
    """Create the branches that do not exist yet, add the items that others lack, and store the usage of their turns.

    ``created`` are those that were created before: if one of them is missing, it was deleted and stays so.
    """
    known = {branch.name: branch for branch in await registry.list_all()}
    changed, different = list[str](), list[str]()
    for name, items in stored.branches.items():
        if name in (MAIN_BRANCH, *(created if name not in known else ())):
            continue
        if name not in known:
            parent, shared = await _find_parent(list(known.values()), items)
            known[name] = await registry.create_at(parent, shared, name)
            changed.append(name)
        own = await known[name].get_items()
        if own[: len(items)] == items:
            continue
        if items[: len(own)] != own:
            different.append(name)
            continue
        await known[name].add_items(items[len(own) :], key=f"branch {name} {len(own)} {len(items)}")
        changed.append(name)
    await _store_usage(registry, known, stored.usage)
    return BranchChanges(tuple(dict.fromkeys(changed)), tuple(different))


async def _store_usage(registry: BranchRegistry, known: Mapping[str, Branch], usage: Sequence[dict[str, Any]]) -> None:
    for row in usage:
        branch = known.get(row["branch_id"], registry.main)
        turns = {turn.number: turn for turn in await branch.read_turns()}
        turn = turns.get(row["user_turn_number"])
        if turn is not None:
            entry = TurnUsage(
                branch.session_id,
                *turn.location,
                requests=row["requests"] or 0,
                input_tokens=row["input_tokens"] or 0,
                output_tokens=row["output_tokens"] or 0,
                total_tokens=row["total_tokens"] or 0,
                input_tokens_details=_parse_details(row["input_tokens_details"]),
                output_tokens_details=_parse_details(row["output_tokens_details"]),
            )
            await branch.backend.commit(build_log_append(registry.main.session_id, entry))


async def _find_parent(branches: Sequence[Branch], items: Sequence[Item]) -> tuple[Branch, int]:
    """Return the branch that shares most items with the beginning of ``items``, and their number."""
    best, longest = branches[0], -1
    for branch in branches:
        own = await branch.get_items()
        shared = next((at for at, pair in enumerate(zip(own, items, strict=False)) if pair[0] != pair[1]), None)
        shared = min(len(own), len(items)) if shared is None else shared
        if shared > longest:
            best, longest = branch, shared
    return best, longest


def _parse_details(text: str | None) -> dict[str, Any]:
    details = json.loads(text) if text else {}
    return {name: value for name, value in details.items() if value is not None} if isinstance(details, dict) else {}
