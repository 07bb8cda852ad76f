"""Write the branches and the usage of a session as ``AdvancedSQLiteSession`` of openai-agents stores them."""

import json
import sqlite3
from collections.abc import Sequence

import msgspec

from standfast.base.items import encode_item
from standfast.history.compat.branches import BranchRegistry
from standfast.history.compat.turns import Turn, TurnLog, TurnUsage, classify_item, get_tool_name
from standfast.history.stored_session import StoredSession

_TABLES = """
CREATE TABLE IF NOT EXISTS message_structure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    message_id INTEGER NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    message_type TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    user_turn_number INTEGER,
    branch_turn_number INTEGER,
    tool_name TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
    FOREIGN KEY (message_id) REFERENCES agent_messages(id) ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS turn_usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    branch_id TEXT NOT NULL DEFAULT 'main',
    user_turn_number INTEGER NOT NULL,
    requests INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    total_tokens INTEGER DEFAULT 0,
    input_tokens_details JSON,
    output_tokens_details JSON,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
    UNIQUE (session_id, branch_id, user_turn_number)
);
"""


class ExportedBranch(msgspec.Struct, frozen=True):
    """A branch with its turns, and the usage of those for which it was stored."""

    name: str
    turns: list[Turn]
    usage: dict[int, TurnUsage]


async def read_exported_branches(session: StoredSession) -> list[ExportedBranch]:
    """Return the branches of a session, ``main`` first; none if it has no others and no usage."""
    registry = BranchRegistry(session)
    log = await TurnLog.read(session.backend, session.session_id)
    branches = []
    for branch, page in await registry.read_pages():
        turns = branch.decode_turns(page)
        found = {turn.number: log.find_entry(branch.session_id, turn.location) for turn in turns if turn.number}
        usage = {number: entry for number, entry in found.items() if entry is not None}
        branches.append(ExportedBranch(branch.name, turns, usage))
    return branches if len(branches) > 1 or any(branch.usage for branch in branches) else []


def write_branches(file: sqlite3.Connection, session_id: str, branches: Sequence[ExportedBranch]) -> int:
    """Write the items of all branches, those that branches share once, and return how many there are."""
    for statement in _TABLES.split(";\n"):
        file.execute(statement)
    messages: dict[tuple[int, int], int] = {}
    sequence = 0
    for branch in branches:
        for turn in branch.turns:
            for entry in turn.entries:
                place, sequence = (entry.row.tape, entry.row.seq), sequence + 1
                if place not in messages:
                    added = file.execute(
                        "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)",
                        (session_id, encode_item(entry.item).decode()),
                    )
                    messages[place] = added.lastrowid or 0
                file.execute(
                    "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, sequence_number,"
                    " user_turn_number, branch_turn_number, tool_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        session_id,
                        messages[place],
                        branch.name,
                        classify_item(entry.item),
                        sequence,
                        turn.number,
                        turn.number,
                        get_tool_name(entry.item),
                    ),
                )
        for number, usage in branch.usage.items():
            counts = (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
            details = (json.dumps(usage.input_tokens_details), json.dumps(usage.output_tokens_details))
            file.execute(
                "INSERT INTO turn_usage (session_id, branch_id, user_turn_number, requests, input_tokens,"
                " output_tokens, total_tokens, input_tokens_details, output_tokens_details)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (session_id, branch.name, number, *counts, *details),
            )
    return len(messages)
