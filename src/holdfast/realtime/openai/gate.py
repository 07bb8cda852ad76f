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

from holdfast.realtime.errors import ConnectionLost, ResponseRefused, Unacknowledged

COLLISION = "conversation_already_has_active_response"
NOT_ACTIVE = "response_cancel_not_active"
LABEL = "holdfast_request"
OWNERS = "holdfast_owners"

_MOST_TRIES = 2
_MOST_COLLISIONS = 20
_PAUSE = 0.25  # after a collision with a response that was never announced
_LONG = 3  # times the patience: how long a request waits for the end of a response before it is tried
_OWN_ANSWER = 2.0  # within this time a server begins to answer the user, if it does so by itself
_LONGEST_TURN = 60.0  # whoever seems to speak for longer has stopped, and that was not told
_LONGEST_METADATA = 512


@dataclass(frozen=True, slots=True)
class Desk:
    """What those who ask for responses work with."""

    say: Callable[[dict[str, Any]], None]
    """Puts a message on the wire."""
    refuse: Callable[[ResponseRefused], None]
    """Tells the owners of a request that it failed."""
    clock: Callable[[], float]
    patience: float
    """How many seconds the server has to react to a request."""


@dataclass(eq=False, slots=True)
class Request:
    """One wish for a response. ``owners`` are those who share it; a merged one has several."""

    id: str
    owners: list[str]
    response: dict[str, Any]
    merges: bool
    sent: int = 0
    tries: list[str] = field(default_factory=list)
    """Those that the server may have begun, or may yet begin."""
    collisions: int = 0
    withdrawn: bool = False
    """Cancelled when it had been sent: it is not sent again."""
    served: bool = False
    """Answered by an earlier try when it had been sent again."""
    patient: bool = False
    """Not sent while the user speaks."""
    untold: set[str] = field(default_factory=set)
    """The items it follows of which the server has not told that it has them."""


