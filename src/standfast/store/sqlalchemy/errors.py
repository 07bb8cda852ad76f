"""Classify the errors of database drivers, which all report the same conditions differently."""

from sqlalchemy.exc import DBAPIError

from standfast.base.errors import InvalidInput, StandfastError, StoreUnavailable

# Serialisation failure, deadlock, and a row that another transaction inserted first.
_POSTGRESQL_CONFLICTS = frozenset(["40001", "40P01", "23505"])
_MYSQL_CONFLICTS = frozenset([1062, 1205, 1213])
_SQLITE_CONFLICTS = frozenset([5, 6])
UNTRANSLATABLE_CHARACTER = "22P05"
"""PostgreSQL's JSON functions do not support the NUL character."""


class CommitOutcomeUnknown(Exception):
    """The connection was lost when the database may already have committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class StatementNotSent(Exception):
    """The connection was lost before the statement was sent."""


def get_sqlstate(error: DBAPIError) -> str | None:
    code = getattr(error.orig, "sqlstate", None)
    return code if isinstance(code, str) else None


def get_detail(error: DBAPIError) -> str | None:
    """Return the DETAIL of a PostgreSQL error from asyncpg, SQLAlchemy's wrapper of it, or psycopg."""
    original = error.orig
    for source in (original, getattr(original, "__cause__", None)):
        detail = getattr(source, "detail", None)
        if isinstance(detail, str):
            return detail
    detail = getattr(getattr(original, "diag", None), "message_detail", None)
    return detail if isinstance(detail, str) else None


def get_driver_code(error: DBAPIError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None


def is_conflict(error: DBAPIError) -> bool:
    """Return whether the transaction failed because of a concurrent one and can be retried."""
    return (
        get_sqlstate(error) in _POSTGRESQL_CONFLICTS
        or get_driver_code(error) in _MYSQL_CONFLICTS
        or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_CONFLICTS
    )


def is_bad_value(error: DBAPIError) -> bool:
    """Return whether the database cannot store a value, such as a name with a NUL character."""
    state = get_sqlstate(error)
    if state is not None:
        return state.startswith("22")
    return isinstance(error.orig.__cause__ if error.orig else None, ValueError)


def translate_error(error: Exception, location: str) -> Exception:
    """Return the error that callers of the store see."""
    if isinstance(error, StandfastError):
        return error
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(f"{location}: {error or type(error).__name__}")
    if is_bad_value(error):
        return InvalidInput(f"{location} cannot store this value: {error.orig}")
    return StoreUnavailable(f"{location}: {error.orig}")
