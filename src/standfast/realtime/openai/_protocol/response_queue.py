"""The queue of requests for responses of the conversation, sans I/O.

The server rejects a second response while one is active, and it starts responses itself on voice activity. So a request
waits until no response is active, returns to the front of the queue after a collision, and is sent once more if the
server does not react, which is noticed sooner if another request waits. If the end of a response is overdue, the next
request is sent all the same; if the response is still active, that is one more collision. Each request ends in one
response or in an error: each attempt has its own label, and a response to an abandoned attempt is cancelled.

A request that follows an item which is not a question, such as a tool output, must not make the model talk over the
user: it waits until the user has stopped speaking, and then for a response that the server may start itself. If the
server had the item by then, that response covers it and the request is dropped.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from standfast.realtime.errors import AcknowledgementTimeout, ConnectionLost, ResponseRefused

COLLISION_CODE = "conversation_already_has_active_response"
NOT_ACTIVE_CODE = "response_cancel_not_active"
REQUEST_LABEL_KEY = "standfast_request"
REQUESTERS_KEY = "standfast_requesters"

_MAX_ATTEMPTS = 2
_MAX_COLLISIONS = 20
_COLLISION_BACKOFF = 0.25  # after a collision with a response that was never announced
_CONTENDED_TIMEOUT = 2.5  # seconds within which the server must react while another request waits
_ACTIVE_TIMEOUT = 5.0  # how long a request waits for the end of the active response; longer after each collision
_ACTIVE_TIMEOUT_FACTOR = 3  # times the timeout: the longest of these waits
_SERVER_RESPONSE_WINDOW = 2.0  # seconds within which a server starts its own response after the user has spoken
_MAX_TURN_SECONDS = 60.0  # a longer turn of the user is taken as ended without notice
_MAX_METADATA_LENGTH = 512


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The callbacks, clock and timeout that the response queue and out-of-band responses share."""

    send: Callable[[dict[str, Any]], None]
    """Sends a message."""
    report_failure: Callable[[ResponseRefused], None]
    """Reports to the requesters of a request that it failed."""
    clock: Callable[[], float]
    timeout: float
    """The seconds within which the server must react to a request."""


@dataclass(eq=False, slots=True)
class ResponseRequest:
    """One request for a response. ``requesters`` are the callers by name; a merged request has several."""

    id: str
    requesters: list[str]
    response: dict[str, Any]
    mergeable: bool
    sent_count: int = 0
    first_sent_at: float = 0.0
    sent_at: float = 0.0
    attempts: list[str] = field(default_factory=list)
    """The labels of attempts for which the server may have started, or may yet start, a response."""
    collisions: int = 0
    cancelled: bool = False
    """Cancelled after it was sent: it is not sent again."""
    answered: bool = False
    """An earlier attempt was answered after the request had been sent again."""
    waits_for_silence: bool = False
    """Not sent while the user speaks."""
    unconfirmed_items: set[str] = field(default_factory=set)
    """The items it follows that the server has not confirmed yet."""


