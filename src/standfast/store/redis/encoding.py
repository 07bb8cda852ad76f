"""Encode the arguments of the Redis scripts and decode their replies. No I/O."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from standfast.base.errors import (
    FenceLost,
    HistoryMoved,
    KeyReused,
    NotFound,
    OutsideScope,
    SessionDamaged,
    StandfastError,
    StoreUnavailable,
)
from standfast.store import operations
from standfast.store.operations import LeaseHeld, Op, OpResult, make_wrong_key_error
from standfast.store.records import Generation, Head, Lease, QuarantinedItem, Row, SessionRecord
from standfast.store.tape import TapeSpan, TapeSpans, get_ranges_on_tape, join_spans

Arguments = list[bytes]
_spans_decoder = msgspec.json.Decoder(TapeSpans)


def make_tag(name: str) -> str:
    """Return the hash tag of a name, with braces quoted."""
    return quote(name, safe=":/@", errors="surrogatepass")


def encode_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def decode_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def encode_number(value: float) -> bytes:
    """Encode a number without loss of precision."""
    return repr(value).encode()


def encode_optional(value: bytes | None) -> Arguments:
    return [b"0"] if value is None else [b"1", value]


def encode_flag(value: bool) -> bytes:
    return b"1" if value else b"0"


class ForkLink(msgspec.Struct, frozen=True):
    """The link of a fork to a tape: ``name`` is the fork's own tape, ``origin`` the hash tag of the linked tape."""

    tape: int
    name: int
    origin: str

    @classmethod
    def parse(cls, value: bytes) -> "ForkLink":
        tape, name, origin = value.decode().split("=")
        return cls(int(tape), int(name), origin)

    def __bytes__(self) -> bytes:
        return f"{self.tape}={self.name}={self.origin}".encode()


class ForkLinkChange(msgspec.Struct, frozen=True):
    """A change in the slot of a shared tape: ``link``, ``unlink`` or ``prolong`` (its expiry) for a fork."""

    action: str
    link: ForkLink
    held: bytes | None = None


CommitStep = Op | ForkLinkChange
TapeOrigins = Mapping[int, str]


# --- operations ---------------------------------------------------------------------------------


def encode_splice(op: operations.Splice, origins: TapeOrigins) -> Arguments:
    args = [
        b"splice",
        *encode_target(op),
        *encode_optional(None if op.expected is None else encode_number(op.expected)),
        *encode_optional(encode_text(op.key.name) if op.key else None),
        *encode_optional(encode_text(op.key.digest) if op.key else None),
        *encode_optional(op.seal),
        *encode_optional(None if op.owner is None else encode_text(op.owner)),
        encode_number(op.tape),
    ]
    if op.view_update is None:
        args.append(b"0")
    else:
        args += [
            b"1",
            msgspec.json.encode(op.view_update.closed),
            encode_number(op.view_update.open_from),
            encode_number(op.view_update.length),
        ]
        args.append(encode_flag(op.view_update.archive))
    args.append(encode_number(len(op.links)))
    for tape, _ in op.links:
        args += [encode_number(tape), encode_held_ranges(op, tape), origins.get(tape, "").encode()]
    return [*args, encode_number(len(op.add)), *op.add]


def encode_held_ranges(op: operations.Splice, tape: int) -> bytes:
    """Encode the ranges of a tape that a fork starts with, such as ``0-4,7-9``. They are kept as long as the fork."""
    stretches = get_ranges_on_tape(op.view_update.closed if op.view_update else (), tape)
    return ",".join(f"{start}-{stop}" for start, stop in stretches).encode() or b"-"


def encode_erase(op: operations.Erase, origins: TapeOrigins) -> Arguments:
    expected = encode_optional(None if op.expected is None else encode_number(op.expected))
    return [b"erase", *encode_target(op), *expected, *encode_optional(op.seal), encode_flag(op.forget)]


