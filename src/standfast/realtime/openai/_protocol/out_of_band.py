"""Out-of-band responses (``conversation: none``), sans I/O.

Any number of them may be active beside the response of the conversation. They are not played, their items do not enter
the history and their tool calls are not made: their messages are passed to the program as they are.
"""

from typing import Any

from standfast.base.collections import BoundedDict
from standfast.realtime.errors import AcknowledgementTimeout, ConnectionLost, ResponseRefused
from standfast.realtime.openai._protocol.response_queue import REQUEST_LABEL_KEY, REQUESTERS_KEY, RequestContext

_MAX_REMEMBERED = 64  # responses whose messages may still arrive


def is_out_of_band(response: dict[str, Any]) -> bool:
    """Whether a requested response is not part of the conversation."""
    return response.get("conversation") == "none"


class OutOfBandResponses:
    """Sends each request at once, and once: a second attempt might create a second response.

    A request ends in a response or in an error that is reported to its requester.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._pending: dict[str, tuple[str, float]] = {}
        self._count = 0
        self._server_names_conversations = False
        self.response_ids: BoundedDict[str, None] = BoundedDict(_MAX_REMEMBERED)
        """The ids of the latest out-of-band responses."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` must be called."""
        return min(deadline for _, deadline in self._pending.values()) if self._pending else None

    def request(self, requester: str, response: dict[str, Any], *, event_id: str | None = None) -> None:
        self._count += 1
        label = event_id or f"standfast_out_of_band_{self._count}"
        self._pending[label] = (requester, self._context.clock() + self._context.timeout)
        metadata = {REQUEST_LABEL_KEY: label, REQUESTERS_KEY: requester, **(response.get("metadata") or {})}
        self._context.send(
            {"type": "response.create", "event_id": label, "response": {**response, "metadata": metadata}}
        )

    def claim(self, response: dict[str, Any], *, in_conversation: bool) -> bool:
        """Whether a response that started or ended is out of band; one known as ``in_conversation`` never is.

        Responses that other clients requested are recognised by their missing conversation id, provided that the
        server sends conversation ids at all.
        """
        label = (response.get("metadata") or {}).get(REQUEST_LABEL_KEY)
        requested = self._pending.pop(label or "", None) is not None
        response_id = response.get("id")
        self._server_names_conversations = self._server_names_conversations or bool(response.get("conversation_id"))
        without_conversation = response.get("conversation_id", "") is None and (
            self._server_names_conversations or bool(self._pending)
        )
        if requested or (without_conversation and not in_conversation):
            self.response_ids[response_id or ""] = None
        return response_id in self.response_ids

    def handle_error(self, error: dict[str, Any]) -> bool:
        """Report an error of the server to who made the request. Returns False if it is not about one of these."""
        pending = self._pending.pop(error.get("event_id") or "", None)
        if pending is not None:
            self._fail(pending[0], error)
        return pending is not None

    def tick(self) -> None:
        """Report requests whose deadline has passed as failed."""
        now = self._context.clock()
        for label in [label for label, (_, deadline) in self._pending.items() if deadline <= now]:
            requester, _ = self._pending.pop(label)
            self._fail(requester, AcknowledgementTimeout("response.create", self._context.timeout))

    def handle_connection_lost(self, error: Exception | None = None) -> None:
        """Report all pending requests as failed."""
        pending, self._pending = self._pending, {}
        for requester, _ in pending.values():
            self._fail(requester, error or ConnectionLost("the connection ended"))

    def _fail(self, requester: str, error: Any) -> None:
        self._context.report_failure(ResponseRefused([requester], error, retryable=False))
