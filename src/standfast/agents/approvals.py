"""What a person decided about tool calls, kept apart from the calls themselves.

A decision is about one call, or it is sticky: about every further call of that tool by that agent.
"""

import hashlib
from typing import Any

import msgspec

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tool_identity import ToolRef


class ApprovalDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Yes or no, with what came along.

    ``message`` is what the model is told after a no. ``arguments`` replace the model's own after a yes.
    ``asked`` is a digest of the arguments that the person saw.
    """

    approved: bool
    message: str | None = None
    arguments: str | None = None
    asked: str | None = None


class RecordedDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision as it is stored: about a call when there is a ``call_id``, else sticky."""

    tool: ToolRef
    decision: ApprovalDecision
    call_id: str | None = None
    owner: str | None = None


class Approvals:
    """The decisions of one run. A decision about a call always beats a sticky one, whichever came later."""

    def __init__(self, decisions: list[RecordedDecision] | None = None) -> None:
        self._calls: dict[tuple[ToolRef, str], ApprovalDecision] = {}
        self._sticky: dict[ToolRef, dict[str | None, ApprovalDecision]] = {}
        for entry in decisions or ():
            self.record(entry.tool, entry.call_id, entry.decision, owner=entry.owner)

    def record(
        self, tool: ToolRef, call_id: str | None, decision: ApprovalDecision, *, owner: str | None = None
    ) -> None:
        """Keep a decision; without a ``call_id`` it is sticky. A later one about the same replaces it.

        ``owner`` is the path of the agent whose tool it is: a yes to one agent's tool is no yes to another's
        tool of the same name.
        """
        if call_id is None:
            self._sticky.setdefault(tool, {})[owner] = decision
        elif not isinstance(call_id, str) or not call_id:
            raise ModelBehaviorError(f"a decision about {tool} needs the id of its call, got {call_id!r}")
        else:
            self._calls[tool, call_id] = decision

    def consume(self, tool: ToolRef, call_id: str) -> None:
        """Forget the decision about a call that was made: a model that uses its id again makes another call."""
        self._calls.pop((tool, call_id), None)

    def find(
        self, tool: ToolRef, call_id: str, *, owner: str | None = None, arguments: str | None = None
    ) -> ApprovalDecision | None:
        """The decision that holds for a call, or ``None`` when a person has yet to be asked.

        Give the call's ``arguments`` to have them compared with those the person saw: an id that comes back
        with other arguments is refused, not approved.
        """
        exact = self._calls.get((tool, call_id))
        if exact is None:
            return self._find_sticky(tool, owner)
        if exact.asked is not None and arguments is not None and exact.asked != digest_arguments(arguments):
            raise ModelBehaviorError(
                f"the call {call_id!r} of {tool} came back with other arguments than were decided on"
            )
        return exact

    def list_decisions(self) -> list[RecordedDecision]:
        """Every decision, in a stable order, for a run that is saved."""
        calls = [RecordedDecision(tool, decision, call_id) for (tool, call_id), decision in self._calls.items()]
        sticky = [
            RecordedDecision(tool, decision, owner=owner)
            for tool, owners in self._sticky.items()
            for owner, decision in owners.items()
        ]
        return calls + sticky

    def copy(self) -> "Approvals":
        """The same decisions, independent of later ones."""
        return Approvals(self.list_decisions())

    def _find_sticky(self, tool: ToolRef, owner: str | None) -> ApprovalDecision | None:
        owners = self._sticky.get(tool, {})
        if owner is not None:
            return owners.get(owner, owners.get(None))
        # Nobody said whose tool is meant: answer only if all its owners would get the same answer.
        answers = list(owners.values())
        agreed = bool(answers) and all(answer.approved == answers[0].approved for answer in answers)
        return answers[-1] if agreed else None

    def __bool__(self) -> bool:
        return bool(self._calls or self._sticky)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Approvals) and (self._calls, self._sticky) == (other._calls, other._sticky)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Approvals({self.list_decisions()!r})"


def digest_arguments(arguments: Any) -> str:
    """A short fingerprint of a call's arguments; how their JSON is spaced and ordered does not matter."""
    try:
        plain = msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.MsgspecError, TypeError, RecursionError):
        plain = str(arguments).encode(errors="surrogatepass")
    return hashlib.sha256(plain).hexdigest()[:32]
