"""What the relational code needs of a database connection."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.base.errors import InvalidInput

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class Names(msgspec.Struct, frozen=True):
    """The tables of one store. Every other table takes the name of the sessions table as its stem."""

    sessions: str = "holdfast_sessions"
    items: str = "holdfast_items"

    def __post_init__(self) -> None:
        for name in (self.sessions, self.items):
            if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
                raise InvalidInput(f"{name!r} is not a table name: use up to 40 letters, digits and underscores")
        if self.sessions.lower() == self.items.lower():
            raise InvalidInput(f"sessions and items need two tables, both are called {self.sessions!r}")

    @property
    def stem(self) -> str:
        return self.sessions.removesuffix("sessions").rstrip("_") + "_"

    def fill(self, sql: str) -> str:
        """``{sessions}``, ``{items}`` and ``{_other}`` in a statement become this store's table names."""
        names = {"sessions": self.sessions, "items": self.items}
        return re.sub(r"\{(_?)(\w+)\}", lambda m: self.stem + m[2] if m[1] else names[m[2]], sql)


class Connection(Protocol):
    """One transaction's worth of a database. Statements use ``:name`` parameters and ``{table}`` names."""

    lock: str
    """Appended to a SELECT that precedes a write: `` FOR UPDATE`` where rows are locked one by one."""
    words: str
    """What the items table keeps of ``:words`` for searching, as SQL; empty where nothing is indexed on writing."""

    def one(self, sql: str, params: Mapping[str, Any]) -> Sequence[Any] | None: ...

    def all(self, sql: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]: ...

    def run(self, sql: str, params: Mapping[str, Any]) -> None: ...

    def many(self, sql: str, params: Sequence[Mapping[str, Any]]) -> None: ...
