"""Who may ask for a response, and when. No I/O: it is told what happened and says what to send.

The server refuses a second response while one is active. Some of its responses nobody here asked for, because voice
activity starts them too. So a request waits until nothing is active, is given back its turn after a collision, and is
asked again once when the server does not react. When the end of a response does not come for long, the server is asked
all the same: if it is still active, that is one more collision. Whoever asked gets one response or a
refusal: each try has a label of its own, and what the server makes of one that nobody waits for any more is cancelled.

A request that follows an item which is no question, such as the output of a tool, does not make the model talk over the
user: it waits until the user has stopped, and then for the response that the server may begin by itself. If the server
had the item by then, that response is about it, too, and no other is asked for.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from standfast.realtime.errors import AcknowledgementTimeout, ConnectionLost, ResponseRefused

COLLISION_CODE = "conversation_already_has_active_response"
NOT_ACTIVE_CODE = "response_cancel_not_active"
REQUEST_LABEL_KEY = "standfast_request"
OWNERS_KEY = "standfast_owners"

_MAX_ATTEMPTS = 2
_MAX_COLLISIONS = 20
_COLLISION_BACKOFF = 0.25  # after a collision with a response that was never announced
_ACTIVE_TIMEOUT_FACTOR = 3  # times the patience: how long a request waits for the end of a response before it is tried
_SERVER_RESPONSE_WINDOW = 2.0  # within this time a server begins to answer the user, if it does so by itself
_MAX_TURN_SECONDS = 60.0  # whoever seems to speak for longer has stopped, and that was not told
_MAX_METADATA_LENGTH = 512


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What those who ask for responses work with."""

    send: Callable[[dict[str, Any]], None]
    """Puts a message on the wire."""
    report_refusal: Callable[[ResponseRefused], None]
    """Tells the owners of a request that it failed."""
    clock: Callable[[], float]
    timeout: float
    """How many seconds the server has to react to a request."""


@dataclass(eq=False, slots=True)
class ResponseRequest:
    """One wish for a response. ``owners`` are those who share it; a merged one has several."""

    id: str
    owners: list[str]
    response: dict[str, Any]
    mergeable: bool
    sent_count: int = 0
    attempts: list[str] = field(default_factory=list)
    """Those that the server may have begun, or may yet begin."""
    collisions: int = 0
    cancelled: bool = False
    """Cancelled when it had been sent: it is not sent again."""
    answered: bool = False
    """Answered by an earlier try when it had been sent again."""
    waits_for_silence: bool = False
    """Not sent while the user speaks."""
    unconfirmed_items: set[str] = field(default_factory=set)
    """The items it follows of which the server has not told that it has them."""


