"""Who may ask for a response, and when. No I/O: it is told what happened and says what to send.

The server refuses a second response while one is active. Some of its responses nobody here asked for, because voice
activity starts them too. So a request waits until nothing is active, is given back its turn after a collision, and is
asked again once when the server does not react. When the end of a response does not come for long, the server is asked
all the same: if it is still active, that is one more collision. Whoever asked gets a response or a refusal.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.realtime.errors import ConnectionLost, ResponseRefused, Unacknowledged

COLLISION = "conversation_already_has_active_response"
NOT_ACTIVE = "response_cancel_not_active"
LABEL = "holdfast_request"
OWNERS = "holdfast_owners"

_MOST_TRIES = 2
_MOST_COLLISIONS = 20
_PAUSE = 0.25  # after a collision with a response that was never announced
_LONG = 3  # times the patience: how long a request waits for the end of a response before it is tried
_LONGEST_METADATA = 512


@dataclass(eq=False, slots=True)
class Request:
    """One wish for a response. ``owners`` are those who share it; a merged one has several."""

    id: str
    owners: list[str]
    response: dict[str, Any]
    merges: bool
    event_ids: list[str] = field(default_factory=list)
    tries: int = 0
    collisions: int = 0
    withdrawn: bool = False
    """Cancelled when it had been sent: it is not sent again."""


class ResponseGate:
    """At most one response of the conversation is active or being asked for at any time.

    ``say`` puts a message on the wire, ``refuse`` tells the owners of a request that it failed.
    """

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
        self._waiting: deque[Request] = deque()
        self._asked: Request | None = None
        self._answering: Request | None = None
        self._certain = False
        self._cancelled: str | None = None
        self._count = 0
        self.active: str | None = None
        """The response that the server is working on, as far as it has told."""
        self.deadline: float | None = None
        """When :meth:`tick` wants to be called."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for a response to begin."""
        return self._asked is not None or bool(self._waiting)

    def request(self, owner: str, response: dict[str, Any] | None = None, *, event_id: str | None = None) -> None:
        """Ask for a response now or when it is possible.

        A request without wishes about the response joins one of the same kind that was not sent yet: one
        response answers both. Requests with wishes keep their order and are never merged.
        """
        merges = response is None and event_id is None
        if merges and self._waiting and self._waiting[-1].merges:
            self._waiting[-1].owners.append(owner)
            return
        self._count += 1
        made = Request(event_id or f"hf_response_{self._count}", [owner], response or {}, merges)
        self._waiting.append(made)
        self._proceed()

    def created(self, response: dict[str, Any]) -> None:
        """The server has begun a response: the one that was asked for, or one of its own."""
        self.active, self._cancelled, self._answering = response["id"], None, None
        self._recognise(response)
        self._proceed()

    def done(self, response: dict[str, Any]) -> None:
        """A response is over; if it was never announced, this acknowledges it as well."""
        if response.get("id") not in (None, self.active):
            self._recognise(response)
            if self.active is not None:
                self._proceed()
                return
        self.active = self._cancelled = self._answering = None
        if self._asked is None:
            self.deadline = None
        self._proceed()

    def cancel(self, response_id: str | None = None, *, force: bool = False) -> None:
        """Cancel what is active or being asked for, once; with ``force`` also when nothing seems to be.

        A response that was named is cancelled only if it is still the active one, and no other is meant.
        """
        if response_id is not None and response_id != self.active and not force:
            return
        target = response_id or self.active
        if target is None and self._asked is None and not force:
            return
        if target is not None and target == self._cancelled:
            return
        self._cancelled = target
        if self._asked is not None and response_id is None:
            self._asked.withdrawn = True
        message = {"type": "response.cancel", "event_id": _cancel_id(target)}
        self._say(message if target is None else {**message, "response_id": target})

    def failed(self, error: dict[str, Any]) -> bool:
        """An error came from the server. Tells whether it is settled here, so that nobody else need hear of it."""
        event_id, code = error.get("event_id"), error.get("code")
        if code == NOT_ACTIVE:
            if self._cancelled is not None and event_id == _cancel_id(self._cancelled):
                self.done({"id": self._cancelled})  # Its end was not told, or not told readably.
            return True
        if (asked := self._refused_by(event_id, code, error)) is None:
            return code == COLLISION and self._knows(event_id)
        self._asked = self._answering = self.deadline = None
        if code == COLLISION and not asked.withdrawn and asked.collisions < _MOST_COLLISIONS:
            asked.collisions += 1
            asked.tries = 0
            self._waiting.appendleft(asked)
            if self.active is None:
                self.deadline = self._clock() + _PAUSE * asked.collisions
        else:
            self._refuse(ResponseRefused(asked.owners, error))
        self._proceed()
        return True

    def tick(self) -> None:
        """Call this when the deadline has passed; before it, nothing happens."""
        if self.deadline is None or self._clock() < self.deadline:
            return
        self.deadline = None
        if (late := self._asked) is not None:
            self._asked = None
            if late.tries < _MOST_TRIES and not late.withdrawn:
                self._waiting.appendleft(late)
            else:
                self._refuse(
                    ResponseRefused(late.owners, Unacknowledged("response.create", self._patience * late.tries))
                )
        elif self.active is not None and self._waiting:
            self._ask()
        self._proceed()

    def lose(self, error: Exception | None = None) -> str | None:
        """The connection is gone: everybody who waits is told. Gives the response that died with it."""
        lost = [*([self._asked] if self._asked else []), *self._waiting]
        died, self.active = self.active, None
        self._asked = self._answering = self._cancelled = self.deadline = None
        self._waiting.clear()
        for request in lost:
            self._refuse(ResponseRefused(request.owners, error or ConnectionLost("the connection ended")))
        return died

    def _proceed(self) -> None:
        """Send the next request if nothing is in its way."""
        if self._asked is not None or self.deadline is not None or not self._waiting:
            return
        if self.active is not None:
            self.deadline = self._clock() + self._patience * _LONG
        else:
            self._ask()

    def _ask(self) -> None:
        asked = self._asked = self._waiting.popleft()
        asked.tries += 1
        attempt = len(asked.event_ids)
        asked.event_ids.append(f"{asked.id}_{attempt}" if attempt else asked.id)
        self._wait_for_answer()
        self._say({"type": "response.create", "event_id": asked.event_ids[-1], "response": _labelled(asked)})

    def _wait_for_answer(self) -> None:
        self.deadline = self._clock() + self._patience

    def _recognise(self, response: dict[str, Any]) -> None:
        """Whether a response is the one that was asked for.

        Servers that know metadata give the label back and leave no doubt. With others, a response that begins
        while a request is open is taken for its answer, unless the server says that the two collided.
        """
        label = (response.get("metadata") or {}).get(LABEL)
        asked = self._asked
        if asked is None:
            self.deadline = None
        elif label == asked.id or "metadata" not in response:
            self._answering, self._certain = asked, label is not None
            self._asked = self.deadline = None

    def _refused_by(self, event_id: Any, code: Any, error: dict[str, Any]) -> Request | None:
        """The request that an error is about: the open one, or one that seemed to be answered."""
        if (asked := self._asked) is not None:
            if event_id is not None:
                return asked if event_id in asked.event_ids else None
            about = code == "bad_response_create" or "response.create" in str(error.get("message"))
            return asked if code == COLLISION or (about and self.active is None) else None
        guessed = None if self._certain else self._answering
        return guessed if guessed is not None and code == COLLISION and event_id in guessed.event_ids else None

    def _knows(self, event_id: Any) -> bool:
        """Whether an earlier try of a request had this id: that a repeated one collides is no news."""
        known = [*self._waiting, *([self._answering] if self._answering else [])]
        return any(event_id in request.event_ids for request in known)


def _cancel_id(response_id: str | None) -> str:
    return f"hf_cancel_{response_id or 'any'}"


def _labelled(request: Request) -> dict[str, Any]:
    owners = _joined(request.owners)
    metadata = {LABEL: request.id, OWNERS: owners, **(request.response.get("metadata") or {})}
    return {**request.response, "metadata": metadata}


def _joined(owners: Iterable[str]) -> str:
    """The owners as one value of the metadata, which must not be long; those that do not fit are left out."""
    text = ""
    for owner in owners:
        if len(text) + len(owner) + 1 > _LONGEST_METADATA:
            break
        text = f"{text} {owner}" if text else owner
    return text
