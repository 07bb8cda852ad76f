"""What the errors of database drivers mean for a commit. Each driver has its own way to say it."""

from sqlalchemy.exc import DBAPIError

from standfast.base.errors import InvalidInput, StandfastError, StoreUnavailable

# Serialisation failure, deadlock, and a row that somebody else inserted first.
_POSTGRESQL_CONFLICTS = frozenset(["40001", "40P01", "23505"])
_MYSQL_CONFLICTS = frozenset([1062, 1205, 1213])
_SQLITE_CONFLICTS = frozenset([5, 6])
UNTRANSLATABLE_CHARACTER = "22P05"
"""PostgreSQL's JSON functions cannot look into a text that holds a NUL character."""


class CommitOutcomeUnknown(Exception):
    """The connection broke when the database may already have committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class StatementNotSent(Exception):
    """The connection was gone before anything went over it."""


def get_sqlstate(error: DBAPIError) -> str | None:
    code = getattr(error.orig, "sqlstate", None)
    return code if isinstance(code, str) else None


def get_detail(error: DBAPIError) -> str | None:
    """The DETAIL of a PostgreSQL error: where asyncpg, SQLAlchemy's wrapper of it, or psycopg keep it."""
    original = error.orig
    for holder in (original, getattr(original, "__cause__", None)):
        found = getattr(holder, "detail", None)
        if isinstance(found, str):
            return found
    found = getattr(getattr(original, "diag", None), "message_detail", None)
    return found if isinstance(found, str) else None


def get_driver_code(error: DBAPIError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None


def is_conflict(error: DBAPIError) -> bool:
    """The database undid it because of what others did at the same time; again it may go well."""
    return (
        get_sqlstate(error) in _POSTGRESQL_CONFLICTS
        or get_driver_code(error) in _MYSQL_CONFLICTS
        or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_CONFLICTS
    )


def is_bad_value(error: DBAPIError) -> bool:
    """A value that this database cannot hold, such as a name with a NUL character."""
    state = get_sqlstate(error)
    if state is not None:
        return state.startswith("22")
    return isinstance(error.orig.__cause__ if error.orig else None, ValueError)


def translate_error(error: Exception, location: str) -> Exception:
    """What a caller of the store is told."""
    if isinstance(error, StandfastError):
        return error
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(f"{location}: {error or type(error).__name__}")
    if is_bad_value(error):
        return InvalidInput(f"{location} cannot hold this: {error.orig}")
    return StoreUnavailable(f"{location}: {error.orig}")
