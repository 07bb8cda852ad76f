"""Databases of an earlier schema: what later migrations have added is removed."""

import re

from standfast.store.sql import schema
from standfast.store.sql.connection import TableNames

_UNDO = (
    (r"ALTER TABLE (\S+) ADD COLUMN (\w+)", r"ALTER TABLE \1 DROP COLUMN \2"),
    (r"CREATE (?:UNIQUE )?INDEX (\S+) ON", r"DROP INDEX \1"),
    (r"CREATE TABLE (\S+) ", r"DROP TABLE \1"),
)


def list_undo_statements(migration: schema.Migration, dialect: str) -> list[str]:
    """Return the statements that undo all migrations from this one on, the record of them included.

    Functions stay: an earlier program does not know of them.
    """
    first = schema.MIGRATIONS.index(migration)
    statements = [
        TableNames().substitute(re.sub(rf"(?s)^\s*{pattern}.*", undone, statement))
        for later in reversed(schema.MIGRATIONS[first:])
        if later.only_dialect in (None, dialect)
        for statement in reversed(later.statements)
        for pattern, undone in _UNDO
        if re.match(rf"\s*{pattern}", statement)
    ]
    return [*statements, f"DELETE FROM standfast_schema WHERE version > {first}"]
