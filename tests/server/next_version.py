"""The command ``standfast`` as a later version could be: with one more migration."""

import sys

from standfast.cli import main
from standfast.store.sql import schema

NEXT = schema.Migration(
    "what_comes_next",
    (
        "ALTER TABLE {_runs} ADD COLUMN next_label <TEXT>",
        "ALTER TABLE {_approvals} ADD COLUMN next_number BIGINT NOT NULL DEFAULT 0",
        "CREATE TABLE {_next} (name <NAME> NOT NULL PRIMARY KEY, data <BYTES> NOT NULL) <CLUSTERED>",
        "CREATE INDEX {_runs}_by_next ON {_runs} (parent, status)",
    ),
)
NEXT_FUNCTIONS = schema.Migration(
    "what_comes_next_on_postgresql",
    only_dialect="postgresql",
    scripts=("sqlalchemy/postgres_commit.sql", "sqlalchemy/postgres_documents.sql"),
)

if __name__ == "__main__":
    schema.MIGRATIONS = (*schema.MIGRATIONS, NEXT, NEXT_FUNCTIONS)
    schema.LATEST_VERSION = len(schema.MIGRATIONS)
    sys.exit(main())
