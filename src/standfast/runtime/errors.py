"""What can go wrong with durable runs, as types.

StandfastError
├── SessionBusy             another run has the session, and this one was not to wait
├── RunEnded                the run has ended, or cannot be changed like that any more
├── RunKeyReused            the key of a start came back with another request
├── ApprovalSettled         the question was answered already, expired, or its run has ended
└── InvalidDecision         there is no such answer to this question
"""

from standfast.base.errors import InvalidInput, KeyReused, StandfastError


class SessionBusy(StandfastError):
    """Another run has the session, and ``on_busy`` said not to wait. Nothing was started."""

    code = "session-busy"

    def __init__(self, session_id: str, *, run_id: str | None) -> None:
        by = f"the run {run_id!r}" if run_id else "another run"
        super().__init__(
            f"session {session_id!r} is held by {by}: wait for it, or start with on_busy='enqueue' or 'interrupt'"
        )
        self.session_id, self.run_id = session_id, run_id


class RunEnded(StandfastError):
    """The run is not in a status in which this can be done. Nothing was changed."""

    code = "run-ended"

    def __init__(self, run_id: str, *, status: str, wanted: str) -> None:
        super().__init__(f"the run {run_id!r} is {status}: it cannot be {wanted}")
        self.run_id, self.status = run_id, status


class RunKeyReused(KeyReused):
    """The key was used to start another run: with another agent, input, session or context. Nothing was started."""

    code = "run-key-reused"

    def __init__(self, key: str, *, run_id: str) -> None:
        StandfastError.__init__(
            self, f"key {key!r} started the run {run_id!r} with another request; a new request needs a new key"
        )
        self.key, self.run_id = key, run_id


class ApprovalSettled(StandfastError):
    """Nothing can be decided any more. ``status`` says what happened, ``by`` and ``at`` who did it and when."""

    code = "approval-settled"

    def __init__(
        self, approval_id: str, *, status: str, by: str | None = None, at: float | None = None, reason: str = ""
    ) -> None:
        who = f" by {by!r}" if by else ""
        super().__init__(f"the approval {approval_id!r} was {status}{who} already{reason and ': '}{reason}")
        self.approval_id, self.status, self.by, self.at = approval_id, status, by, at


class InvalidDecision(InvalidInput):
    """There is no such answer to this question, or not with these arguments. Nothing was decided."""

    code = "invalid-decision"
