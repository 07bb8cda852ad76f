"""The tables, as numbered migrations named by what they mean.

A migration that was released is never edited; a change is a new one.
"""

from collections.abc import Iterator, Mapping
from importlib import resources

import msgspec

from holdfast.base.errors import SchemaTooNew
from holdfast.store.relational.connection import Connection

# How each dialect spells the column types below.
Types = Mapping[str, str]
SQLITE: Types = {
    "NAME": "TEXT",
    "TEXT": "TEXT",
    "BYTES": "BLOB",
    "TIME": "REAL",
    "SERIAL": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "CLUSTERED": "WITHOUT ROWID",
}
POSTGRESQL: Types = {
    # Names are compared byte by byte, so that listings come in the same order whatever the locale.
    "NAME": 'TEXT COLLATE "C"',
    "TEXT": "TEXT",
    "BYTES": "BYTEA",
    "TIME": "DOUBLE PRECISION",
    "SERIAL": "BIGSERIAL PRIMARY KEY",
    "CLUSTERED": "",
}
MYSQL: Types = {
    "NAME": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "TEXT": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "BYTES": "LONGBLOB",
    "TIME": "DOUBLE",
    "SERIAL": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "CLUSTERED": "",
}


class Migration(msgspec.Struct, frozen=True):
    """One step. ``only`` limits a step to a dialect; other dialects count it as done."""

    name: str
    statements: tuple[str, ...] = ()
    only: str | None = None
    scripts: tuple[str, ...] = ()
    """Files of ``holdfast.store`` with functions to create or replace; each function ends with a line ``$$;``."""

    def steps(self) -> Iterator[str]:
        yield from self.statements
        for script in self.scripts:
            text = resources.files("holdfast.store").joinpath(script).read_text("utf-8")
            for function in text.split("\n$$;\n"):
                if function.strip():
                    yield function + "\n$$"


VERSIONS = """CREATE TABLE IF NOT EXISTS {_schema} (
    version BIGINT NOT NULL PRIMARY KEY, name <NAME> NOT NULL, applied_at <TIME> NOT NULL
)"""

HISTORIES = Migration(
    "histories",
    (
        """CREATE TABLE {sessions} (
            session_id <NAME> NOT NULL PRIMARY KEY,
            tape BIGINT NOT NULL,
            version BIGINT NOT NULL,
            length BIGINT NOT NULL,
            next_seq BIGINT NOT NULL,
            open_from BIGINT NOT NULL,
            erased_upto BIGINT NOT NULL,
            closed <TEXT> NOT NULL,
            generation BIGINT NOT NULL,
            seal <BYTES>,
            owner <NAME>,
            metadata <TEXT> NOT NULL,
            created_at <TIME> NOT NULL,
            updated_at <TIME> NOT NULL
        ) <CLUSTERED>""",
        "CREATE INDEX {sessions}_by_time ON {sessions} (updated_at, session_id)",
        "CREATE INDEX {sessions}_by_tape ON {sessions} (tape)",
        """CREATE TABLE {items} (
            tape BIGINT NOT NULL,
            seq BIGINT NOT NULL,
            data <BYTES>,
            PRIMARY KEY (tape, seq)
        ) <CLUSTERED>""",
        """CREATE TABLE {_generations} (
            session_id <NAME> NOT NULL,
            generation BIGINT NOT NULL,
            length BIGINT NOT NULL,
            spans <TEXT> NOT NULL,
            resumes_at BIGINT NOT NULL,
            replaced_at <TIME> NOT NULL,
            PRIMARY KEY (session_id, generation)
        ) <CLUSTERED>""",
        """CREATE TABLE {_links} (
            tape BIGINT NOT NULL,
            session_id <NAME> NOT NULL,
            upto BIGINT NOT NULL,
            PRIMARY KEY (tape, session_id)
        ) <CLUSTERED>""",
        "CREATE INDEX {_links}_by_session ON {_links} (session_id)",
        """CREATE TABLE {_keys} (
            session_id <NAME> NOT NULL,
            name <NAME> NOT NULL,
            digest <NAME> NOT NULL,
            version BIGINT NOT NULL,
            length BIGINT NOT NULL,
            PRIMARY KEY (session_id, name)
        ) <CLUSTERED>""",
        """CREATE TABLE {_quarantine} (
            session_id <NAME> NOT NULL,
            tape BIGINT NOT NULL,
            seq BIGINT NOT NULL,
            reason <TEXT> NOT NULL,
            quarantined_at <TIME> NOT NULL,
            PRIMARY KEY (session_id, tape, seq)
        ) <CLUSTERED>""",
    ),
)

