"""Decisions about tool calls that need approval.

A decision applies to one call, or it is a standing decision (``always``, here ``sticky``) and applies to every later
call of that tool by that agent: in this run or, in a runtime, in the session.
"""

import hashlib
from collections.abc import Collection
from typing import Any

import msgspec

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tool_identity import ToolRef


class ApprovalDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """An approval or a rejection.

    ``message`` is the text for the model after a rejection. ``arguments`` replace the model's after an approval.
    ``asked`` is a digest of the arguments that the person saw.
    """

    approved: bool
    message: str | None = None
    arguments: str | None = None
    asked: str | None = None


class RecordedDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision as it is stored. It is sticky if it has no ``call_id``. ``owner`` is the path of the agent."""

    tool: ToolRef
    decision: ApprovalDecision
    call_id: str | None = None
    owner: str | None = None


class Approvals:
    """The decisions of one run. A decision about a call takes precedence over a sticky one, even a later one."""

    def __init__(self, decisions: list[RecordedDecision] | None = None) -> None:
        self._calls: dict[tuple[ToolRef, str], ApprovalDecision] = {}
        self._sticky: dict[ToolRef, dict[str | None, ApprovalDecision]] = {}
        for entry in decisions or ():
            self.record(entry.tool, entry.call_id, entry.decision, owner=entry.owner)

    def record(
        self, tool: ToolRef, call_id: str | None, decision: ApprovalDecision, *, owner: str | None = None
    ) -> None:
        """Record a decision, replacing an earlier one for the same call or tool. Without ``call_id`` it is sticky.

        ``owner`` is the path of the agent that has the tool: approving one agent's tool does not approve another
        agent's tool of the same name.
        """
        if call_id is None:
            self._sticky.setdefault(tool, {})[owner] = decision
        elif not isinstance(call_id, str) or not call_id:
            raise ModelBehaviorError(f"a decision about {tool} needs the id of its call, got {call_id!r}")
        else:
            self._calls[tool, call_id] = decision

    def consume(self, tool: ToolRef, call_id: str) -> None:
        """Delete the decision about a call that was made: a model that uses the id again makes a new call."""
        self._calls.pop((tool, call_id), None)

    def find(
        self, tool: ToolRef, call_id: str, *, owner: str | None = None, arguments: str | Collection[str] | None = None
    ) -> ApprovalDecision | None:
        """Return the decision that applies to a call, or ``None`` if it is still undecided.

        With ``arguments``, raise :class:`ModelBehaviorError` if they differ from those that the person saw, so that
        an approval does not cover a call that has the same id and other arguments. Several are ways to write them.
        """
        exact = self._calls.get((tool, call_id))
        if exact is None:
            return self._find_sticky(tool, owner)
        known = (arguments,) if isinstance(arguments, str) else arguments
        if exact.asked is not None and known is not None and exact.asked not in map(digest_arguments, known):
            raise ModelBehaviorError(
                f"the call {call_id!r} of {tool} has other arguments than those that were decided on"
            )
        return exact

    def find_hosted(self, name: str, call_id: str) -> ApprovalDecision | None:
        """Return the decision about a request of a hosted MCP server, whose label is not known here."""
        for (tool, decided_id), decision in self._calls.items():
            if (tool.kind, tool.name, decided_id) == ("hosted_mcp", name, call_id):
                return decision
        return None

    def list_decisions(self) -> list[RecordedDecision]:
        """Return every decision in a stable order, to be saved with the run."""
        calls = [RecordedDecision(tool, decision, call_id) for (tool, call_id), decision in self._calls.items()]
        sticky = [
            RecordedDecision(tool, decision, owner=owner)
            for tool, owners in self._sticky.items()
            for owner, decision in owners.items()
        ]
        return calls + sticky

    def copy(self) -> "Approvals":
        """Return an independent copy."""
        return Approvals(self.list_decisions())

    def _find_sticky(self, tool: ToolRef, owner: str | None) -> ApprovalDecision | None:
        owners = self._sticky.get(tool, {})
        if owner is not None:
            return owners.get(owner, owners.get(None))
        # The owner of the tool is unknown: a decision applies only if those of all owners agree.
        decisions = list(owners.values())
        agree = bool(decisions) and all(decision.approved == decisions[0].approved for decision in decisions)
        return decisions[-1] if agree else None

    def __bool__(self) -> bool:
        return bool(self._calls or self._sticky)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Approvals) and (self._calls, self._sticky) == (other._calls, other._sticky)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Approvals({self.list_decisions()!r})"


def digest_arguments(arguments: Any) -> str:
    """Return a short digest of a call's arguments, independent of whitespace and key order in their JSON."""
    try:
        plain = msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.MsgspecError, TypeError, RecursionError):
        plain = str(arguments).encode(errors="surrogatepass")
    return hashlib.sha256(plain).hexdigest()[:32]
