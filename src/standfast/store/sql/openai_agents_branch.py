"""Branches in the tables of openai-agents, as its ``AdvancedSQLiteSession`` stores them.

``message_structure`` lists the messages of every branch, with a number that grows over the session, the number of the
turn and the tool. A message that several branches show is stored once. ``turn_usage`` has the usage of a run by branch
and turn. Since 0.24 ``branch_reservations`` has the names that were ever used, and ``session_clear_generations`` counts
how often a session was cleared.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import structs

from standfast.store import operations, preconditions
from standfast.store.records import EMPTY_HEAD, Head, SessionRecord
from standfast.store.sql.connection import DatabaseConnection
from standfast.store.sql.openai_agents_tables import OpenAIAgentsTables, to_timestamp

MAIN_BRANCH = "main"
USAGE_COLUMNS = (
    "branch_id",
    "user_turn_number",
    "requests",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "input_tokens_details",
    "output_tokens_details",
)
DescribeText: TypeAlias = Callable[[str], tuple[str, str | None]]
"""Returns the type of an item, given as JSON, and the tool that it calls."""

_HERE = "session_id = :session_id AND branch_id = :branch"


class OpenAIAgentsBranch(OpenAIAgentsTables):
    """One branch of the sessions in an SQLite file. Erasing a session erases all its branches."""

    def __init__(self, tables: OpenAIAgentsTables, branch: str, describe: DescribeText) -> None:
        super().__init__(
            tables.names, location=tables.location, order="s.sequence_number, s.id", get_columns=tables.get_columns
        )
        self.branch, self.describe = branch, describe
        self.select = (
            f"SELECT s.id, m.message_data FROM message_structure s JOIN {self.names.items} m ON m.id = s.message_id"
            " WHERE s.session_id = :session_id AND s.branch_id = :branch"
        )

    def build_params(self, session_id: str) -> dict[str, Any]:
        return {"session_id": session_id, "branch": self.branch}

    # --- items ----------------------------------------------------------------------------------

    def get_session(self, db: DatabaseConnection, session_id: str) -> SessionRecord | None:
        """Return the record of the branch, which was created with the first of its messages."""
        record = super().get_session(db, session_id)
        first = db.fetch_one(
            f"SELECT MIN(created_at) FROM message_structure WHERE {_HERE}", self.build_params(session_id)
        )
        if record is None or first is None or first[0] is None:
            return record
        return structs.replace(record, created_at=to_timestamp(first[0], record.created_at))

    def remove_rows(self, db: DatabaseConnection, session_id: str, row_ids: Sequence[Any]) -> None:
        """Take messages off the branch. A message that no branch shows is deleted, and usage of turns that are gone."""
        for row_id in row_ids:
            self.delete_rows(db, "id = :id", {"id": row_id})
        db.execute(
            f"DELETE FROM turn_usage WHERE {_HERE} AND user_turn_number NOT IN"
            f" (SELECT user_turn_number FROM message_structure WHERE {_HERE} AND message_type = 'user')",
            self.build_params(session_id),
        )

    def delete_rows(self, db: DatabaseConnection, condition: str, params: dict[str, Any]) -> None:
        """Remove rows of ``message_structure``, and the messages that no other row refers to."""
        rows = db.fetch_all(f"SELECT message_id FROM message_structure WHERE {condition}", params)
        db.execute(f"DELETE FROM message_structure WHERE {condition}", params)
        db.execute_many(
            f"DELETE FROM {self.names.items} WHERE id = :id AND id NOT IN"
            " (SELECT message_id FROM message_structure WHERE message_id = :id)",
            [{"id": message_id} for (message_id,) in rows],
        )

    def add_texts(self, db: DatabaseConnection, session_id: str, texts: Sequence[str]) -> None:
        here = self.build_params(session_id)
        sequence = self.get_last_sequence(db, session_id)
        last = db.fetch_one(f"SELECT MAX(user_turn_number) FROM message_structure WHERE {_HERE}", here)
        turn = (last and last[0]) or 0
        for text in texts:
            super().add_texts(db, session_id, [text])
            kind, tool = self.describe(text)
            sequence, turn = sequence + 1, turn + (kind == "user")
            db.execute(
                "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, sequence_number,"
                " user_turn_number, branch_turn_number, tool_name) VALUES"
                " (:session_id, last_insert_rowid(), :branch, :kind, :sequence, :turn, :turn, :tool)",
                {**here, "kind": kind, "sequence": sequence, "turn": turn, "tool": tool},
            )

    def get_last_sequence(self, db: DatabaseConnection, session_id: str) -> int:
        found = db.fetch_one(
            "SELECT MAX(sequence_number) FROM message_structure WHERE session_id = :session_id",
            {"session_id": session_id},
        )
        return (found and found[0]) or 0

    def erase(self, db: DatabaseConnection, op: operations.Erase) -> Head:
        here = {"session_id": op.session_id}
        preconditions.check_version(op.session_id, op.expected, found=self.lock(db, op.session_id))
        for table in ("turn_usage", "message_structure", self.names.items, self.names.sessions):
            db.execute(f"DELETE FROM {table} WHERE session_id = :session_id", here)
        if self.get_columns(db, "session_clear_generations"):
            db.execute(
                "UPDATE session_clear_generations SET generation = generation + 1 WHERE session_id = :session_id", here
            )
        return EMPTY_HEAD

    # --- branches -------------------------------------------------------------------------------

    def list_branches(self, db: DatabaseConnection, session_id: str) -> list[str]:
        """Return the names of all branches of a session in the order of creation; ``main`` is always the first."""
        rows = db.fetch_all(
            "SELECT branch_id FROM message_structure WHERE session_id = :session_id GROUP BY branch_id"
            " ORDER BY MIN(sequence_number)",
            {"session_id": session_id},
        )
        return [MAIN_BRANCH, *(name for (name,) in rows if name != MAIN_BRANCH)]

    def list_used_names(self, db: DatabaseConnection, session_id: str) -> set[str]:
        """Return the names that a new branch must not have."""
        used = set(self.list_branches(db, session_id))
        if self.get_columns(db, "branch_reservations"):
            rows = db.fetch_all(
                "SELECT branch_id FROM branch_reservations WHERE session_id = :session_id", {"session_id": session_id}
            )
            used |= {name for (name,) in rows}
        return used

    def create_branch(self, db: DatabaseConnection, session_id: str, name: str, turn: int) -> bool:
        """Create a branch with the messages before a turn of this one. Return False if there is no such turn."""
        self.check_ownership(db)
        here = {**self.build_params(session_id), "name": name, "turn": turn}
        if not db.fetch_one(
            f"SELECT 1 FROM message_structure WHERE {_HERE} AND user_turn_number = :turn AND message_type = 'user'",
            here,
        ):
            return False
        if self.get_columns(db, "branch_reservations"):
            for reserved in (self.branch, name):
                db.execute(
                    "INSERT OR IGNORE INTO branch_reservations (session_id, branch_id) VALUES (:session_id, :reserved)",
                    {**here, "reserved": reserved},
                )
        db.execute(
            "INSERT INTO message_structure (session_id, message_id, branch_id, message_type, sequence_number,"
            " user_turn_number, branch_turn_number, tool_name)"
            " SELECT session_id, message_id, :name, message_type,"
            " :sequence + ROW_NUMBER() OVER (ORDER BY sequence_number, id), user_turn_number, branch_turn_number,"
            f" tool_name FROM message_structure WHERE {_HERE} AND user_turn_number < :turn"
            " ORDER BY sequence_number, id",
            {**here, "sequence": self.get_last_sequence(db, session_id)},
        )
        return True

    def delete_branch(self, db: DatabaseConnection, session_id: str) -> bool:
        """Delete this branch with its usage. Return False if it has no messages."""
        self.check_ownership(db)
        here = self.build_params(session_id)
        if not db.fetch_one(f"SELECT 1 FROM message_structure WHERE {_HERE} LIMIT 1", here):
            return False
        self.delete_rows(db, _HERE, here)
        db.execute(f"DELETE FROM turn_usage WHERE {_HERE}", here)
        return True

    # --- usage ----------------------------------------------------------------------------------

    def store_usage(self, db: DatabaseConnection, session_id: str, usage: dict[str, Any]) -> None:
        """Store the usage of the latest turn of the branch, if there is one, in place of an earlier one."""
        self.check_ownership(db)
        here = self.build_params(session_id)
        last = db.fetch_one(
            f"SELECT MAX(user_turn_number) FROM message_structure WHERE {_HERE} AND message_type = 'user'", here
        )
        if last is None or not last[0]:
            return
        columns = USAGE_COLUMNS[2:]
        db.execute(
            f"INSERT OR REPLACE INTO turn_usage (session_id, branch_id, user_turn_number, {', '.join(columns)}) VALUES"
            f" (:session_id, :branch, :turn, {', '.join(f':{column}' for column in columns)})",
            {**here, "turn": last[0], **usage},
        )

    def read_usage(self, db: DatabaseConnection, session_id: str) -> list[dict[str, Any]]:
        """Return the rows of usage of all branches."""
        rows = db.fetch_all(
            f"SELECT {', '.join(USAGE_COLUMNS)} FROM turn_usage WHERE session_id = :session_id ORDER BY id",
            {"session_id": session_id},
        )
        return [dict(zip(USAGE_COLUMNS, row, strict=True)) for row in rows]

    def read_turn_times(self, db: DatabaseConnection, session_id: str) -> dict[tuple[str, int], str]:
        """Return the time at which each turn of each branch began."""
        rows = db.fetch_all(
            "SELECT branch_id, user_turn_number, created_at FROM message_structure"
            " WHERE session_id = :session_id AND message_type = 'user'",
            {"session_id": session_id},
        )
        return {(branch, turn): str(time) for branch, turn, time in rows}
