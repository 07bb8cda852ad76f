"""The schema as a list of named migrations.

A released migration is never edited or renamed; a change of the schema is a new migration at the end.
"""

from collections.abc import Iterator, Mapping
from importlib import resources

import msgspec

from standfast.base.errors import SchemaTooNew
from standfast.store.sql.connection import DatabaseConnection

# The spelling of the column types below in each dialect.
ColumnTypes = Mapping[str, str]
SQLITE_TYPES: ColumnTypes = {
    "NAME": "TEXT",
    "LABEL": "TEXT",
    "TEXT": "TEXT",
    "BYTES": "BLOB",
    "TIME": "REAL",
    "SERIAL": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "CLUSTERED": "WITHOUT ROWID",
}
POSTGRESQL_TYPES: ColumnTypes = {
    # Names are compared byte by byte, so that the order of a listing does not depend on the locale.
    "NAME": 'TEXT COLLATE "C"',
    "LABEL": 'TEXT COLLATE "C"',
    "TEXT": "TEXT",
    "BYTES": "BYTEA",
    "TIME": "DOUBLE PRECISION",
    "SERIAL": "BIGSERIAL PRIMARY KEY",
    "CLUSTERED": "",
}
MYSQL_TYPES: ColumnTypes = {
    "NAME": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "LABEL": "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "TEXT": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "BYTES": "LONGBLOB",
    "TIME": "DOUBLE",
    "SERIAL": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "CLUSTERED": "",
}


class Migration(msgspec.Struct, frozen=True):
    """One migration. With ``only_dialect``, other dialects record it without applying it."""

    name: str
    statements: tuple[str, ...] = ()
    only_dialect: str | None = None
    scripts: tuple[str, ...] = ()
    """Files of ``standfast.store`` with functions to create or replace. Each function ends with a line ``$$;``."""

    def iter_statements(self) -> Iterator[str]:
        yield from self.statements
        for script in self.scripts:
            text = resources.files("standfast.store").joinpath(script).read_text("utf-8")
            for function in text.split("\n$$;\n"):
                if function.strip():
                    yield function + "\n$$"


