"""The errors of durable runs.

StandfastError
├── SessionEncrypted        the session is encrypted, and the runtime has no key
├── RunTampered             an encrypted run was changed without the key
├── RunEnded                the operation is not possible in the status of the run
├── RunActive               the run has not ended
├── RunKeyReused            a key was used before, for another request
└── ApprovalSettled         the approval was decided, has expired, or its run has ended

Decisions that are not possible raise ``InvalidDecision``; approving a call that may have happened, ``UncertainCall``.
"""

from standfast.base.errors import KeyReused, StandfastError
from standfast.base.errors import SessionBusy as SessionBusy


class SessionEncrypted(StandfastError):
    """The session is encrypted, and the runtime was opened without a key. Nothing was written."""

    code = "session-encrypted"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is encrypted, and this runtime would store its items unencrypted: open the runtime"
            " with encryption_key=, the key of the session"
        )
        self.session_id = session_id


class RunTampered(StandfastError):
    """The records of an encrypted run were altered, exchanged or removed without its key. Nothing was changed."""

    code = "run-tampered"

    def __init__(self, run_id: str, what: str) -> None:
        super().__init__(
            f"run {run_id!r} was changed without its encryption key: {what}. Restore a backup, or delete the run"
        )
        self.run_id = run_id


class RunEnded(StandfastError):
    """The operation is not possible in the status of the run. Nothing was changed."""

    code = "run-ended"

    def __init__(self, run_id: str, *, status: str, action: str) -> None:
        super().__init__(f"the run {run_id!r} is {status}: it cannot be {action}")
        self.run_id, self.status = run_id, status


class RunActive(StandfastError):
    """The run has not ended, so it cannot be deleted. Nothing was changed."""

    code = "run-active"

    def __init__(self, run_id: str, *, status: str) -> None:
        super().__init__(f"the run {run_id!r} is {status}: cancel it, or wait until it has ended, before deleting it")
        self.run_id, self.status = run_id, status


class RunKeyReused(KeyReused):
    """The key started another run, with another agent, input, session or context. Nothing was started."""

    code = "run-key-reused"

    def __init__(self, key: str, *, run_id: str) -> None:
        StandfastError.__init__(
            self, f"key {key!r} started the run {run_id!r} with another request; a new request needs a new key"
        )
        self.key, self.run_id = key, run_id


class ApprovalSettled(StandfastError):
    """The approval can no longer be decided. ``status``, ``by`` and ``at`` say what was decided, by whom and when."""

    code = "approval-settled"

    def __init__(
        self, approval_id: str, *, status: str, by: str | None = None, at: float | None = None, reason: str = ""
    ) -> None:
        decider = f" (by {by!r})" if by else ""
        super().__init__(f"the approval {approval_id!r} is already {status}{decider}{reason and ': '}{reason}")
        self.approval_id, self.status, self.by, self.at = approval_id, status, by, at