RUNS = Migration(
    "runs",
    (
        """CREATE TABLE {_runs} (
            position <SERIAL>,
            run_id <NAME> NOT NULL UNIQUE,
            session_id <NAME>,
            status <NAME> NOT NULL,
            revision BIGINT NOT NULL,
            data <BYTES> NOT NULL,
            journal_length BIGINT NOT NULL,
            event_length BIGINT NOT NULL,
            created_at <TIME> NOT NULL,
            updated_at <TIME> NOT NULL
        )""",
        "CREATE INDEX {_runs}_by_status ON {_runs} (status, position)",
        "CREATE INDEX {_runs}_by_session ON {_runs} (session_id, position)",
        """CREATE TABLE {_journal} (
            run_id <NAME> NOT NULL,
            seq BIGINT NOT NULL,
            kind <NAME> NOT NULL,
            data <BYTES> NOT NULL,
            logged_at <TIME> NOT NULL,
            PRIMARY KEY (run_id, seq)
        ) <CLUSTERED>""",
        """CREATE TABLE {_events} (
            run_id <NAME> NOT NULL,
            seq BIGINT NOT NULL,
            kind <NAME> NOT NULL,
            data <BYTES> NOT NULL,
            logged_at <TIME> NOT NULL,
            PRIMARY KEY (run_id, seq)
        ) <CLUSTERED>""",
        """CREATE TABLE {_approvals} (
            approval_id <NAME> NOT NULL PRIMARY KEY,
            run_id <NAME> NOT NULL,
            session_id <NAME>,
            status <NAME> NOT NULL,
            revision BIGINT NOT NULL,
            data <BYTES> NOT NULL,
            requested_at <TIME> NOT NULL,
            expires_at <TIME>
        ) <CLUSTERED>""",
        "CREATE INDEX {_approvals}_by_status ON {_approvals} (status, approval_id)",
        "CREATE INDEX {_approvals}_by_run ON {_approvals} (run_id, approval_id)",
        """CREATE TABLE {_leases} (
            name <NAME> NOT NULL PRIMARY KEY,
            owner <NAME> NOT NULL,
            token BIGINT NOT NULL,
            expires_at <TIME> NOT NULL
        ) <CLUSTERED>""",
    ),
)

POSTGRESQL_SEARCH = Migration(
    "search_as_written",
    (
        "ALTER TABLE {items} ADD COLUMN words tsvector",
        "CREATE INDEX {items}_by_word ON {items} USING gin (words)",
    ),
    only="postgresql",
)

_FUNCTIONS = ("sql/postgres_commit.sql", "sql/postgres_sweep.sql")
POSTGRESQL_COMMIT = Migration("commits_in_one_statement", only="postgresql", scripts=_FUNCTIONS)

LIVE_RUNS = Migration(
    "live_runs_of_a_session",
    ("CREATE INDEX {_runs}_by_session_status ON {_runs} (session_id, status, position)",),
)

QUESTIONS_DUE = Migration(
    "questions_by_expiry",
    ("CREATE INDEX {_approvals}_by_expiry ON {_approvals} (status, expires_at, approval_id)",),
)

FORKS_HOLD = Migration(
    "forks_hold_what_they_began_with",
    ("ALTER TABLE {_links} ADD COLUMN held <TEXT>",),
)

POSTGRESQL_FORKS_HOLD = Migration("forks_hold_on_postgresql", only="postgresql", scripts=_FUNCTIONS)

MIGRATIONS = (
    HISTORIES,
    RUNS,
    POSTGRESQL_SEARCH,
    POSTGRESQL_COMMIT,
    LIVE_RUNS,
    QUESTIONS_DUE,
    FORKS_HOLD,
    POSTGRESQL_FORKS_HOLD,
)
NEWEST = len(MIGRATIONS)


def migrate(
    connection: Connection,
    *,
    dialect: str,
    types: Types,
    where: str,
    now: float,
) -> None:
    """Bring the tables to the newest version. The caller holds the lock under which this is alone."""
    connection.run(types_filled(VERSIONS, types), {})
    found = version(connection, where=where)
    for number, migration in enumerate(MIGRATIONS[found:], start=found + 1):
        if migration.only in (None, dialect):
            for statement in migration.steps():
                connection.run(types_filled(statement, types), {})
        connection.run(
            "INSERT INTO {_schema} (version, name, applied_at) VALUES (:version, :name, :now)",
            {"version": number, "name": migration.name, "now": now},
        )


def version(connection: Connection, *, where: str) -> int:
    """How many migrations were applied, or :class:`SchemaTooNew` when this holdfast does not know them all."""
    row = connection.one("SELECT MAX(version) FROM {_schema}", {})
    found: int = (row[0] if row else None) or 0
    if found > NEWEST:
        raise SchemaTooNew(where, found=found, known=NEWEST)
    return found


def types_filled(statement: str, types: Types) -> str:
    for name, spelling in types.items():
        statement = statement.replace(f"<{name}>", spelling)
    return statement
