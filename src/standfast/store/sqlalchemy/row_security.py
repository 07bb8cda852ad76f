"""PostgreSQL's row-level security, and a backend whose transactions see and change the rows of one owner only.

A store that is scoped to an owner runs each of its transactions as the role :data:`SCOPED_ROLE`, with the owner in the
setting ``standfast.owner``; both end with the transaction. The policies of that role are below. Every other use has a
policy that allows everything, which PostgreSQL removes when it plans a statement.

A session without an owner, and a run without a session, belong to no owner. Deleting is not granted: what can be
destroyed depends on the forks of other owners.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy
from msgspec.structs import replace
from sqlalchemy.exc import DBAPIError

from standfast.base.errors import OutsideScope, Unsupported
from standfast.store.links import Link, LinkListener, LinkUnavailable
from standfast.store.operations import Annotate, AppendVersions, Op, OpResult, Quarantine, RequireVersion, Splice
from standfast.store.records import SearchCandidate
from standfast.store.sql.commit import apply
from standfast.store.sql.queries import RelationalQueries
from standfast.store.sqlalchemy import dialects, postgres
from standfast.store.sqlalchemy.dialects import CommitOutcomeUnknown, SqlConnection

if TYPE_CHECKING:
    from standfast.store.sqlalchemy.backend import SqlBackend

SCOPED_ROLE = "standfast_scoped"
ENTER_SCOPE = f"SELECT set_config('standfast.owner', :owner, true), set_config('role', '{SCOPED_ROLE}', true)"
"""Makes the running transaction one of an owner. Both settings end with it."""

_OWN_SESSION = "EXISTS (SELECT 1 FROM {sessions} s WHERE s.session_id = %s)"
_OWN_RUN = "EXISTS (SELECT 1 FROM {_runs} r WHERE r.run_id = %s.run_id)"
_OWN_TAPE = "EXISTS (SELECT 1 FROM {sessions} s WHERE s.tape = {items}.tape AND {items}.seq >= s.erased_upto)"
_SHARED_ITEM = (
    "EXISTS (SELECT 1 FROM {_links} l, {_commit_stretches}(l.upto, l.held) AS held"
    " WHERE l.tape = {items}.tape AND {items}.seq >= held.start AND {items}.seq < held.stop)"
)
_OWN_BLOB = "digest IN (SELECT jsonb_array_elements_text(c.blobs::jsonb) FROM {_checkpoints} c)"

# A subquery of a policy sees what the policies of its own tables show: "a session" below is a session of the owner.
_VISIBLE: Mapping[str, str] = {
    "{sessions}": "owner = (SELECT current_setting('standfast.owner', true))",
    "{items}": f"{_OWN_TAPE} OR {_SHARED_ITEM}",
    **{
        table: _OWN_SESSION % f"{table}.session_id"
        for table in ("{_generations}", "{_links}", "{_keys}", "{_quarantine}", "{_runs}", "{_approvals}")
    },
    **{table: _OWN_RUN % table for table in ("{_journal}", "{_events}")},
    **{
        table: _OWN_SESSION % f"{{_scope_session}}({table}.name)"
        for table in ("{_workspaces}", "{_versions}", "{_checkpoints}")
    },
    "{_blobs}": _OWN_BLOB,
    "{_blob_data}": _OWN_BLOB,
    "{_leases}": "false",
    "{_documents}": "false",
    "{_counters}": "false",
}
_WRITABLE: Mapping[str, str] = {
    "{sessions}": f"{_VISIBLE['{sessions}']} AND {{_scope_may_have_tape}}(session_id, tape)",
    "{items}": "EXISTS (SELECT 1 FROM {sessions} s WHERE s.tape = {items}.tape)",
    "{_links}": f"{_VISIBLE['{_links}']} AND {{_scope_holds_items}}(tape, upto, held)",
}
_SESSION_COLUMNS = (
    "version, length, next_seq, open_from, closed, generation, seal, owner, metadata, updated_at"  # not its tape
)
_GRANTS: Mapping[str, str] = {
    "{sessions}": f"SELECT, INSERT, UPDATE ({_SESSION_COLUMNS})",
    **dict.fromkeys(("{items}", "{_generations}", "{_links}", "{_versions}"), "SELECT, INSERT"),
    # UPDATE where rows are locked, too.
    **dict.fromkeys(("{_keys}", "{_quarantine}", "{_workspaces}"), "SELECT, INSERT, UPDATE"),
}

_SCOPE_SESSION = """CREATE OR REPLACE FUNCTION {_scope_session}(name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    -- As parse_session_id of standfast.workspaces.versions does.
    SELECT CASE WHEN starts_with(key, 'session:') THEN substr(key, 9) END
    FROM (
        SELECT regexp_replace(
            CASE WHEN name ~ '^nested:[0-9]{1,9}:' THEN
                substr(name, 9 + length(split_part(name, ':', 2)), split_part(name, ':', 2)::integer)
            ELSE name END, '^sandbox:', '') AS key
    ) AS inner_key
$$"""

# With the rights of the owner of the tables: a policy of links must not ask for links itself.
_SCOPE_HOLDS_ITEMS = """CREATE OR REPLACE FUNCTION {_scope_holds_items}(wanted bigint, upto bigint, held text)
RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = <SCHEMA>, pg_temp AS $$
    SELECT EXISTS (
        SELECT 1 FROM {sessions} s WHERE s.tape = wanted AND s.owner = current_setting('standfast.owner', true)
    ) OR NOT EXISTS (
        SELECT 1 FROM {_commit_stretches}(upto, held) AS new WHERE NOT EXISTS (
            SELECT 1 FROM {_links} l
            JOIN {sessions} s ON s.session_id = l.session_id, {_commit_stretches}(l.upto, l.held) AS own
            WHERE l.tape = wanted AND s.owner = current_setting('standfast.owner', true)
            AND own.start <= new.start AND new.stop <= own.stop
        )
    )
$$"""

# A session sees its tape: a new one must not have the tape of another, nor one that forks still show.
_SCOPE_MAY_HAVE_TAPE = """CREATE OR REPLACE FUNCTION {_scope_may_have_tape}(name text, wanted bigint)
RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = <SCHEMA>, pg_temp AS $$
    SELECT coalesce(
        (SELECT bool_and(s.session_id = name) FROM {sessions} s WHERE s.tape = wanted),
        NOT EXISTS (SELECT 1 FROM {_links} l WHERE l.tape = wanted)
    )
$$"""
T = TypeVar("T")
_INSUFFICIENT_PRIVILEGE = "42501"
_UNIQUE_VIOLATION = "23505"
_MAX_ATTEMPTS = 6
_SUPPORTED_OPS = (Splice, Annotate, RequireVersion, Quarantine, AppendVersions)


def is_enabled(db: SqlConnection) -> bool:
    """Return whether all tables that hold data of owners are protected."""
    tables = [db.statements.names.substitute(table) for table in _VISIBLE]
    row = db.fetch_one(
        "SELECT count(*) FROM pg_class WHERE relrowsecurity AND relforcerowsecurity"
        " AND oid = ANY (SELECT to_regclass(name) FROM unnest(CAST(:tables AS text[])) AS name)",
        {"tables": tables},
    )
    return row is not None and row[0] == len(tables)


def is_in_use(db: SqlConnection) -> bool:
    """Return whether the tables were protected at some time, possibly by a version with fewer tables."""
    sessions = db.statements.names.sessions
    return bool(
        fetch_value(db, "SELECT relforcerowsecurity FROM pg_class WHERE oid = to_regclass(:name)", name=sessions)
    )


def enable(db: SqlConnection) -> None:
    """Protect all tables, in the current transaction. Done again, it protects tables that were added since.

    Raise :class:`Unsupported` if the user of the connection may not create the role.
    """
    ensure_role(db)
    for statement in iter_statements(db):
        db.raw.exec_driver_sql(db.statements.names.substitute(statement))


def disable(db: SqlConnection) -> None:
    """Remove all policies, and take every right from the role: a store that is scoped fails from now on."""
    for table in _VISIBLE:
        for statement in (
            f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
            *drop_policies(table),
            f"REVOKE ALL ON {table} FROM {SCOPED_ROLE}",
        ):
            db.raw.exec_driver_sql(db.statements.names.substitute(statement))


def ensure_role(db: SqlConnection) -> None:
    """Create the role unless it exists, and let the users of the tables become it."""
    may_create = fetch_value(db, "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
    exists = fetch_value(db, f"SELECT true FROM pg_roles WHERE rolname = '{SCOPED_ROLE}'")
    users = list_users(db)
    lacking = [user for user in users if not exists or not can_become(db, user)]
    if (not exists or lacking) and not may_create:
        raise Unsupported(
            "this user of the database may not create roles; let an administrator run:"
            f" CREATE ROLE {SCOPED_ROLE} NOLOGIN; GRANT {SCOPED_ROLE} TO {', '.join(map(quote, users))};"
        )
    if not exists:
        db.raw.exec_driver_sql(f"CREATE ROLE {SCOPED_ROLE} NOLOGIN")
    # Without inheritance, so that the rights and policies of the role are only those of transactions that become it.
    option = " WITH INHERIT FALSE, SET TRUE" if get_server_version(db) >= 160000 else ""
    for user in lacking:
        db.raw.exec_driver_sql(f"GRANT {SCOPED_ROLE} TO {quote(user)}{option}")


def can_become(db: SqlConnection, user: str) -> bool:
    kind = "SET" if get_server_version(db) >= 160000 else "MEMBER"
    return bool(fetch_value(db, f"SELECT pg_has_role(:user, '{SCOPED_ROLE}', '{kind}')", user=user))


def list_users(db: SqlConnection) -> list[str]:
    """Return the owner of the tables, and the other roles that have rights on them."""
    rows = db.fetch_all(
        "SELECT DISTINCT r.rolname FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a"
        " JOIN pg_roles r ON r.oid = a.grantee WHERE c.oid = to_regclass(:sessions) AND r.rolname <> :scoped"
        " ORDER BY r.rolname",
        {"sessions": db.statements.names.sessions, "scoped": SCOPED_ROLE},
    )
    return [row[0] for row in rows]


def iter_statements(db: SqlConnection) -> Iterator[str]:
    schema = quote(str(fetch_value(db, "SELECT current_schema()")))
    users = ", ".join(map(quote, list_users(db)))
    yield f"GRANT USAGE ON SCHEMA {schema} TO {SCOPED_ROLE}"
    yield _SCOPE_SESSION
    yield _SCOPE_HOLDS_ITEMS.replace("<SCHEMA>", schema)
    yield _SCOPE_MAY_HAVE_TAPE.replace("<SCHEMA>", schema)
    for table, visible in _VISIBLE.items():
        yield f"REVOKE ALL ON {table} FROM {SCOPED_ROLE}"
        yield f"GRANT {_GRANTS.get(table, 'SELECT')} ON {table} TO {SCOPED_ROLE}"
        yield from drop_policies(table)
        yield f"CREATE POLICY standfast_all ON {table} TO {users} USING (true)"
        check = f" WITH CHECK ({_WRITABLE[table]})" if table in _WRITABLE else ""
        yield f"CREATE POLICY standfast_own ON {table} TO {SCOPED_ROLE} USING ({visible}){check}"
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
        yield f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
    yield "DROP FUNCTION IF EXISTS {_scope_holds_tape}(bigint)"  # of earlier versions, which checked less


def drop_policies(table: str) -> Iterator[str]:
    for policy in ("standfast_all", "standfast_own"):
        yield f"DROP POLICY IF EXISTS {policy} ON {table}"


def get_server_version(db: SqlConnection) -> int:
    return int(fetch_value(db, "SELECT current_setting('server_version_num')"))


def fetch_value(db: SqlConnection, sql: str, **params: object) -> Any:
    row = db.fetch_one(sql, params)
    return row[0] if row else None


def quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


class ScopedBackend(RelationalQueries):
    """What one owner has in a store, and nothing else: sessions to read and write, runs and workspaces to read.

    Sessions that are created get the owner. What another owner has does not exist, and its names cannot be used
    (:class:`OutsideScope`). Operations that destroy, and those on runs, leases and documents, are
    :class:`Unsupported`.
    """

    def __init__(self, backend: "SqlBackend", owner: str) -> None:
        self.backend, self.owner = backend, owner
        self.indexes_words, self.location = backend.indexes_words, backend.location
        self.is_checked = False

    async def close(self) -> None:
        """Leave the backend open; its owner closes it."""

    def for_owner(self, owner: str) -> "ScopedBackend":
        if owner != self.owner:
            raise OutsideScope(self.owner)
        return self

    async def check(self) -> None:
        """Refuse a store without row-level security: there would be nothing to hold."""
        if not self.is_checked:
            if not await self.backend.has_row_security():
                raise Unsupported(
                    "this store has no row-level security: switch it on with `standfast owners protect --store URL`"
                )
            self.is_checked = True

    async def commit(self, *ops: Op) -> list[OpResult]:
        for op in ops:
            if not isinstance(op, _SUPPORTED_OPS):
                raise Unsupported(f"a store that is scoped to an owner does not support {type(op).__name__}")
        owned = [
            replace(op, owner=self.owner) if isinstance(op, (Splice, Annotate)) and op.owner is None else op
            for op in ops
        ]
        await self.check()
        connections, transactions = self.backend.connections, self.backend.transactions
        await connections.wait_for_abandoned()

        def write(connection: SqlConnection) -> list[OpResult]:
            return apply(connection, owned, transactions.get_time(connection))

        problem: Exception
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(random.uniform(0, 0.005 * 2**attempt))
            connection = await connections.acquire()
            try:
                return await connections.run_shielded(
                    connections.run_and_release(connection, lambda raw: self.run_in_scope(raw, write))
                )
            except CommitOutcomeUnknown as lost:
                problem = lost.error
                break
            except DBAPIError as error:
                problem = error
                if not dialects.is_conflict(error):
                    break
            except OSError as error:
                problem = error
                break
        if isinstance(problem, DBAPIError) and dialects.get_sqlstate(problem) == _UNIQUE_VIOLATION:
            raise OutsideScope(self.owner) from None  # The name is taken by a row that stays hidden.
        raise dialects.translate_error(problem, self.location) from problem

    def run_in_scope(self, raw: sqlalchemy.Connection, work: Callable[[SqlConnection], T]) -> T:
        """Run ``work`` in a transaction of the owner."""

        def enter_and_work(connection: SqlConnection) -> T:
            connection.fetch_one(ENTER_SCOPE, {"owner": self.owner})
            return work(connection)

        try:
            return self.backend.transactions.run_in_transaction(raw, enter_and_work)
        except DBAPIError as error:
            if dialects.get_sqlstate(error) == _INSUFFICIENT_PRIVILEGE:
                raise OutsideScope(self.owner) from error
            raise

    async def run_query(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        await self.check()
        return await self.backend.connections.acquire_and_run(
            lambda raw: self.run_in_scope(raw, lambda connection: function(connection, *args, **kwargs))
        )

    async def open_link(self, name: str, listener: LinkListener) -> Link:
        raise LinkUnavailable("a store that is scoped to an owner has no links: open one of the whole store")

    async def get_time(self) -> float:
        return await self.backend.get_time()

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        # With the owner in the statement as well, PostgreSQL starts with that owner's sessions.
        wanted = self.owner if owner is None else owner
        return await self.run_query(postgres.find, terms, session_id=session_id, owner=wanted, limit=limit, skip=skip)
