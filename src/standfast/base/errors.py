"""What can go wrong, as types.

Every error is a condition with a stable ``code`` and its facts as fields; the message is for people.

    StandfastError
    ├── InvalidInput            the caller's value cannot be used; nothing was changed
    │   └── InvalidItem         ... a conversation item, with the path of the offending part
    ├── Unsupported             this backend or platform cannot do that
    ├── MissingExtra            an optional dependency is not installed
    ├── Closed                  the object was closed
    ├── Moved                   somebody else wrote first; nothing was written; read and retry
    │   ├── HistoryMoved
    │   ├── RunMoved
    │   ├── ApprovalMoved
    │   └── FenceLost           the lease behind a fencing token passed on
    ├── KeyReused               an idempotency key came back with other content
    ├── NotFound                no such session, run, approval or generation
    ├── AlreadyExists
    ├── StoreUnavailable        the database did not answer or refused
    ├── SchemaTooNew            the database was written by a newer standfast
    ├── SchemaTooOld            the tables are missing or old, and standfast was told not to create them
    ├── SessionDamaged          the session's own row cannot be read; its items are untouched
    ├── WrongKey                the encryption key does not open this history
    └── HistoryTampered         the sealed history was changed by someone without the key
"""

from typing import Any, ClassVar


class StandfastError(Exception):
    """The root of all errors that standfast raises on purpose."""

    code: ClassVar[str] = "standfast"


class InvalidInput(StandfastError, ValueError):
    """A value from the caller cannot be used. Nothing was changed."""

    code = "invalid-input"


class InvalidItem(InvalidInput):
    """A conversation item is not a JSON object. Nothing was written."""

    code = "invalid-item"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class Unsupported(StandfastError):
    """This backend or platform cannot do what was asked."""

    code = "unsupported"


class MissingExtra(StandfastError, ImportError):
    """An optional dependency is needed; the message says what to install."""

    code = "missing-extra"

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(f"{feature} needs the extra {extra!r}: pip install 'standfast[{extra}]'")
        self.extra = extra


class Closed(StandfastError, RuntimeError):
    """The object was closed; it cannot be used any more."""

    code = "closed"


class Conflict(StandfastError):
    """Somebody else wrote first. Nothing was written; read and retry."""

    code = "moved"

    def __init__(self, what: str, name: str, *, expected: Any, found: Any) -> None:
        super().__init__(f"{what} {name!r} is at {found}, not at {expected}")
        self.name, self.expected, self.found = name, expected, found


class HistoryMoved(Conflict):
    """Someone else changed the history first. Nothing was written; read and retry."""

    code = "history-moved"

    def __init__(self, session_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("session", session_id, expected=expected, found=found)
        self.session_id = session_id


class RunMoved(Conflict):
    """The run record has another revision. Nothing was written."""

    code = "run-moved"

    def __init__(self, run_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("run", run_id, expected=expected, found=found)


class ApprovalMoved(Conflict):
    """The approval has another revision: somebody decided it first. Nothing was written."""

    code = "approval-moved"

    def __init__(self, approval_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("approval", approval_id, expected=expected, found=found)


class FenceLost(Conflict):
    """The lease behind this fencing token passed on or ended. Nothing was written; stop working."""

    code = "fence-lost"

    def __init__(self, name: str, *, expected: Any, found: Any) -> None:
        super().__init__("lease", name, expected=expected, found=found)


class KeyReused(StandfastError):
    """An idempotency key came back with other content. Nothing was written."""

    code = "key-reused"

    def __init__(self, session_id: str, key: str) -> None:
        super().__init__(f"key {key!r} was used in session {session_id!r} for a different batch")
        self.session_id, self.key = session_id, key


class NotFound(StandfastError, LookupError):
    """There is no such session, run, approval or generation."""

    code = "not-found"

    def __init__(self, what: str, name: object, *, hint: str = "") -> None:
        super().__init__(f"there is no {what} {name!r}{hint}")
        self.what, self.name = what, name


class AlreadyExists(StandfastError):
    """The name is taken. Nothing was written."""

    code = "already-exists"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} {name!r} exists already")
        self.what, self.name = what, name


class StoreUnavailable(StandfastError):
    """The database did not answer or refused. Whether a write arrived is unknown unless it had a key."""

    code = "store-unavailable"


class SchemaTooNew(StandfastError):
    """The database was written by a newer standfast; it is left untouched."""

    code = "schema-too-new"

    def __init__(self, location: str, *, found: int, supported: int) -> None:
        super().__init__(
            f"{location} has schema {found}, this standfast knows up to {supported}: upgrade standfast to open it"
        )
        self.found, self.supported = found, supported


class SchemaTooOld(StandfastError):
    """The tables are missing or of an older standfast, and this one was told not to touch them."""

    code = "schema-too-old"

    def __init__(self, location: str, *, found: int, supported: int) -> None:
        state = f"has schema {found}, this standfast needs {supported}" if found else "has no tables of standfast"
        super().__init__(f"{location} {state}: open it once with create_tables=True")
        self.found, self.supported = found, supported


class SessionDamaged(StandfastError):
    """What is stored about a session, not in it, makes no sense. Nothing was changed, and its items are still there."""

    code = "session-damaged"

    def __init__(self, session_id: object, problem: str) -> None:
        super().__init__(f"the row of session {session_id!r} is damaged: {problem}; repair it, or delete the session")
        self.session_id, self.problem = session_id, problem


class WrongKey(StandfastError):
    """None of the given encryption keys opens this history. Nothing was changed."""

    code = "wrong-key"


class HistoryTampered(StandfastError):
    """A sealed history was reordered, cut or extended by someone without its key."""

    code = "history-tampered"
