"""Responses beside the conversation (``conversation: none``). No I/O: it is told what happened and says what to send.

They belong to whoever asked for them. Any number may be under way, beside the conversation's own response, and nothing
of them is spoken, remembered or carried out here: their messages are passed on as they are.
"""

from typing import Any

from holdfast.realtime.errors import ConnectionLost, ResponseRefused, Unacknowledged
from holdfast.realtime.latest import Latest
from holdfast.realtime.openai.gate import LABEL, OWNERS, Desk

_REMEMBERED = 64  # responses whose messages may still come


def is_aside(wanted: dict[str, Any]) -> bool:
    """Whether a response that is asked for is to be no part of the conversation."""
    return wanted.get("conversation") == "none"


class Asides:
    """Asks at once and once: a second try might be a second response. Whoever asked gets it or a refusal."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._asked: dict[str, tuple[str, float]] = {}
        self._count = 0
        self._named = False
        self.known: Latest[str, None] = Latest(_REMEMBERED)
        """The responses of this kind, by id."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called."""
        return min(late for _, late in self._asked.values()) if self._asked else None

    def request(self, owner: str, response: dict[str, Any], *, event_id: str | None = None) -> None:
        self._count += 1
        name = event_id or f"hf_aside_{self._count}"
        self._asked[name] = (owner, self._desk.clock() + self._desk.patience)
        metadata = {LABEL: name, OWNERS: owner, **(response.get("metadata") or {})}
        self._desk.say({"type": "response.create", "event_id": name, "response": {**response, "metadata": metadata}})

    def takes(self, response: dict[str, Any], *, claimed: bool) -> bool:
        """Whether a response that began, or has ended, is of this kind; what is ``claimed`` is the conversation's.

        Of those that others asked for, only the server can tell, by naming no conversation; and not if it never does.
        """
        label = (response.get("metadata") or {}).get(LABEL)
        asked = self._asked.pop(label or "", None) is not None
        name = response.get("id")
        self._named = self._named or bool(response.get("conversation_id"))
        unnamed = response.get("conversation_id", "") is None and (self._named or bool(self._asked))
        if asked or (unnamed and not claimed):
            self.known[name or ""] = None
        return name in self.known

    def failed(self, error: dict[str, Any]) -> bool:
        """Whether an error of the server is about one of these; then whoever asked is told."""
        asked = self._asked.pop(error.get("event_id") or "", None)
        if asked is not None:
            self._refuse(asked[0], error)
        return asked is not None

    def tick(self) -> None:
        """Call this when the deadline has passed."""
        now = self._desk.clock()
        for name in [name for name, (_, late) in self._asked.items() if late <= now]:
            owner, _ = self._asked.pop(name)
            self._refuse(owner, Unacknowledged("response.create", self._desk.patience))

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        asked, self._asked = self._asked, {}
        for owner, _ in asked.values():
            self._refuse(owner, error or ConnectionLost("the connection ended"))

    def _refuse(self, owner: str, error: Any) -> None:
        self._desk.refuse(ResponseRefused([owner], error, plain=False))