def encode_annotate(op: operations.Annotate, origins: TapeOrigins) -> Arguments:
    owner = encode_optional(None if op.owner is None else encode_text(op.owner))
    args = [b"annotate", *encode_target(op), encode_number(op.tape), *owner, encode_flag(op.claim)]
    args.append(encode_number(len(op.metadata)))
    for key, value in op.metadata.items():
        args += [encode_text(key), *encode_optional(None if value is None else msgspec.json.encode(value))]
    return args


def encode_require_version(op: operations.RequireVersion, origins: TapeOrigins) -> Arguments:
    return [b"require", make_tag(op.session_id).encode(), encode_number(op.version)]


def encode_quarantine(op: operations.Quarantine, origins: TapeOrigins) -> Arguments:
    return [b"quarantine", make_tag(op.session_id).encode(), f"{op.tape} {op.seq}".encode(), encode_text(op.reason)]


def encode_acquire_lease(op: operations.AcquireLease, origins: TapeOrigins) -> Arguments:
    return [b"take", make_tag(op.name).encode(), encode_text(op.owner), encode_number(op.ttl)]


def encode_renew_lease(op: operations.RenewLease, origins: TapeOrigins) -> Arguments:
    return [b"renew", make_tag(op.name).encode(), encode_number(op.token), encode_number(op.ttl)]


def encode_release_lease(op: operations.ReleaseLease, origins: TapeOrigins) -> Arguments:
    return [b"drop", make_tag(op.name).encode(), encode_number(op.token)]


def encode_check_fence(op: operations.CheckFence, origins: TapeOrigins) -> Arguments:
    return [b"fence", make_tag(op.name).encode(), encode_number(op.token)]


def encode_link_change(op: ForkLinkChange, origins: TapeOrigins) -> Arguments:
    args = [op.action.encode(), op.link.origin.encode(), encode_number(op.link.tape), encode_number(op.link.name)]
    return args if op.held is None else [*args, op.held]


def encode_target(op: operations.Splice | operations.Erase | operations.Annotate) -> Arguments:
    return [make_tag(op.session_id).encode(), encode_text(op.session_id)]


ENCODERS: dict[type, Callable[[Any, TapeOrigins], Arguments]] = {
    operations.Splice: encode_splice,
    operations.Erase: encode_erase,
    operations.Annotate: encode_annotate,
    operations.RequireVersion: encode_require_version,
    operations.Quarantine: encode_quarantine,
    operations.AcquireLease: encode_acquire_lease,
    operations.RenewLease: encode_renew_lease,
    operations.ReleaseLease: encode_release_lease,
    operations.CheckFence: encode_check_fence,
    ForkLinkChange: encode_link_change,
}


def get_step_tag(step: CommitStep) -> str:
    """Return the hash tag of the keys that a step reads and writes."""
    if isinstance(step, ForkLinkChange):
        return step.link.origin
    return make_tag(step.name if isinstance(step, LEASE_OPS) else step.session_id)  # type: ignore[union-attr,arg-type]


REPEATABLE_STEPS = (
    ForkLinkChange,
    operations.Quarantine,
    operations.AcquireLease,
    operations.RenewLease,
    operations.ReleaseLease,
)
LEASE_OPS = (operations.AcquireLease, operations.RenewLease, operations.ReleaseLease, operations.CheckFence)


def is_repeatable(steps: Iterable[CommitStep]) -> bool:
    """Return whether the steps can be sent again if it is unknown whether they were executed."""
    return all(
        step.key is not None if isinstance(step, operations.Splice) else isinstance(step, REPEATABLE_STEPS)
        for step in steps
    )


# --- replies ------------------------------------------------------------------------------------


def parse_result(step: CommitStep, reply: Sequence[bytes] | None) -> OpResult:
    if reply is None:
        return None
    if isinstance(step, (operations.AcquireLease, operations.RenewLease)):
        owner, token, expires_at = reply
        return Lease(step.name, decode_text(owner), int(token), float(expires_at))
    version, length = reply
    return Head(int(version), int(length))


