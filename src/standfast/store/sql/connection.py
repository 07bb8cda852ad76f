"""The connection interface of the relational backends, and the names of their tables."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from standfast.base.errors import InvalidInput

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class TableNames(msgspec.Struct, frozen=True):
    """The tables of one store. The names of all other tables start with the prefix of the sessions table."""

    sessions: str = "standfast_sessions"
    items: str = "standfast_items"

    def __post_init__(self) -> None:
        for name in (self.sessions, self.items):
            if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
                raise InvalidInput(f"{name!r} is not a table name: use up to 40 letters, digits and underscores")
        if self.sessions.lower() == self.items.lower():
            raise InvalidInput(f"sessions and items need two tables, but both are named {self.sessions!r}")

    @property
    def prefix(self) -> str:
        return self.sessions.removesuffix("sessions").rstrip("_") + "_"

    def substitute(self, sql: str) -> str:
        """Replace ``{sessions}``, ``{items}`` and ``{_other}`` in a statement with the names of these tables."""
        names = {"sessions": self.sessions, "items": self.items}
        return re.sub(r"\{(_?)(\w+)\}", lambda m: self.prefix + m[2] if m[1] else names[m[2]], sql)


DEFAULT_NAMES = TableNames()
FORMER_DEFAULT_NAMES = TableNames("holdfast_sessions", "holdfast_items")

GetColumns = Callable[[str], Collection[str]]
"""Returns the columns of a table, none if the table does not exist."""


def select_table_names(names: TableNames, get_columns: GetColumns) -> TableNames:
    """Return the names under which this database holds its tables.

    Before standfast 0.1.0 was released, the product and its default tables were called holdfast. A database with those
    tables, and without tables of the present default names, is used as it is. If openai-agents has tables of these
    names, the store uses others beside them.
    """
    if are_foreign(names, get_columns):
        return get_names_beside(names)
    if names != DEFAULT_NAMES or get_columns(names.sessions):
        return names
    return FORMER_DEFAULT_NAMES if "tape" in get_columns(FORMER_DEFAULT_NAMES.sessions) else names


def are_foreign(names: TableNames, get_columns: GetColumns) -> bool:
    """Return whether openai-agents has created tables with these names."""
    return "message_data" in get_columns(names.items)


def get_names_beside(names: TableNames) -> TableNames:
    """Return the names of the tables of standfast beside tables of openai-agents with these names."""
    return TableNames(f"standfast_{names.sessions}", f"standfast_{names.items}")


def are_left_to_owner(names: TableNames, get_columns: GetColumns) -> bool:
    """Return whether openai-agents has created tables with these names, and they are not adopted."""
    return are_foreign(names, get_columns) and "tape" not in get_columns(get_names_beside(names).sessions)


class DatabaseConnection(Protocol):
    """A connection inside a transaction. Statements use ``:name`` parameters and ``{table}`` names."""

    lock_clause: str
    """Appended to a SELECT that precedes a write: `` FOR UPDATE`` where the database locks rows."""
    words_expression: str
    """The SQL expression of ``:words`` that the items table stores for searching; empty without such an index."""

    def fetch_one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None: ...

    def fetch_all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]: ...

    def execute(self, sql: str, params: Mapping[str, Any]) -> None: ...

    def execute_many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None: ...


def as_bytes(data: Any) -> bytes | None:
    """Return the value of a column as bytes, including a hand-edited one: the codec decides whether it is an item."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    return bytes(data) if isinstance(data, (memoryview, bytearray)) else repr(data).encode()