class ResponseGate:
    """At most one response of the conversation is active or being asked for at any time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: deque[Request] = deque()
        self._asked: Request | None = None
        """Sent, and the server has not reacted yet."""
        self._answering: Request | None = None
        """What the active response answers."""
        self._certain = False
        """The server has said so itself, by giving the label back."""
        self._unwanted: set[str] = set()
        """Tries that nobody waits for any more. A response to one of them is cancelled as it begins."""
        self._cancelled: str | None = None
        """The response for which that was sent already."""
        self._count = 0
        self._due: float | None = None
        """When the one asked for is late, the pause after a collision is over, or the active one has taken too long."""
        self._speaking = False
        self._users_until: float | None = None
        """As long as it is the user's turn: to speak, or to be answered by the server itself."""
        self.active: str | None = None
        """The response that the server is working on, as far as it has told."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` wants to be called."""
        users, due = self._users_until, self._due
        if users is None or not self._waiting:
            return due
        return users if due is None else min(users, due)

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for a response to begin."""
        return bool(self._waiting) or (self._asked is not None and not self._asked.served)

    @property
    def plain(self) -> bool:
        """Whether the active response was asked for without wishes, or by nobody here."""
        return self._answering is None or not self._answering.response

    def request(
        self,
        owner: str,
        response: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
        follows: str | None = None,
    ) -> None:
        """Ask for a response now or when it is possible; one that ``follows`` an item only when the user is silent.

        A request without wishes about the response joins one of the same kind that was not sent yet: one
        response answers both. Requests with wishes keep their order and are never merged.
        """
        merges = response is None and event_id is None
        # One that the server may have got already cannot answer what is asked only now.
        if merges and self._waiting and self._waiting[-1].merges and not self._waiting[-1].tries:
            made = self._waiting[-1]
            made.owners.append(owner)
            made.patient = made.patient and follows is not None
        else:
            self._count += 1
            made = Request(event_id or f"hf_response_{self._count}", [owner], response or {}, merges)
            made.patient = follows is not None
            self._waiting.append(made)
        made.untold |= {follows} if follows is not None else set()
        self._proceed()

    def knows(self, item: str) -> None:
        """The server has an item: a response that begins from now on is about it, too."""
        for request in (*self._waiting, self._asked, self._answering):
            if request is not None:
                request.untold.discard(item)

    def user_speaks(self) -> None:
        """The user has begun to speak."""
        self._speaking, self._users_until = True, self._desk.clock() + _LONGEST_TURN

    def user_stopped(self, *, answered: bool) -> None:
        """The user has stopped; ``answered``: the server is going to answer that by itself."""
        if self._speaking:
            # It cannot begin before the active one has ended.
            within = _OWN_ANSWER if self.active is None else _LONGEST_TURN
            self._speaking, self._users_until = False, self._desk.clock() + within if answered else None
            self._proceed()

    def claims(self, response: dict[str, Any]) -> bool:
        """Whether a response is the active one, or one that was asked for here."""
        label, known = _label(response), (self._asked, self._answering, *self._waiting)
        asked = any(label in request.tries for request in known if request is not None)
        return asked or (self.active is not None and response.get("id") == self.active)

    def created(self, response: dict[str, Any]) -> bool:
        """The server has begun a response: the one that was asked for, or one of its own.

        Tells whether it was cancelled before it began.
        """
        self.active, self._cancelled, self._answering = response["id"], None, None
        if not self._recognise(response) and _label(response) is None:
            # One of the server's own, which answers what it knows of.
            self._waiting = deque(request for request in self._waiting if not request.patient or request.untold)
        self._proceed()
        withdrawn = self._answering is not None and self._answering.withdrawn
        if withdrawn or _label(response) in self._unwanted:
            self.cancel(self.active)  # Once more: a server may not have begun it when it was told before.
            return True
        return False

    def done(self, response: dict[str, Any]) -> None:
        """A response is over; if it was never announced, this acknowledges it as well."""
        if response.get("id") not in (None, self.active):
            self._recognise(response)
            if self.active is not None:
                self._proceed()
                return
        self.active = self._cancelled = self._answering = None
        if self._asked is None:
            self._due = None
        if self._users_until is not None and not self._speaking:
            self._users_until = self._desk.clock() + _OWN_ANSWER
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
        self._desk.say(message if target is None else {**message, "response_id": target})

    def failed(self, error: dict[str, Any]) -> bool:
        """An error came from the server. Tells whether it is settled here, so that nobody else need hear of it."""
        event_id, code = error.get("event_id"), error.get("code")
        if code == NOT_ACTIVE:
            if self.active is not None and self._cancelled == self.active and event_id == _cancel_id(self.active):
                self.done({"id": self.active})  # Its end was not told, or not told readably.
            return True
        if (asked := self._refused_by(event_id, code, error)) is None:
            return code == COLLISION and self._knows(event_id)
        self._asked = self._answering = self._due = None
        asked.tries.remove(event_id or asked.tries[-1])
        if code == COLLISION and not asked.withdrawn and not asked.served and asked.collisions < _MOST_COLLISIONS:
            asked.collisions += 1
            self._waiting.appendleft(asked)
            if self.active is None:
                self._due = self._desk.clock() + _PAUSE * asked.collisions
        else:
            self._refuse(asked, error)
        self._proceed()
        return True

    def tick(self) -> None:
        """Call this when the deadline has passed; before it, nothing happens."""
        if self._users_until is not None and self._desk.clock() >= self._users_until:
            self._speaking, self._users_until = False, None
            self._proceed()
        if self._due is None or self._desk.clock() < self._due:
            return
        self._due = None
        if (late := self._asked) is not None:
            self._asked = None
            if len(late.tries) < _MOST_TRIES and not late.withdrawn:
                self._waiting.appendleft(late)
            else:
                self._refuse(late, Unacknowledged("response.create", self._desk.patience * len(late.tries)))
        elif self.active is not None and (ready := self._ready()) is not None:
            self._ask(ready)
        self._proceed()

    def lose(self, error: Exception | None = None) -> str | None:
        """The connection is gone: everybody who waits is told. Gives the response that died with it."""
        lost = [*([self._asked] if self._asked else []), *self._waiting]
        died, self.active = self.active, None
        self._asked = self._answering = self._cancelled = self._due = None
        self._speaking, self._users_until = False, None
        self._waiting.clear()
        for request in lost:
            self._refuse(request, error or ConnectionLost("the connection ended"))
        return died

    def _refuse(self, request: Request, error: Any) -> None:
        self._unwanted.update(request.tries)
        if not request.served:
            self._desk.refuse(ResponseRefused(request.owners, error, plain=not request.response))

    def _proceed(self) -> None:
        """Send the next request if nothing is in its way."""
        if self._asked is not None or self._due is not None or (ready := self._ready()) is None:
            return
        if self.active is not None:
            self._due = self._desk.clock() + self._desk.patience * _LONG
        else:
            self._ask(ready)

    def _ready(self) -> Request | None:
        """The first request that nothing but another response keeps from being sent."""
        if self._users_until is None or self._desk.clock() >= self._users_until:
            return self._waiting[0] if self._waiting else None
        return next((request for request in self._waiting if not request.patient), None)

    def _ask(self, asked: Request) -> None:
        self._waiting.remove(asked)
        self._asked = asked
        name = f"{asked.id}_{asked.sent}" if asked.sent else asked.id
        asked.sent += 1
        asked.tries.append(name)
        self._unwanted.discard(name)  # A program may use a name again.
        self._due = self._desk.clock() + self._desk.patience
        self._desk.say({"type": "response.create", "event_id": name, "response": _labelled(asked)})

    def _recognise(self, response: dict[str, Any]) -> bool:
        """Whether a response is one that was asked for.

        Servers that know metadata give the label back and leave no doubt. With others, a response that begins
        while a request is open is taken for its answer, unless the server says that the two collided.
        """
        label, asked = _label(response), self._asked
        found = next((known for known in (asked, *self._waiting) if known is not None and label in known.tries), None)
        if found is None and "metadata" not in response:
            found = asked
        if asked is None:
            self._due = None
        if found is None:
            if not self._speaking:
                self._users_until = None
            return False
        self._answering, self._certain = found, label is not None
        if found is not asked:
            self._waiting.remove(found)
        elif label is not None and label != found.tries[-1]:
            # The repetition is on its way: until it is settled, or its time is over, nothing else is sent.
            found.served = True
            self._unwanted.add(found.tries[-1])
        else:
            self._asked = self._due = None
        return True

    def _refused_by(self, event_id: Any, code: Any, error: dict[str, Any]) -> Request | None:
        """The request that an error is about: the open one, or one that seemed to be answered."""
        if (asked := self._asked) is not None:
            if event_id is not None:  # The word on an earlier try says nothing about this one.
                return asked if event_id == asked.tries[-1] else None
            about = code == "bad_response_create" or "response.create" in str(error.get("message"))
            return asked if code == COLLISION or (about and self.active is None) else None
        guessed = None if self._certain else self._answering
        return guessed if guessed is not None and code == COLLISION and event_id in guessed.tries else None

    def _knows(self, event_id: Any) -> bool:
        """Whether an earlier try of a request had this id: that a repeated one collides is no news."""
        known = (*self._waiting, self._asked, self._answering)
        return event_id in self._unwanted or any(event_id in each.tries for each in known if each is not None)


def _label(response: dict[str, Any]) -> Any:
    return (response.get("metadata") or {}).get(LABEL)


def _cancel_id(response_id: str | None) -> str:
    return f"hf_cancel_{response_id or 'any'}"


def _labelled(request: Request) -> dict[str, Any]:
    owners = _joined(request.owners)
    metadata = {LABEL: request.tries[-1], OWNERS: owners, **(request.response.get("metadata") or {})}
    return {**request.response, "metadata": metadata}


def _joined(owners: Iterable[str]) -> str:
    """The owners as one value of the metadata, which must not be long; those that do not fit are left out."""
    text = ""
    for owner in owners:
        if len(text) + len(owner) + 1 > _LONGEST_METADATA:
            break
        text = f"{text} {owner}" if text else owner
    return text
