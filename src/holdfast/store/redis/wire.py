"""What the Redis scripts are sent and what they answer. No I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.base.errors import FenceLost, HistoryMoved, HoldfastError, KeyReused, NotFound, StoreUnavailable
from holdfast.store import contract
from holdfast.store.contract import (
    Generation,
    Head,
    Lease,
    LeaseHeld,
    Op,
    Outcome,
    Quarantined,
    Row,
    SessionRecord,
    sealed_against,
)
from holdfast.store.view import Span, Spans, join, on_tape

Words = list[bytes]
_spans = msgspec.json.Decoder(Spans)


def tag_of(name: str) -> str:
    """What stands between the braces of a key: no brace of the name itself may end it early."""
    return quote(name, safe=":/@", errors="surrogatepass")


def text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def untext(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def number(value: float) -> bytes:
    """A number that reads back as itself on the other side."""
    return repr(value).encode()


def optional(value: bytes | None) -> Words:
    return [b"0"] if value is None else [b"1", value]


def flag(value: bool) -> bytes:
    return b"1" if value else b"0"


class Link(msgspec.Struct, frozen=True):
    """A fork's hold on a tape: ``name`` is the fork's own, ``origin`` the tag under which the tape lies."""

    tape: int
    name: int
    origin: str

    @classmethod
    def parse(cls, value: bytes) -> "Link":
        tape, name, origin = value.decode().split("=")
        return cls(int(tape), int(name), origin)

    def __bytes__(self) -> bytes:
        return f"{self.tape}={self.name}={self.origin}".encode()


class LinkChange(msgspec.Struct, frozen=True):
    """What the slot of a shared tape is asked to do about a fork: ``link``, ``unlink`` or ``prolong``."""

    verb: str
    link: Link
    held: bytes | None = None


Step = Op | LinkChange
Origins = Mapping[int, str]


# --- operations ---------------------------------------------------------------------------------


def splice(op: contract.Splice, origins: Origins) -> Words:
    words = [
        b"splice",
        *target(op),
        *optional(None if op.expected is None else number(op.expected)),
        *optional(text(op.key.name) if op.key else None),
        *optional(text(op.key.digest) if op.key else None),
        *optional(op.seal),
        *optional(None if op.owner is None else text(op.owner)),
        number(op.tape),
    ]
    if op.shape is None:
        words.append(b"0")
    else:
        words += [b"1", msgspec.json.encode(op.shape.closed), number(op.shape.open_from), number(op.shape.length)]
        words.append(flag(op.shape.archive))
    words.append(number(len(op.links)))
    for tape, _ in op.links:
        words += [number(tape), held(op, tape), origins.get(tape, "").encode()]
    return [*words, number(len(op.add)), *op.add]


def held(op: contract.Splice, tape: int) -> bytes:
    """What a fork begins with on a tape, which stays there as long as the fork: ``0-4,7-9``."""
    stretches = on_tape(op.shape.closed if op.shape else (), tape)
    return ",".join(f"{start}-{stop}" for start, stop in stretches).encode() or b"-"


def erase(op: contract.Erase, origins: Origins) -> Words:
    expected = optional(None if op.expected is None else number(op.expected))
    return [b"erase", *target(op), *expected, *optional(op.seal), flag(op.forget)]


def annotate(op: contract.Annotate, origins: Origins) -> Words:
    owner = optional(None if op.owner is None else text(op.owner))
    words = [b"annotate", *target(op), number(op.tape), *owner, number(len(op.metadata))]
    for key, value in op.metadata.items():
        words += [text(key), *optional(None if value is None else msgspec.json.encode(value))]
    return words


def require(op: contract.Require, origins: Origins) -> Words:
    return [b"require", tag_of(op.session_id).encode(), number(op.version)]


def quarantine(op: contract.Quarantine, origins: Origins) -> Words:
    return [b"quarantine", tag_of(op.session_id).encode(), f"{op.tape} {op.seq}".encode(), text(op.reason)]


def take_lease(op: contract.TakeLease, origins: Origins) -> Words:
    return [b"take", tag_of(op.name).encode(), text(op.owner), number(op.ttl)]


def renew_lease(op: contract.RenewLease, origins: Origins) -> Words:
    return [b"renew", tag_of(op.name).encode(), number(op.token), number(op.ttl)]


def drop_lease(op: contract.DropLease, origins: Origins) -> Words:
    return [b"drop", tag_of(op.name).encode(), number(op.token)]


def fence(op: contract.Fence, origins: Origins) -> Words:
    return [b"fence", tag_of(op.name).encode(), number(op.token)]


def link_change(op: LinkChange, origins: Origins) -> Words:
    words = [op.verb.encode(), op.link.origin.encode(), number(op.link.tape), number(op.link.name)]
    return words if op.held is None else [*words, op.held]


def target(op: contract.Splice | contract.Erase | contract.Annotate) -> Words:
    return [tag_of(op.session_id).encode(), text(op.session_id)]


ENCODERS: dict[type, Callable[[Any, Origins], Words]] = {
    contract.Splice: splice,
    contract.Erase: erase,
    contract.Annotate: annotate,
    contract.Require: require,
    contract.Quarantine: quarantine,
    contract.TakeLease: take_lease,
    contract.RenewLease: renew_lease,
    contract.DropLease: drop_lease,
    contract.Fence: fence,
    LinkChange: link_change,
}


def home_of(step: Step) -> str:
    """The tag of the keys that a step reads and writes."""
    if isinstance(step, LinkChange):
        return step.link.origin
    return tag_of(step.name if isinstance(step, LEASE_OPS) else step.session_id)  # type: ignore[union-attr,arg-type]


LEASE_OPS = (contract.TakeLease, contract.RenewLease, contract.DropLease, contract.Fence)


def repeatable(steps: Iterable[Step]) -> bool:
    """Whether sending all of it again is harmless when nobody knows if it arrived."""
    return all(
        step.key is not None
        if isinstance(step, contract.Splice)
        else isinstance(
            step,
            (LinkChange, contract.Quarantine, contract.TakeLease, contract.RenewLease, contract.DropLease),
        )
        for step in steps
    )


# --- answers ------------------------------------------------------------------------------------


def outcome(step: Step, reply: Sequence[bytes] | None) -> Outcome:
    if reply is None:
        return None
    if isinstance(step, (contract.TakeLease, contract.RenewLease)):
        owner, token, expires_at = reply
        return Lease(step.name, untext(owner), int(token), float(expires_at))
    version, length = reply
    return Head(int(version), int(length))


def refusal(step: Any, reason: bytes, facts: Sequence[bytes]) -> HoldfastError:
    """The error that a script's refusal of this step stands for."""
    match reason:
        case b"moved":
            expected = step.version if isinstance(step, contract.Require) else step.expected
            return HistoryMoved(step.session_id, expected=expected, found=Head(*map(int, facts)))
        case b"sealed":
            return sealed_against(step.session_id)
        case b"key":
            return KeyReused(step.session_id, step.key.name)
        case b"tape":
            return NotFound("tape", int(facts[0]))
        case b"held":
            return LeaseHeld(step.name, owner=untext(facts[0]), expires_at=float(facts[1]))
        case b"fence":
            return FenceLost(step.name, expected=step.token, found=int(facts[0]))
    return StoreUnavailable(f"the store refused {type(step).__name__} with {reason!r}")