def error_from_refusal(step: Any, reason: bytes, facts: Sequence[bytes]) -> StandfastError:
    """Return the error for the refusal of a step by a script."""
    match reason:
        case b"moved":
            expected = step.version if isinstance(step, operations.RequireVersion) else step.expected
            return HistoryMoved(step.session_id, expected=expected, found=Head(*map(int, facts)))
        case b"sealed":
            return make_wrong_key_error(step.session_id)
        case b"owner":
            return OutsideScope(step.owner)
        case b"key":
            return KeyReused(step.session_id, step.key.name)
        case b"damaged":
            return SessionDamaged(step.session_id, "a field is missing or not a number")
        case b"tape":
            return NotFound("tape", int(facts[0]))
        case b"held":
            return LeaseHeld(step.name, owner=decode_text(facts[0]), expires_at=float(facts[1]))
        case b"fence":
            return FenceLost(step.name, expected=step.token, found=int(facts[0]))
    return StoreUnavailable(f"the store refused {type(step).__name__} with {reason!r}")


def parse_hash(reply: Any) -> dict[bytes, bytes]:
    """Parse a hash of either version of the protocol."""
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))


def parse_session_record(session_id: str, fields: Mapping[bytes, bytes]) -> SessionRecord:
    try:
        return SessionRecord(
            session_id=session_id,
            tape=int(fields[b"tape"]),
            version=int(fields[b"version"]),
            length=int(fields[b"length"]),
            next_seq=int(fields[b"next_seq"]),
            open_from=int(fields[b"open_from"]),
            closed=_spans_decoder.decode(fields[b"closed"]),
            generation=int(fields[b"generation"]),
            seal=fields.get(b"seal"),
            owner=decode_text(fields[b"owner"]) if b"owner" in fields else None,
            metadata=parse_metadata(fields),
            created_at=float(fields[b"created_at"]),
            updated_at=float(fields[b"updated_at"]),
        )
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise SessionDamaged(session_id, f"{type(error).__name__}: {error}") from None


def parse_metadata(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the metadata of a session, without values that cannot be read."""
    metadata = {}
    for name, value in fields.items():
        if name.startswith(b"#"):
            with contextlib.suppress(msgspec.DecodeError):
                metadata[decode_text(name[1:])] = msgspec.json.decode(value)
    return metadata


def parse_origins(tag: str, fields: Mapping[bytes, bytes]) -> dict[int, str]:
    """Return the hash tags of the tapes in a session's view: its own, and the origins of inherited ones."""
    inherited = (ForkLink.parse(entry) for entry in fields.get(b"origins", b"").split())
    own = {int(fields[b"tape"]): tag} if b"tape" in fields else {}
    return {link.tape: link.origin for link in inherited} | own


def parse_generation(entry_number: bytes, entry: bytes) -> Generation:
    length, resumes_at, replaced_at, spans = entry.split(b" ", 3)
    view = join_spans(_spans_decoder.decode(spans))
    return Generation(int(entry_number), int(length), view, int(resumes_at), float(replaced_at))


def parse_quarantined(place: bytes, entry: bytes) -> QuarantinedItem:
    tape, seq = place.split()
    at, reason = entry.split(b" ", 1)
    return QuarantinedItem(int(tape), int(seq), decode_text(reason), float(at))


class TapeSegment(msgspec.Struct, frozen=True):
    """A range of one tape that was read; ``data`` is ``None`` if it is in another slot, that of ``origin``."""

    span: TapeSpan
    origin: str
    data: list[bytes | None] | None

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> "TapeSegment":
        tape, start, stop, origin, data = reply
        return cls(TapeSpan(int(tape), int(start), int(stop)), origin.decode(), data)


def build_rows(start: int, segments: Iterable[TapeSegment]) -> list[Row]:
    rows: list[Row] = []
    for segment in segments:
        data = segment.data or [None] * len(segment.span)
        for offset, value in enumerate(data):
            rows.append(Row(start + len(rows), segment.span.tape, segment.span.start + offset, value))
    return rows