CREATE_SCHEMA_TABLE = """CREATE TABLE IF NOT EXISTS {_schema} (
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
    only_dialect="postgresql",
)

_COMMIT_SCRIPTS = ("sqlalchemy/postgres_commit.sql", "sqlalchemy/postgres_sweep.sql")
POSTGRESQL_COMMIT = Migration("commits_in_one_statement", only_dialect="postgresql", scripts=_COMMIT_SCRIPTS)

RUNS_BY_SESSION_STATUS = Migration(
    "live_runs_of_a_session",
    ("CREATE INDEX {_runs}_by_session_status ON {_runs} (session_id, status, position)",),
)

APPROVALS_BY_EXPIRY = Migration(
    "questions_by_expiry",
    ("CREATE INDEX {_approvals}_by_expiry ON {_approvals} (status, expires_at, approval_id)",),
)

LINK_HELD_RANGES = Migration(
    "forks_hold_what_they_began_with",
    ("ALTER TABLE {_links} ADD COLUMN held <TEXT>",),
)

POSTGRESQL_LINK_HELD_RANGES = Migration("forks_hold_on_postgresql", only_dialect="postgresql", scripts=_COMMIT_SCRIPTS)

# The header of a fork has always named its parent; the column makes forks of a run findable.
RUN_PARENTS = Migration(
    "forks_name_their_parent",
    (
        "ALTER TABLE {_runs} ADD COLUMN parent <NAME>",
        "CREATE INDEX {_runs}_by_parent ON {_runs} (parent, position)",
    ),
)

SQLITE_RUN_PARENTS = Migration(
    "parents_of_stored_forks_in_sqlite",
    (
        "UPDATE {_runs} SET parent = json_extract(CAST(data AS TEXT), '$.parent')"
        " WHERE json_valid(CAST(data AS TEXT)) AND json_type(CAST(data AS TEXT)) = 'object'",
    ),
    only_dialect="sqlite",
)

MYSQL_RUN_PARENTS = Migration(
    "parents_of_stored_forks_in_mysql",
    (
        "UPDATE {_runs} SET parent = JSON_UNQUOTE(JSON_EXTRACT(CONVERT(data USING utf8mb4), '$.parent'))"
        " WHERE JSON_VALID(CONVERT(data USING utf8mb4))",
    ),
    only_dialect="mysql",
)

# By pattern, because a header with an escaped NUL character is no jsonb for PostgreSQL.
POSTGRESQL_RUN_DELETION = Migration(
    "deleting_runs_on_postgresql",
    ("UPDATE {_runs} SET parent = substring(encode(data, 'escape') FROM '\"parent\":\"(run_[0-9a-z]+)\"')",),
    only_dialect="postgresql",
    scripts=_COMMIT_SCRIPTS,
)

WORKSPACES = Migration(
    "workspaces",
    (
        """CREATE TABLE {_workspaces} (
            name <NAME> NOT NULL PRIMARY KEY,
            workspace_id <NAME> NOT NULL,
            version BIGINT NOT NULL,
            created_at <TIME> NOT NULL,
            updated_at <TIME> NOT NULL
        ) <CLUSTERED>""",
        """CREATE TABLE {_versions} (
            name <NAME> NOT NULL,
            version BIGINT NOT NULL,
            data <BYTES> NOT NULL,
            created_at <TIME> NOT NULL,
            PRIMARY KEY (name, version)
        ) <CLUSTERED>""",
        """CREATE TABLE {_checkpoints} (
            name <NAME> NOT NULL,
            version BIGINT NOT NULL,
            checkpoint_id <NAME> NOT NULL,
            data <BYTES> NOT NULL,
            blobs <TEXT> NOT NULL,
            size BIGINT NOT NULL,
            created_at <TIME> NOT NULL,
            PRIMARY KEY (name, version)
        ) <CLUSTERED>""",
        """CREATE TABLE {_blobs} (
            digest <NAME> NOT NULL PRIMARY KEY,
            size BIGINT NOT NULL,
            refs BIGINT NOT NULL,
            place <NAME>,
            stored_at <TIME> NOT NULL
        ) <CLUSTERED>""",
        "CREATE INDEX {_blobs}_by_refs ON {_blobs} (refs, stored_at)",
        # Apart, so that counting references does not write the content again; with row ids, as rows of this size do
        # not fit into the pages of a clustered index.
        """CREATE TABLE {_blob_data} (
            digest <NAME> NOT NULL PRIMARY KEY,
            data <BYTES> NOT NULL
        )""",
    ),
)

POSTGRESQL_WORKSPACES = Migration(
    "workspaces_on_postgresql",
    only_dialect="postgresql",
    scripts=(*_COMMIT_SCRIPTS, "sqlalchemy/postgres_workspaces.sql"),
)

RUN_SEALS = Migration("seals_of_runs", ("ALTER TABLE {_runs} ADD COLUMN seal <BYTES>",))

POSTGRESQL_RUN_SEALS = Migration("seals_of_runs_on_postgresql", only_dialect="postgresql", scripts=_COMMIT_SCRIPTS)

POSTGRESQL_REWRITES = Migration(
    "rewriting_encrypted_runs_on_postgresql",
    only_dialect="postgresql",
    scripts=(*_COMMIT_SCRIPTS, "sqlalchemy/postgres_rewrites.sql"),
)

DOCUMENTS = Migration(
    "documents",
    (
        """CREATE TABLE {_documents} (
            kind <NAME> NOT NULL,
            name <NAME> NOT NULL,
            data <BYTES> NOT NULL,
            revision BIGINT NOT NULL,
            written_at <TIME> NOT NULL,
            PRIMARY KEY (kind, name)
        ) <CLUSTERED>""",
    ),
)

POSTGRESQL_DOCUMENTS = Migration(
    "documents_on_postgresql",
    only_dialect="postgresql",
    scripts=(*_COMMIT_SCRIPTS, "sqlalchemy/postgres_documents.sql"),
)

# Approvals that exist already count as changed by the first change.
APPROVAL_CHANGES = Migration(
    "numbered_changes_of_approvals",
    (
        "ALTER TABLE {_approvals} ADD COLUMN changed BIGINT NOT NULL DEFAULT 1",
        "CREATE INDEX {_approvals}_by_change ON {_approvals} (changed, approval_id)",
        "CREATE TABLE {_counters} (name <NAME> NOT NULL PRIMARY KEY, value BIGINT NOT NULL) <CLUSTERED>",
    ),
)

POSTGRESQL_APPROVAL_CHANGES = Migration(
    "numbered_changes_of_approvals_on_postgresql", only_dialect="postgresql", scripts=_COMMIT_SCRIPTS
)
POSTGRESQL_CLAIMS = Migration("sessions_are_claimed_by_owners", only_dialect="postgresql", scripts=_COMMIT_SCRIPTS)

# Runs from before have an empty queue, which every runtime looks into. The label of a queue is short, so that the index
# fits into what MySQL allows; there and on SQLite it has all runs, as their planners do not use a partial one here.
RUN_QUEUES = Migration(
    "queues_of_runs",
    (
        "ALTER TABLE {_runs} ADD COLUMN queue_name <LABEL> NOT NULL DEFAULT ''",
        "ALTER TABLE {_runs} ADD COLUMN queue_rank BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE {_runs} ADD COLUMN queue_share <NAME> NOT NULL DEFAULT ''",
        "ALTER TABLE {_runs} ADD COLUMN queue_behind BIGINT NOT NULL DEFAULT 0",
    ),
)
_QUEUE_INDEX = (
    "CREATE INDEX {_runs}_by_queue ON {_runs} (status, queue_behind, queue_name, queue_rank, queue_share, position)"
)
POSTGRESQL_RUN_QUEUES = Migration(
    "queues_of_runs_on_postgresql",
    (f"{_QUEUE_INDEX} WHERE status IN ('woken', 'next', 'queued')",),
    only_dialect="postgresql",
    scripts=_COMMIT_SCRIPTS,
)
SQLITE_RUN_QUEUES = Migration("queues_of_runs_on_sqlite", (_QUEUE_INDEX,), only_dialect="sqlite")
MYSQL_RUN_QUEUES = Migration("queues_of_runs_on_mysql", (_QUEUE_INDEX,), only_dialect="mysql")

MIGRATIONS = (
    HISTORIES,
    RUNS,
    POSTGRESQL_SEARCH,
    POSTGRESQL_COMMIT,
    RUNS_BY_SESSION_STATUS,
    APPROVALS_BY_EXPIRY,
    LINK_HELD_RANGES,
    POSTGRESQL_LINK_HELD_RANGES,
    RUN_PARENTS,
    SQLITE_RUN_PARENTS,
    MYSQL_RUN_PARENTS,
    POSTGRESQL_RUN_DELETION,
    WORKSPACES,
    POSTGRESQL_WORKSPACES,
    RUN_SEALS,
    POSTGRESQL_RUN_SEALS,
    POSTGRESQL_REWRITES,
    DOCUMENTS,
    POSTGRESQL_DOCUMENTS,
    APPROVAL_CHANGES,
    POSTGRESQL_APPROVAL_CHANGES,
    POSTGRESQL_CLAIMS,
    RUN_QUEUES,
    POSTGRESQL_RUN_QUEUES,
    SQLITE_RUN_QUEUES,
    MYSQL_RUN_QUEUES,
)
LATEST_VERSION = len(MIGRATIONS)


def migrate(
    connection: DatabaseConnection,
    *,
    dialect: str,
    types: ColumnTypes,
    location: str,
    now: float,
) -> None:
    """Apply the missing migrations. The caller holds a lock that excludes other processes."""
    connection.execute(substitute_types(CREATE_SCHEMA_TABLE, types), {})
    found = get_version(connection, location=location)
    for number, migration in enumerate(MIGRATIONS[found:], start=found + 1):
        if migration.only_dialect in (None, dialect):
            for statement in migration.iter_statements():
                connection.execute(substitute_types(statement, types), {})
        connection.execute(
            "INSERT INTO {_schema} (version, name, applied_at) VALUES (:version, :name, :now)",
            {"version": number, "name": migration.name, "now": now},
        )


def get_version(connection: DatabaseConnection, *, location: str) -> int:
    """Return the number of applied migrations. Raises :class:`SchemaTooNew` if a newer standfast has added some."""
    row = connection.fetch_one("SELECT MAX(version) FROM {_schema}", {})
    found: int = (row[0] if row else None) or 0
    if found > LATEST_VERSION:
        raise SchemaTooNew(location, found=found, supported=LATEST_VERSION)
    return found


def substitute_types(statement: str, types: ColumnTypes) -> str:
    for name, spelling in types.items():
        statement = statement.replace(f"<{name}>", spelling)
    return statement
