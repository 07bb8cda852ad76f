"""The exceptions that every package may raise.

Each exception has a stable ``code`` and its facts as attributes; the message is meant for people.

    StandfastError
    ├── InvalidInput            an argument is invalid; nothing was changed
    │   ├── InvalidItem         ... a conversation item, with the path of the invalid part
    │   └── InvalidDecision     ... a decision that is not possible for the call
    ├── Unsupported             the backend or platform does not support the operation
    ├── MissingExtra            an optional dependency is not installed
    ├── Closed                  the object was closed
    ├── Conflict                another writer was first; nothing was written; read and retry
    │   ├── HistoryMoved
    │   ├── RunMoved
    │   ├── JournalMoved
    │   ├── ApprovalMoved
    │   ├── DocumentMoved
    │   └── FenceLost           the lease of a fencing token was taken over or ended
    ├── KeyReused               an idempotency key was reused with different content
    ├── OutsideScope            the store is scoped to one owner, and this belongs to another
    ├── NotFound                no such session, run, approval or generation
    ├── AlreadyExists           the name is taken
    ├── SessionBusy             another run holds the session
    ├── RunShared               a fork shares the journal of the run, which cannot be deleted before it
    ├── StoreUnavailable        the database cannot be reached or returned an error
    ├── StoreRefused            the database does not accept the data; nothing was written
    ├── SchemaTooNew            the database was written by a newer version
    ├── SchemaTooOld            the tables are missing or old, and creating them is disabled
    ├── NotAdopted              the data belongs to openai-agents, and the operation needs the format of standfast
    ├── SessionDamaged          the record of a session is invalid; its items are untouched
    ├── WrongKey                the history needs an encryption key that was not given
    └── HistoryTampered         an encrypted history was changed without the key
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class StandfastError(Exception):
    """The base class of all standfast exceptions."""

    code: ClassVar[str] = "standfast"


class InvalidInput(StandfastError, ValueError):
    """An argument is invalid. Nothing was changed."""

    code = "invalid-input"


class InvalidItem(InvalidInput, TypeError):
    """A conversation item is not a valid JSON object; ``path`` names the invalid part. Nothing was written."""

    code = "invalid-item"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class InvalidDecision(InvalidInput):
    """The decision, or its arguments, are not possible for this call. Nothing was decided."""

    code = "invalid-decision"


class Unsupported(StandfastError, NotImplementedError):
    """The backend or platform does not support the operation."""

    code = "unsupported"


class MissingExtra(StandfastError, ImportError):
    """An optional dependency is not installed. The message contains the command that installs it."""

    code = "missing-extra"

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(f"{feature} needs the extra {extra!r}: pip install 'standfast[{extra}]'")
        self.extra = extra


class Closed(StandfastError, RuntimeError):
    """The object was closed and can no longer be used."""

    code = "closed"


class Conflict(StandfastError):
    """Another writer changed the record first. Nothing was written; read and retry."""

    code = "moved"

    def __init__(self, what: str, name: str, *, expected: Any, found: Any) -> None:
        super().__init__(f"{what} {name!r} is at {found}, expected {expected}; read it again and retry")
        self.name, self.expected, self.found = name, expected, found


class HistoryMoved(Conflict):
    """Another writer changed the history first. Nothing was written; read and retry."""

    code = "history-moved"

    def __init__(self, session_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("session", session_id, expected=expected, found=found)
        self.session_id = session_id


class RunMoved(Conflict):
    """The run record has a different revision. Nothing was written; read and retry."""

    code = "run-moved"

    def __init__(self, run_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("run", run_id, expected=expected, found=found)


class JournalMoved(Conflict):
    """The journal of the run has a different length. Nothing was written; read and retry."""

    code = "journal-moved"

    def __init__(self, run_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("journal of run", run_id, expected=expected, found=found)


class ApprovalMoved(Conflict):
    """The approval has a different revision: it was decided in the meantime. Nothing was written."""

    code = "approval-moved"

    def __init__(self, approval_id: str, *, expected: Any, found: Any) -> None:
        super().__init__("approval", approval_id, expected=expected, found=found)


class WorkspaceMoved(Conflict):
    """The workspace has another version, or is another one. Nothing was written; read and retry."""

    code = "workspace-moved"

    def __init__(self, key: str, *, expected: Any, found: Any) -> None:
        super().__init__("workspace", key, expected=expected, found=found)


class DocumentMoved(Conflict):
    """The document has a different revision. Nothing was written; read and retry."""

    code = "document-moved"

    def __init__(self, kind: str, key: str, *, expected: Any, found: Any) -> None:
        super().__init__(f"document of {kind}", key, expected=expected, found=found)
        self.kind = kind


class BlobsMissing(StandfastError):
    """A checkpoint refers to blobs that are not stored. Nothing was written; store them and retry."""

    code = "blobs-missing"

    def __init__(self, digests: Sequence[str]) -> None:
        super().__init__(
            f"{len(digests)} blobs of the checkpoint are not stored, such as {digests[0]}: store them first"
        )
        self.digests = tuple(digests)


class FenceLost(Conflict):
    """The lease of this fencing token was taken over or ended. Nothing was written; stop working."""

    code = "fence-lost"

    def __init__(self, name: str, *, expected: Any, found: Any) -> None:
        StandfastError.__init__(
            self, f"the lease {name!r} is no longer held with token {expected} (current token: {found}); stop working"
        )
        self.name, self.expected, self.found = name, expected, found


class KeyReused(StandfastError):
    """An idempotency key was reused with different content. Nothing was written."""

    code = "key-reused"

    def __init__(self, session_id: str, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was already used in session {session_id!r} for a different batch;"
            " use a new key"
        )
        self.session_id, self.key = session_id, key


class OutsideScope(StandfastError):
    """The operation is one of ``owner``, and concerns what belongs to another. Nothing was written."""

    code = "outside-scope"

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"this is not open to {owner!r}: it belongs to another owner, or only the whole store can do it"
        )
        self.owner = owner


class NotFound(StandfastError, LookupError):
    """The session, run, approval or generation does not exist."""

    code = "not-found"

    def __init__(self, what: str, name: object, *, hint: str = "") -> None:
        super().__init__(f"there is no {what} {name!r}{hint}")
        self.what, self.name = what, name


class AlreadyExists(StandfastError):
    """The name is taken. Nothing was written."""

    code = "already-exists"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} {name!r} already exists")
        self.what, self.name = what, name


class SessionBusy(StandfastError):
    """A run that has not ended holds the session, or waits for it. Nothing was changed."""

    code = "session-busy"

    def __init__(self, session_id: str, *, run_id: str | None, advice: str) -> None:
        holder = f"the run {run_id!r}" if run_id else "another run"
        super().__init__(f"session {session_id!r} is held by {holder}: {advice}")
        self.session_id, self.run_id = session_id, run_id


class RunShared(StandfastError):
    """A fork shares the journal of the run. Nothing was deleted; delete the fork first."""

    code = "run-shared"

    def __init__(self, run_id: str, *, fork_id: str) -> None:
        super().__init__(f"the run {run_id!r} is the beginning of its fork {fork_id!r}: delete that one first")
        self.run_id, self.fork_id = run_id, fork_id


class StoreUnavailable(StandfastError):
    """The database cannot be reached or returned an error.

    It is unknown whether a write took effect; repeat it with the same idempotency key to be sure.
    """

    code = "store-unavailable"


class StoreRefused(StandfastError):
    """The database does not accept the data, because of a constraint, a trigger or a limit. Nothing was written.

    Sending the same again has no other result, until the database is changed.
    """

    code = "store-refused"


class SchemaTooNew(StandfastError):
    """The database was written by a newer version of standfast. It was not changed."""

    code = "schema-too-new"

    def __init__(self, location: str, *, found: int, supported: int) -> None:
        super().__init__(
            f"{location} has schema {found}, this version supports up to {supported}: upgrade standfast to open it"
        )
        self.found, self.supported = found, supported


class SchemaTooOld(StandfastError):
    """The tables are missing or were written by an older version, and ``create_tables=False`` was given."""

    code = "schema-too-old"

    def __init__(self, location: str, *, found: int, supported: int) -> None:
        state = f"has schema {found}, this version needs {supported}" if found else "has no standfast tables"
        super().__init__(f"{location} {state}: open it once with create_tables=True")
        self.found, self.supported = found, supported


class NotAdopted(Unsupported):
    """The data belongs to openai-agents, and the operation needs the format of standfast. Nothing was changed."""

    code = "not-adopted"

    def __init__(self, location: str, *, operation: str) -> None:
        super().__init__(
            f"{location}: this data belongs to openai-agents, which has no place for {operation}. Nothing was"
            " changed. Take it over with `standfast adopt URL`, or copy the conversations into a store with"
            " `standfast import openai-agents URL`"
        )
        self.operation = operation


class SessionDamaged(StandfastError):
    """The stored record of a session is invalid. Nothing was changed, and the session's items are intact."""

    code = "session-damaged"

    def __init__(self, session_id: object, problem: str) -> None:
        super().__init__(
            f"the record of session {session_id!r} is damaged: {problem}; repair it, or delete the session"
        )
        self.session_id, self.problem = session_id, problem


class WrongKey(StandfastError):
    """The history needs an encryption key that was not given. Nothing was changed."""

    code = "wrong-key"


class HistoryTampered(StandfastError):
    """Items of an encrypted history were reordered, removed or added without its key."""

    code = "history-tampered"
