"""What the relational code needs of a database connection."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from standfast.base.errors import InvalidInput

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class TableNames(msgspec.Struct, frozen=True):
    """The tables of one store. Every other table takes the name of the sessions table as its stem."""

    sessions: str = "standfast_sessions"
    items: str = "standfast_items"

    def __post_init__(self) -> None:
        for name in (self.sessions, self.items):
            if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
                raise InvalidInput(f"{name!r} is not a table name: use up to 40 letters, digits and underscores")
        if self.sessions.lower() == self.items.lower():
            raise InvalidInput(f"sessions and items need two tables, both are called {self.sessions!r}")

    @property
    def prefix(self) -> str:
        return self.sessions.removesuffix("sessions").rstrip("_") + "_"

    def substitute(self, sql: str) -> str:
        """``{sessions}``, ``{items}`` and ``{_other}`` in a statement become this store's table names."""
        names = {"sessions": self.sessions, "items": self.items}
        return re.sub(r"\{(_?)(\w+)\}", lambda m: self.prefix + m[2] if m[1] else names[m[2]], sql)


class DatabaseConnection(Protocol):
    """One transaction's worth of a database. Statements use ``:name`` parameters and ``{table}`` names."""

    lock_clause: str
    """Appended to a SELECT that precedes a write: `` FOR UPDATE`` where rows are locked one by one."""
    words_expression: str
    """What the items table keeps of ``:words`` for searching, as SQL; empty where nothing is indexed on writing."""

    def fetch_one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None: ...

    def fetch_all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]: ...

    def execute(self, sql: str, params: Mapping[str, Any]) -> None: ...

    def execute_many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None: ...
