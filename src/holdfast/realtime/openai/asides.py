"""Responses beside the conversation (``conversation: none``). No I/O: it is told what happened and says what to send.

They belong to whoever asked for them. Any number may be under way, beside the conversation's own response, and nothing
of them is spoken, remembered or carried out here: their messages are passed on as they are.
"""

from collections.abc import Callable
from typing import Any

from holdfast.realtime.errors import ConnectionLost, ResponseRefused, Unacknowledged
from holdfast.realtime.openai.gate import LABEL, OWNERS

_REMEMBERED = 64  # responses whose messages may still come


def is_aside(wanted: dict[str, Any]) -> bool:
    """Whether a response that is asked for is to be no part of the conversation."""
    return wanted.get("conversation") == "none"


class Asides:
    """Asks at once and once: a second try might be a second response. Whoever asked gets it or a refusal."""

    def __init__(
        self,
        say: Callable[[dict[str, Any]], None],
        refuse: Callable[[ResponseRefused], None],
        *,
        clock: Callable[[], float],
        acknowledge_within: float = 10.0,
    ) -> None:
        self._say, self._refuse, self._clock = say, refuse, clock
        self._patience = acknowledge_within
        self._asked: dict[str, tuple[str, float]] = {}
        self._count = 0
        self.known: dict[str, None] = {}
        """The responses of this kind, by id."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called."""
        return min(late for _, late in self._asked.values()) if self._asked else None

    def request(self, owner: str, response: dict[str, Any], *, event_id: str | None = None) -> None:
        self._count += 1
        name = event_id or f"hf_aside_{self._count}"
        self._asked[name] = (owner, self._clock() + self._patience)
        metadata = {LABEL: name, OWNERS: owner, **(response.get("metadata") or {})}
        self._say({"type": "response.create", "event_id": name, "response": {**response, "metadata": metadata}})

    def takes(self, response: dict[str, Any]) -> bool:
        """Whether a response that began, or has ended, is of this kind."""
        label = (response.get("metadata") or {}).get(LABEL)
        asked = self._asked.pop(label or "", None) is not None
        name = response.get("id")
        if asked or ("conversation_id" in response and response["conversation_id"] is None):
            self.known[name or ""] = None
            while len(self.known) > _REMEMBERED:
                del self.known[next(iter(self.known))]
        return name in self.known

    def failed(self, error: dict[str, Any]) -> bool:
        """Whether an error of the server is about one of these; then whoever asked is told."""
        asked = self._asked.pop(error.get("event_id") or "", None)
        if asked is not None:
            self._refuse(ResponseRefused([asked[0]], error))
        return asked is not None

    def tick(self) -> None:
        """Call this when the deadline has passed."""
        now = self._clock()
        for name in [name for name, (_, late) in self._asked.items() if late <= now]:
            owner, _ = self._asked.pop(name)
            self._refuse(ResponseRefused([owner], Unacknowledged("response.create", self._patience)))

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        asked, self._asked = self._asked, {}
        for owner, _ in asked.values():
            self._refuse(ResponseRefused([owner], error or ConnectionLost("the connection ended")))
