"""Entries of the audit log: documents that are written in the commit of the change that they describe."""

import math
import re
import secrets
from collections.abc import Mapping
from typing import Protocol

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.text import make_visible, sanitize_text
from standfast.base.time import Clock, system_clock
from standfast.store.operations import PutDocument

KIND = "audit"
MAX_FIELD_LENGTH = 300
MAX_DETAILS = 20
NOBODY = "nobody"
"""The subject of an entry about someone who did not say who they are."""
_LATEST = 9e10  # seconds; keys have 17 digits of microseconds
# What looks like a credential must not get into the log, whichever field a caller puts it into.
_SECRETS = re.compile(r"sf_[0-9a-z]+_\S+|eyJ[\w-]{8,}\.[\w.-]*|(?i:(?:bearer|basic)\s+\S+)")


class Actor(Protocol):
    """Someone who decides or changes something, such as the principal of a request."""

    @property
    def subject(self) -> str:
        """Who it is."""
        ...

    @property
    def owner(self) -> str:
        """The owner whose data it works with."""
        ...

    @property
    def method(self) -> str:
        """How it was authenticated."""
        ...


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry: ``subject``, of ``owner``, did ``action`` at this time. ``details`` say to what, and how it ended."""

    id: str
    """The id of the entry; later ones are greater."""
    at: float
    """When it happened, in seconds since 1970."""
    subject: str
    """Who did it."""
    action: str
    """What was done, such as ``decided`` or ``denied``."""
    owner: str = ""
    """The owner of the subject."""
    method: str = ""
    """How the subject was authenticated."""
    details: dict[str, str] = {}
    """To what it was done, and how it ended."""


class AuditWriter:
    """Makes entries of the audit log, in order.

    An entry has neither the body of a request nor a credential: of a path, the part after ``?`` is dropped, and what
    looks like a key or a token is replaced, whichever field it is in.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self.clock = clock
        self._last_time = 0

    def make_operation(
        self, action: str, actor: Actor | str | None, details: Mapping[str, object]
    ) -> tuple[PutDocument, AuditEntry]:
        """Return the operation that adds an entry, for a commit with the change that it describes."""
        at = self.clock()
        # Entries of one moment keep their order.
        self._last_time = max(to_microseconds(at), self._last_time + 1)
        entry = AuditEntry(
            id=f"{self._last_time:017d}-{secrets.token_hex(6)}",
            at=at,
            subject=clean_text(get_subject(actor) or NOBODY),
            action=clean_text(action),
            owner=clean_text(getattr(actor, "owner", "")),
            method=clean_text(getattr(actor, "method", "")),
            details={
                clean_text(name): clean_text(str(value).partition("?")[0] if name == "path" else str(value))
                for name, value in list(details.items())[:MAX_DETAILS]
                if value is not None
            },
        )
        return PutDocument(kind=KIND, key=entry.id, data=msgspec.json.encode(entry), expected=0), entry


def get_subject(actor: Actor | str | None) -> str | None:
    """Return the name of an actor."""
    return getattr(actor, "subject", actor)  # type: ignore[arg-type]


def format_time_key(at: float) -> str:
    """Return a time as text that sorts like the number."""
    return f"{to_microseconds(at):017d}"


def to_microseconds(at: float) -> int:
    if math.isnan(at):
        raise InvalidInput("a time must be a number of seconds")
    return int(min(max(at, 0.0), _LATEST) * 1_000_000)


def clean_text(text: str) -> str:
    """Return what may be kept of a field: no credential, nothing invisible, and not too much."""
    visible = make_visible(sanitize_text(_SECRETS.sub("[removed]", text)))
    return visible if len(visible) <= MAX_FIELD_LENGTH else visible[:MAX_FIELD_LENGTH] + "..."
