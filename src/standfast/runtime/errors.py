"""The errors of durable runs.

StandfastError
├── SessionBusy             another run holds the session, and ``on_busy`` is ``reject``
├── RunEnded                the operation is not possible in the status of the run
├── RunKeyReused            a key was used before, for another request
├── ApprovalSettled         the approval was decided, has expired, or its run has ended
└── InvalidDecision         the decision is not possible for this approval
"""

from standfast.base.errors import InvalidInput, KeyReused, StandfastError


class SessionBusy(StandfastError):
    """Another run holds the session, and ``on_busy`` is ``reject``. Nothing was started."""

    code = "session-busy"

    def __init__(self, session_id: str, *, run_id: str | None) -> None:
        holder = f"the run {run_id!r}" if run_id else "another run"
        super().__init__(
            f"session {session_id!r} is held by {holder}: wait for it, or start with on_busy='enqueue' or 'interrupt'"
        )
        self.session_id, self.run_id = session_id, run_id


class RunEnded(StandfastError):
    """The operation is not possible in the status of the run. Nothing was changed."""

    code = "run-ended"

    def __init__(self, run_id: str, *, status: str, action: str) -> None:
        super().__init__(f"the run {run_id!r} is {status}: it cannot be {action}")
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
    """The approval cannot be decided any more. ``status``, ``by`` and ``at`` say what was decided, by whom and when."""

    code = "approval-settled"

    def __init__(
        self, approval_id: str, *, status: str, by: str | None = None, at: float | None = None, reason: str = ""
    ) -> None:
        decider = f" by {by!r}" if by else ""
        super().__init__(f"the approval {approval_id!r} was {status}{decider} already{reason and ': '}{reason}")
        self.approval_id, self.status, self.by, self.at = approval_id, status, by, at


class InvalidDecision(InvalidInput):
    """The decision, or its arguments, are not possible for this approval. Nothing was decided."""

    code = "invalid-decision"