class ResponseQueue:
    """Keeps at most one response of the conversation active or requested at any time."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._queue: deque[ResponseRequest] = deque()
        self._sent: ResponseRequest | None = None
        """The request that was sent and to which the server has not reacted yet."""
        self._current: ResponseRequest | None = None
        """The request that the active response answers."""
        self._confirmed = False
        """Whether the server has returned the label, so that ``_current`` is known and not guessed."""
        self._abandoned_attempts: set[str] = set()
        """Labels of attempts without a waiting requester. A response to one of them is cancelled when it starts."""
        self._cancelled_id: str | None = None
        """The response for which a cancellation was sent already."""
        self._count = 0
        self._wake_at: float | None = None
        """When the sent request is late, the pause after a collision is over, or the active response is overdue."""
        self._user_speaking = False
        self._user_turn_until: float | None = None
        """The end of the user's turn, in which they speak or wait for the server's own response."""
        self.active_response_id: str | None = None
        """The response that the server works on, according to its messages."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` must be called."""
        turn_end, wake_at = self._user_turn_until, self._get_wake_time()
        if turn_end is None or not self._queue:
            return wake_at
        return turn_end if wake_at is None else min(turn_end, wake_at)

    @property
    def has_pending(self) -> bool:
        """Whether a request still waits for its response to start."""
        return bool(self._queue) or (self._sent is not None and not self._sent.answered)

    @property
    def retryable(self) -> bool:
        """Whether the active response can be requested again: it has no options, or this client did not request it."""
        return self._current is None or not self._current.response

    def request(
        self,
        requester: str,
        response: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
        after_item_id: str | None = None,
    ) -> None:
        """Request a response, as soon as one is possible; with ``after_item_id`` only while the user is silent.

        A request without options for the response is merged with an unsent one of the same kind, and one response
        answers both. Requests with options keep their order and are never merged.
        """
        mergeable = response is None and event_id is None
        # A request that the server may have received already cannot cover what is requested only now.
        if mergeable and self._queue and self._queue[-1].mergeable and not self._queue[-1].attempts:
            request = self._queue[-1]
            request.requesters.append(requester)
            request.waits_for_silence = request.waits_for_silence and after_item_id is not None
        else:
            self._count += 1
            request = ResponseRequest(
                event_id or f"standfast_response_{self._count}", [requester], response or {}, mergeable
            )
            request.waits_for_silence = after_item_id is not None
            self._queue.append(request)
        request.unconfirmed_items |= {after_item_id} if after_item_id is not None else set()
        self._send_next()

    def confirm_item(self, item_id: str) -> None:
        """Report that the server has an item: responses that start from now on cover it."""
        for request in (*self._queue, self._sent, self._current):
            if request is not None:
                request.unconfirmed_items.discard(item_id)

    def start_user_turn(self) -> None:
        """Report that the user has started to speak."""
        self._user_speaking, self._user_turn_until = True, self._context.clock() + _MAX_TURN_SECONDS

    def end_user_turn(self, *, server_responds: bool) -> None:
        """Report that the user has stopped; ``server_responds``: the server is going to start a response itself."""
        if self._user_speaking:
            # That response cannot start before the active one has ended.
            window = _SERVER_RESPONSE_WINDOW if self.active_response_id is None else _MAX_TURN_SECONDS
            self._user_speaking = False
            self._user_turn_until = self._context.clock() + window if server_responds else None
            self._send_next()

    def is_own_response(self, response: dict[str, Any]) -> bool:
        """Whether a response is the active one, or one that this client has requested."""
        label, requests = _get_label(response), (self._sent, self._current, *self._queue)
        requested = any(label in request.attempts for request in requests if request is not None)
        return requested or (self.active_response_id is not None and response.get("id") == self.active_response_id)

    def handle_created(self, response: dict[str, Any]) -> bool:
        """Handle the start of a response that this client has requested or that the server started itself.

        Returns True if it had been cancelled before it started.
        """
        self.active_response_id, self._cancelled_id, self._current = response["id"], None, None
        if not self._match_request(response) and _get_label(response) is None:
            # The server started it itself, so it covers all items that the server has confirmed.
            self._queue = deque(
                request for request in self._queue if not request.waits_for_silence or request.unconfirmed_items
            )
        self._send_next()
        if self._is_current_cancelled() or _get_label(response) in self._abandoned_attempts:
            self.cancel(self.active_response_id)  # Again: the first cancellation may have come before its start.
            return True
        return False

    def handle_done(self, response: dict[str, Any]) -> None:
        """Handle the end of a response. It also answers a request whose response was never reported as started."""
        if response.get("id") not in (None, self.active_response_id):
            self._match_request(response)
            if self.active_response_id is not None:
                self._send_next()
                return
        self.active_response_id = self._cancelled_id = self._current = None
        if self._sent is None:
            self._wake_at = None
        if self._user_turn_until is not None and not self._user_speaking:
            self._user_turn_until = self._context.clock() + _SERVER_RESPONSE_WINDOW
        self._send_next()

    def cancel(self, response_id: str | None = None, *, force: bool = False) -> None:
        """Cancel the active or requested response, once; with ``force`` even if there seems to be none.

        With a ``response_id``, nothing is cancelled unless that response is still the active one.
        """
        if response_id is not None and response_id != self.active_response_id and not force:
            return
        target = response_id or self.active_response_id
        if target is None and self._sent is None and not force:
            return
        if target is not None and target == self._cancelled_id:
            return
        self._cancelled_id = target
        if self._sent is not None and response_id is None:
            self._sent.cancelled = True
        message = {"type": "response.cancel", "event_id": _make_cancel_id(target)}
        self._context.send(message if target is None else {**message, "response_id": target})

    def handle_error(self, error: dict[str, Any]) -> bool:
        """Handle an error of the server. Returns False if the error must be reported to the program."""
        event_id, code = error.get("event_id"), error.get("code")
        if code == NOT_ACTIVE_CODE:
            if (
                self.active_response_id is not None
                and self._cancelled_id == self.active_response_id
                and event_id == _make_cancel_id(self.active_response_id)
            ):
                self.handle_done({"id": self.active_response_id})  # The message of its end was lost or malformed.
            return True
        if (request := self._find_rejected_request(event_id, code, error)) is None:
            return code == COLLISION_CODE and self._is_known_attempt(event_id)
        self._sent = self._current = self._wake_at = None
        request.attempts.remove(event_id or request.attempts[-1])
        can_retry = not request.cancelled and not request.answered and request.collisions < _MAX_COLLISIONS
        if code == COLLISION_CODE and can_retry:
            request.collisions += 1
            self._queue.appendleft(request)
            if self.active_response_id is None:
                self._wake_at = self._context.clock() + _COLLISION_BACKOFF * request.collisions
        else:
            self._fail(request, error)
        self._send_next()
        return True

    def tick(self) -> None:
        """Act on a passed deadline: end the user's turn, repeat or give up a late request. Before it, do nothing."""
        if self._user_turn_until is not None and self._context.clock() >= self._user_turn_until:
            self._user_speaking, self._user_turn_until = False, None
            self._send_next()
        wake_at = self._get_wake_time()
        if wake_at is None or self._context.clock() < wake_at:
            return
        self._wake_at = None
        if (late := self._sent) is not None:
            self._sent = None
            waited = self._context.clock() - late.first_sent_at
            if len(late.attempts) < _MAX_ATTEMPTS and not late.cancelled:
                self._queue.appendleft(late)
            else:
                self._fail(late, AcknowledgementTimeout("response.create", waited))
        elif self.active_response_id is not None and (ready := self._find_ready()) is not None:
            self._send(ready)
        self._send_next()

    def handle_connection_lost(self, error: Exception | None = None) -> str | None:
        """Report all pending requests as failed. Returns the id of the response that was active, if any."""
        pending = [*([self._sent] if self._sent else []), *self._queue]
        response_id, self.active_response_id = self.active_response_id, None
        self._sent = self._current = self._cancelled_id = self._wake_at = None
        self._user_speaking, self._user_turn_until = False, None
        self._queue.clear()
        for request in pending:
            self._fail(request, error or ConnectionLost("the connection ended"))
        return response_id

    def _is_current_cancelled(self) -> bool:
        return self._current is not None and self._current.cancelled

    def _fail(self, request: ResponseRequest, error: Any) -> None:
        self._abandoned_attempts.update(request.attempts)
        if not request.answered:
            self._context.report_failure(ResponseRefused(request.requesters, error, retryable=not request.response))

    def _send_next(self) -> None:
        """Send the next request, unless one is sent, a pause runs or a response is active."""
        if self._sent is not None or self._wake_at is not None or (ready := self._find_ready()) is None:
            return
        if self.active_response_id is not None:
            longest = self._context.timeout * _ACTIVE_TIMEOUT_FACTOR
            self._wake_at = self._context.clock() + min(longest, _ACTIVE_TIMEOUT * 2**ready.collisions)
        else:
            self._send(ready)

    def _get_wake_time(self) -> float | None:
        """Return when a sent request is late, sooner if another one waits for it, or when a pause is over."""
        if self._sent is None or self._wake_at is None or self._find_ready() is None:
            return self._wake_at
        return min(self._wake_at, self._sent.sent_at + _CONTENDED_TIMEOUT)

    def _find_ready(self) -> ResponseRequest | None:
        """Return the first request that may be sent as soon as no response is active."""
        if self._user_turn_until is None or self._context.clock() >= self._user_turn_until:
            return self._queue[0] if self._queue else None
        return next((request for request in self._queue if not request.waits_for_silence), None)

    def _send(self, request: ResponseRequest) -> None:
        self._queue.remove(request)
        self._sent = request
        label = f"{request.id}_{request.sent_count}" if request.sent_count else request.id
        request.sent_at = self._context.clock()
        request.first_sent_at = request.first_sent_at if request.sent_count else request.sent_at
        request.sent_count += 1
        request.attempts.append(label)
        self._abandoned_attempts.discard(label)  # A program may reuse an event id.
        self._wake_at = self._context.clock() + self._context.timeout
        self._context.send({"type": "response.create", "event_id": label, "response": _build_response_payload(request)})

    def _match_request(self, response: dict[str, Any]) -> bool:
        """Find the request that a response answers and make it the current one. Returns False without such a request.

        Servers that support metadata return the label, which decides. With others, a response that starts while a
        request is open is taken as its answer, unless the server reports a collision.
        """
        label, sent = _get_label(response), self._sent
        request = next((each for each in (sent, *self._queue) if each is not None and label in each.attempts), None)
        if request is None and "metadata" not in response:
            request = sent
        if sent is None:
            self._wake_at = None
        if request is None:
            if not self._user_speaking:
                self._user_turn_until = None
            return False
        self._current, self._confirmed = request, label is not None
        if request is not sent:
            self._queue.remove(request)
        elif label is not None and label != request.attempts[-1]:
            # The repeated attempt is on its way: until it is answered or late, nothing else is sent.
            request.answered = True
            self._abandoned_attempts.add(request.attempts[-1])
        else:
            self._sent = self._wake_at = None
        return True

    def _find_rejected_request(self, event_id: Any, code: Any, error: dict[str, Any]) -> ResponseRequest | None:
        """Return the request that an error is about: the open one, or one that was taken as answered."""
        if (sent := self._sent) is not None:
            if event_id is not None:  # An error about an earlier attempt does not affect this one.
                return sent if event_id == sent.attempts[-1] else None
            about_create = code == "bad_response_create" or "response.create" in str(error.get("message"))
            return sent if code == COLLISION_CODE or (about_create and self.active_response_id is None) else None
        guess = None if self._confirmed else self._current
        return guess if guess is not None and code == COLLISION_CODE and event_id in guess.attempts else None

    def _is_known_attempt(self, event_id: Any) -> bool:
        """Whether an earlier attempt had this id: a collision of a repeated request needs no report."""
        requests = (*self._queue, self._sent, self._current)
        return event_id in self._abandoned_attempts or any(
            event_id in each.attempts for each in requests if each is not None
        )


def _get_label(response: dict[str, Any]) -> Any:
    return (response.get("metadata") or {}).get(REQUEST_LABEL_KEY)


def _make_cancel_id(response_id: str | None) -> str:
    return f"standfast_cancel_{response_id or 'any'}"


def _build_response_payload(request: ResponseRequest) -> dict[str, Any]:
    requesters = _join_requesters(request.requesters)
    metadata = {
        REQUEST_LABEL_KEY: request.attempts[-1],
        REQUESTERS_KEY: requesters,
        **(request.response.get("metadata") or {}),
    }
    return {**request.response, "metadata": metadata}


def _join_requesters(requesters: Iterable[str]) -> str:
    """Join the requesters to one metadata value, whose length is limited; those that do not fit are left out."""
    text = ""
    for requester in requesters:
        if len(text) + len(requester) + 1 > _MAX_METADATA_LENGTH:
            break
        text = f"{text} {requester}" if text else requester
    return text