def pairs(reply: Any) -> dict[bytes, bytes]:
    """A hash, however the protocol's version spells it."""
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))


def session_record(session_id: str, fields: Mapping[bytes, bytes]) -> SessionRecord:
    try:
        return SessionRecord(
            session_id=session_id,
            tape=int(fields[b"tape"]),
            version=int(fields[b"version"]),
            length=int(fields[b"length"]),
            next_seq=int(fields[b"next_seq"]),
            open_from=int(fields[b"open_from"]),
            closed=_spans.decode(fields[b"closed"]),
            generation=int(fields[b"generation"]),
            seal=fields.get(b"seal"),
            owner=untext(fields[b"owner"]) if b"owner" in fields else None,
            metadata={
                untext(name[1:]): msgspec.json.decode(value) for name, value in fields.items() if name.startswith(b"#")
            },
            created_at=float(fields[b"created_at"]),
            updated_at=float(fields[b"updated_at"]),
        )
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise StoreUnavailable(f"the record of session {session_id!r} is damaged: {error}") from error


def origins_in(tag: str, fields: Mapping[bytes, bytes]) -> dict[int, str]:
    """Where the tapes lie that a session shows: its own with itself, inherited ones with their first session."""
    inherited = (Link.parse(entry) for entry in fields.get(b"origins", b"").split())
    own = {int(fields[b"tape"]): tag} if b"tape" in fields else {}
    return {link.tape: link.origin for link in inherited} | own


def generation(entry_number: bytes, entry: bytes) -> Generation:
    length, resumes_at, replaced_at, spans = entry.split(b" ", 3)
    shown = join(_spans.decode(spans))
    return Generation(int(entry_number), int(length), shown, int(resumes_at), float(replaced_at))


def quarantined(place: bytes, entry: bytes) -> Quarantined:
    tape, seq = place.split()
    at, reason = entry.split(b" ", 1)
    return Quarantined(int(tape), int(seq), untext(reason), float(at))


class Piece(msgspec.Struct, frozen=True):
    """A part of what was read; ``data`` is ``None`` when it lies in another slot, under ``origin``."""

    span: Span
    origin: str
    data: list[bytes | None] | None

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> "Piece":
        tape, start, stop, origin, data = reply
        return cls(Span(int(tape), int(start), int(stop)), origin.decode(), data)


def rows(start: int, pieces: Iterable[Piece]) -> list[Row]:
    found: list[Row] = []
    for piece in pieces:
        data = piece.data or [None] * len(piece.span)
        for offset, value in enumerate(data):
            found.append(Row(start + len(found), piece.span.tape, piece.span.start + offset, value))
    return found