class ResponseQueue:
    """At most one response of the conversation is active or being asked for at any time."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._queue: deque[ResponseRequest] = deque()
        self._sent: ResponseRequest | None = None
        """Sent, and the server has not reacted yet."""
        self._current: ResponseRequest | None = None
        """What the active response answers."""
        self._confirmed = False
        """The server has said so itself, by giving the label back."""
        self._abandoned_attempts: set[str] = set()
        """Tries that nobody waits for any more. A response to one of them is cancelled as it begins."""
        self._cancelled_id: str | None = None
        """The response for which that was sent already."""
        self._count = 0
        self._wake_at: float | None = None
        """When the one asked for is late, the pause after a collision is over, or the active one has taken too long."""
        self._user_speaking = False
        self._user_turn_until: float | None = None
        """As long as it is the user's turn: to speak, or to be answered by the server itself."""
        self.active_response_id: str | None = None
        """The response that the server is working on, as far as it has told."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called."""
        users, due = self._user_turn_until, self._wake_at
        if users is None or not self._queue:
            return due
        return users if due is None else min(users, due)

    @property
    def has_pending(self) -> bool:
        """Whether anybody still waits for a response to begin."""
        return bool(self._queue) or (self._sent is not None and not self._sent.answered)

    @property
    def retryable(self) -> bool:
        """Whether the active response was asked for without wishes, or by nobody here."""
        return self._current is None or not self._current.response

    def request(
        self,
        owner: str,
        response: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
        after_item_id: str | None = None,
    ) -> None:
        """Ask for a response now or when it is possible; one that ``follows`` an item only when the user is silent.

        A request without wishes about the response joins one of the same kind that was not sent yet: one
        response answers both. Requests with wishes keep their order and are never merged.
        """
        merges = response is None and event_id is None
        # One that the server may have got already cannot answer what is asked only now.
        if merges and self._queue and self._queue[-1].mergeable and not self._queue[-1].attempts:
            made = self._queue[-1]
            made.owners.append(owner)
            made.waits_for_silence = made.waits_for_silence and after_item_id is not None
        else:
            self._count += 1
            made = ResponseRequest(event_id or f"hf_response_{self._count}", [owner], response or {}, merges)
            made.waits_for_silence = after_item_id is not None
            self._queue.append(made)
        made.unconfirmed_items |= {after_item_id} if after_item_id is not None else set()
        self._send_next()

    def confirm_item(self, item_id: str) -> None:
        """The server has an item: a response that begins from now on is about it, too."""
        for request in (*self._queue, self._sent, self._current):
            if request is not None:
                request.unconfirmed_items.discard(item_id)

    def start_user_turn(self) -> None:
        """The user has begun to speak."""
        self._user_speaking, self._user_turn_until = True, self._context.clock() + _MAX_TURN_SECONDS

    def end_user_turn(self, *, server_responds: bool) -> None:
        """The user has stopped; ``answered``: the server is going to answer that by itself."""
        if self._user_speaking:
            # It cannot begin before the active one has ended.
            within = _SERVER_RESPONSE_WINDOW if self.active_response_id is None else _MAX_TURN_SECONDS
            self._user_speaking, self._user_turn_until = (
                False,
                self._context.clock() + within if server_responds else None,
            )
            self._send_next()

    def is_own_response(self, response: dict[str, Any]) -> bool:
        """Whether a response is the active one, or one that was asked for here."""
        label, known = _get_label(response), (self._sent, self._current, *self._queue)
        asked = any(label in request.attempts for request in known if request is not None)
        return asked or (self.active_response_id is not None and response.get("id") == self.active_response_id)

    def handle_created(self, response: dict[str, Any]) -> bool:
        """The server has begun a response: the one that was asked for, or one of its own.

        Tells whether it was cancelled before it began.
        """
        self.active_response_id, self._cancelled_id, self._current = response["id"], None, None
        if not self._match_request(response) and _get_label(response) is None:
            # One of the server's own, which answers what it knows of.
            self._queue = deque(
                request for request in self._queue if not request.waits_for_silence or request.unconfirmed_items
            )
        self._send_next()
        withdrawn = self._current is not None and self._current.withdrawn
        if withdrawn or _get_label(response) in self._abandoned_attempts:
            self.cancel(self.active_response_id)  # Once more: a server may not have begun it when it was told before.
            return True
        return False

    def handle_done(self, response: dict[str, Any]) -> None:
        """A response is over; if it was never announced, this acknowledges it as well."""
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
        """Cancel what is active or being asked for, once; with ``force`` also when nothing seems to be.

        A response that was named is cancelled only if it is still the active one, and no other is meant.
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
        """An error came from the server. Tells whether it is settled here, so that nobody else need hear of it."""
        event_id, code = error.get("event_id"), error.get("code")
        if code == NOT_ACTIVE_CODE:
            if (
                self.active_response_id is not None
                and self._cancelled_id == self.active_response_id
                and event_id == _make_cancel_id(self.active_response_id)
            ):
                self.handle_done({"id": self.active_response_id})  # Its end was not told, or not told readably.
            return True
        if (asked := self._find_rejected_request(event_id, code, error)) is None:
            return code == COLLISION_CODE and self._is_known_attempt(event_id)
        self._sent = self._current = self._wake_at = None
        asked.attempts.remove(event_id or asked.attempts[-1])
        if code == COLLISION_CODE and not asked.cancelled and not asked.answered and asked.collisions < _MAX_COLLISIONS:
            asked.collisions += 1
            self._queue.appendleft(asked)
            if self.active_response_id is None:
                self._wake_at = self._context.clock() + _COLLISION_BACKOFF * asked.collisions
        else:
            self._reject(asked, error)
        self._send_next()
        return True

    def tick(self) -> None:
        """Call this when the deadline has passed; before it, nothing happens."""
        if self._user_turn_until is not None and self._context.clock() >= self._user_turn_until:
            self._user_speaking, self._user_turn_until = False, None
            self._send_next()
        if self._wake_at is None or self._context.clock() < self._wake_at:
            return
        self._wake_at = None
        if (late := self._sent) is not None:
            self._sent = None
            if len(late.attempts) < _MAX_ATTEMPTS and not late.cancelled:
                self._queue.appendleft(late)
            else:
                self._reject(
                    late, AcknowledgementTimeout("response.create", self._context.timeout * len(late.attempts))
                )
        elif self.active_response_id is not None and (ready := self._find_ready()) is not None:
            self._send(ready)
        self._send_next()

    def handle_connection_lost(self, error: Exception | None = None) -> str | None:
        """The connection is gone: everybody who waits is told. Gives the response that died with it."""
        lost = [*([self._sent] if self._sent else []), *self._queue]
        died, self.active_response_id = self.active_response_id, None
        self._sent = self._current = self._cancelled_id = self._wake_at = None
        self._user_speaking, self._user_turn_until = False, None
        self._queue.clear()
        for request in lost:
            self._reject(request, error or ConnectionLost("the connection ended"))
        return died

    def _reject(self, request: ResponseRequest, error: Any) -> None:
        self._abandoned_attempts.update(request.attempts)
        if not request.answered:
            self._context.report_refusal(ResponseRefused(request.owners, error, retryable=not request.response))

    def _send_next(self) -> None:
        """Send the next request if nothing is in its way."""
        if self._sent is not None or self._wake_at is not None or (ready := self._find_ready()) is None:
            return
        if self.active_response_id is not None:
            self._wake_at = self._context.clock() + self._context.timeout * _ACTIVE_TIMEOUT_FACTOR
        else:
            self._send(ready)

    def _find_ready(self) -> ResponseRequest | None:
        """The first request that nothing but another response keeps from being sent."""
        if self._user_turn_until is None or self._context.clock() >= self._user_turn_until:
            return self._queue[0] if self._queue else None
        return next((request for request in self._queue if not request.waits_for_silence), None)

    def _send(self, request: ResponseRequest) -> None:
        self._queue.remove(request)
        self._sent = request
        name = f"{request.id}_{request.sent_count}" if request.sent_count else request.id
        request.sent_count += 1
        request.attempts.append(name)
        self._abandoned_attempts.discard(name)  # A program may use a name again.
        self._wake_at = self._context.clock() + self._context.timeout
        self._context.send({"type": "response.create", "event_id": name, "response": _build_response_payload(request)})

    def _match_request(self, response: dict[str, Any]) -> bool:
        """Whether a response is one that was asked for.

        Servers that know metadata give the label back and leave no doubt. With others, a response that begins
        while a request is open is taken for its answer, unless the server says that the two collided.
        """
        label, asked = _get_label(response), self._sent
        found = next((known for known in (asked, *self._queue) if known is not None and label in known.attempts), None)
        if found is None and "metadata" not in response:
            found = asked
        if asked is None:
            self._wake_at = None
        if found is None:
            if not self._user_speaking:
                self._user_turn_until = None
            return False
        self._current, self._confirmed = found, label is not None
        if found is not asked:
            self._queue.remove(found)
        elif label is not None and label != found.attempts[-1]:
            # The repetition is on its way: until it is settled, or its time is over, nothing else is sent.
            found.answered = True
            self._abandoned_attempts.add(found.attempts[-1])
        else:
            self._sent = self._wake_at = None
        return True

    def _find_rejected_request(self, event_id: Any, code: Any, error: dict[str, Any]) -> ResponseRequest | None:
        """The request that an error is about: the open one, or one that seemed to be answered."""
        if (asked := self._sent) is not None:
            if event_id is not None:  # The word on an earlier try says nothing about this one.
                return asked if event_id == asked.attempts[-1] else None
            about = code == "bad_response_create" or "response.create" in str(error.get("message"))
            return asked if code == COLLISION_CODE or (about and self.active_response_id is None) else None
        guessed = None if self._confirmed else self._current
        return guessed if guessed is not None and code == COLLISION_CODE and event_id in guessed.attempts else None

    def _is_known_attempt(self, event_id: Any) -> bool:
        """Whether an earlier try of a request had this id: that a repeated one collides is no news."""
        known = (*self._queue, self._sent, self._current)
        return event_id in self._abandoned_attempts or any(
            event_id in each.attempts for each in known if each is not None
        )


def _get_label(response: dict[str, Any]) -> Any:
    return (response.get("metadata") or {}).get(REQUEST_LABEL_KEY)


def _make_cancel_id(response_id: str | None) -> str:
    return f"hf_cancel_{response_id or 'any'}"


def _build_response_payload(request: ResponseRequest) -> dict[str, Any]:
    owners = _join_owners(request.owners)
    metadata = {REQUEST_LABEL_KEY: request.attempts[-1], OWNERS_KEY: owners, **(request.response.get("metadata") or {})}
    return {**request.response, "metadata": metadata}


def _join_owners(owners: Iterable[str]) -> str:
    """The owners as one value of the metadata, which must not be long; those that do not fit are left out."""
    text = ""
    for owner in owners:
        if len(text) + len(owner) + 1 > _MAX_METADATA_LENGTH:
            break
        text = f"{text} {owner}" if text else owner
    return text
