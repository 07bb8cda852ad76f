"""Responses beside the conversation (``conversation: none``). No I/O: it is told what happened and says what to send.

They belong to whoever asked for them. Any number may be under way, beside the conversation's own response, and nothing
of them is spoken, remembered or carried out here: their messages are passed on as they are.
"""

from typing import Any

from standfast.base.collections import BoundedDict
from standfast.realtime.errors import AcknowledgementTimeout, ConnectionLost, ResponseRefused
from standfast.realtime.openai._protocol.response_queue import OWNERS_KEY, REQUEST_LABEL_KEY, RequestContext

_MAX_REMEMBERED = 64  # responses whose messages may still come


def is_out_of_band(response: dict[str, Any]) -> bool:
    """Whether a response that is asked for is to be no part of the conversation."""
    return response.get("conversation") == "none"


class OutOfBandResponses:
    """Asks at once and once: a second try might be a second response. Whoever asked gets it or a refusal."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._pending: dict[str, tuple[str, float]] = {}
        self._count = 0
        self._server_names_conversations = False
        self.response_ids: BoundedDict[str, None] = BoundedDict(_MAX_REMEMBERED)
        """The responses of this kind, by id."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called."""
        return min(late for _, late in self._pending.values()) if self._pending else None

    def request(self, owner: str, response: dict[str, Any], *, event_id: str | None = None) -> None:
        self._count += 1
        name = event_id or f"hf_aside_{self._count}"
        self._pending[name] = (owner, self._context.clock() + self._context.timeout)
        metadata = {REQUEST_LABEL_KEY: name, OWNERS_KEY: owner, **(response.get("metadata") or {})}
        self._context.send(
            {"type": "response.create", "event_id": name, "response": {**response, "metadata": metadata}}
        )

    def claim(self, response: dict[str, Any], *, in_conversation: bool) -> bool:
        """Whether a response that began, or has ended, is of this kind; what is ``claimed`` is the conversation's.

        Of those that others asked for, only the server can tell, by naming no conversation; and not if it never does.
        """
        label = (response.get("metadata") or {}).get(REQUEST_LABEL_KEY)
        asked = self._pending.pop(label or "", None) is not None
        name = response.get("id")
        self._server_names_conversations = self._server_names_conversations or bool(response.get("conversation_id"))
        unnamed = response.get("conversation_id", "") is None and (
            self._server_names_conversations or bool(self._pending)
        )
        if asked or (unnamed and not in_conversation):
            self.response_ids[name or ""] = None
        return name in self.response_ids

    def handle_error(self, error: dict[str, Any]) -> bool:
        """Whether an error of the server is about one of these; then whoever asked is told."""
        asked = self._pending.pop(error.get("event_id") or "", None)
        if asked is not None:
            self._reject(asked[0], error)
        return asked is not None

    def tick(self) -> None:
        """Call this when the deadline has passed."""
        now = self._context.clock()
        for name in [name for name, (_, late) in self._pending.items() if late <= now]:
            owner, _ = self._pending.pop(name)
            self._reject(owner, AcknowledgementTimeout("response.create", self._context.timeout))

    def handle_connection_lost(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        asked, self._pending = self._pending, {}
        for owner, _ in asked.values():
            self._reject(owner, error or ConnectionLost("the connection ended"))

    def _reject(self, owner: str, error: Any) -> None:
        self._context.report_refusal(ResponseRefused([owner], error, retryable=False))
