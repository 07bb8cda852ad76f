"""The messages, as frozen tagged structs in MessagePack.

Unknown fields are ignored and every field but the essential has a default, so that either side may be
newer than the other; what both understand is settled by the two hellos.
"""

import itertools
import os
import time
from typing import Any, Literal

import msgspec

PROTOCOL_VERSIONS = (1,)

_sequence = itertools.count(1)
_id_prefix = os.urandom(6).hex()


def reset_id_prefix() -> None:
    """Give this process its own id prefix. A forked process calls it first, or ids would repeat."""
    global _id_prefix
    _id_prefix = os.urandom(6).hex()


def new_id() -> str:
    """An id that no other message of this process or of another one has."""
    return f"{_id_prefix}-{next(_sequence)}"


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Every message has an id and the sender's wall clock."""

    id: str = msgspec.field(default_factory=new_id)
    timestamp: float = msgspec.field(default_factory=time.time)


class HelloMessage(Message, frozen=True, tag="hello"):
    """First word of both sides: the versions and features one has. The worker's answer names the choice."""

    versions: tuple[int, ...] = PROTOCOL_VERSIONS
    features: tuple[str, ...] = ()
    settings: dict[str, Any] = {}


class ReadyMessage(Message, frozen=True, tag="ready"):
    """The worker is locked in and waits for code."""

    session_id: str = ""
    capabilities: tuple[str, ...] = ()


class AckMessage(Message, frozen=True, tag="ack"):
    """The worker has taken up the message ``of``. For an execution it precedes all output.

    The result of an execution that ended at once stands for it; the host then says it in the worker's place.
    """

    of: str
    execution_id: str | None = None
    note: str = ""


TransactionPolicy = Literal["commit_always", "rollback_on_failure", "rollback_always"]


class ExecuteMessage(Message, frozen=True, tag="execute"):
    """Run code in the session's namespace. Its ``id`` is the execution id."""

    code: str
    transaction_id: str | None = None
    transaction_policy: TransactionPolicy = "commit_always"
    capture_source: bool = True
    allow_input: bool | None = None
    filename: str | None = None


class OutputMessage(Message, frozen=True, tag="output"):
    """Text that reached a standard stream. ``dropped`` bytes were left out just before ``data``."""

    data: str
    stream: Literal["stdout", "stderr"] = "stdout"
    execution_id: str = ""
    dropped: int = 0


class DisplayMessage(Message, frozen=True, tag="display"):
    """A rich object as a MIME bundle; binary forms are bytes."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str | None = None
    execution_id: str = ""


class InputMessage(Message, frozen=True, tag="input"):
    """Running code asks for a line. Answer with ``InputResponseMessage(input_id=this.id)``."""

    prompt: str
    execution_id: str
    password: bool = False
    timeout: float | None = None


class InputResponseMessage(Message, frozen=True, tag="input_response"):
    """The answer to an input request. ``eof`` makes the waiting ``input()`` raise EOFError."""

    input_id: str
    data: str = ""
    eof: bool = False
    execution_id: str | None = None


class ExecutionUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an execution cost: processor seconds, with reaped children, and the peak of resident bytes."""

    cpu: float = 0.0
    peak_rss: int = 0


NamespaceState = Literal["preserved", "lost"]


class ResultMessage(Message, frozen=True, tag="result"):
    """The code ran to its end. ``value`` is there when it is plain data; the others in any case."""

    execution_id: str
    value: Any = None
    repr: str = ""
    data: dict[str, Any] = {}
    execution_time: float = 0.0
    usage: ExecutionUsage = ExecutionUsage()
    rolled_back: bool = False
    warnings: tuple[str, ...] = ()


class ErrorMessage(Message, frozen=True, tag="error"):
    """The code, or a request, failed. Without ``execution_id`` it concerns the session, not an execution.

    ``state`` says whether the worker's variables survived; ``cause`` names what ended it when they did not.
    """

    exception_type: str
    exception_message: str = ""
    traceback: str = ""
    execution_id: str | None = None
    execution_time: float = 0.0
    interrupted: bool = False
    rolled_back: bool = False
    state: NamespaceState = "preserved"
    cause: str = ""
    usage: ExecutionUsage = ExecutionUsage()
    warnings: tuple[str, ...] = ()


class CheckpointMessage(Message, frozen=True, tag="checkpoint"):
    """Request (host) and reply (worker, same ``of``): the namespace as durable bytes."""

    of: str = ""
    name: str = ""
    data: bytes = b""
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = {}
    function_count: int = 0
    class_count: int = 0


class RestoreMessage(Message, frozen=True, tag="restore"):
    """Load a checkpoint inside the worker. The reply has ``of`` set and says what could not be restored."""

    of: str = ""
    data: bytes = b""
    clear_existing: bool = True
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = {}


class SnapshotMessage(Message, frozen=True, tag="snapshot"):
    """Take, return to, drop or branch from an exact copy of the worker made by forking it."""

    of: str = ""
    action: Literal["take", "rollback", "drop", "fork"] = "take"
    point: str = ""
    hazards: tuple[str, ...] = ()


class NamespaceEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One variable: what it is and how big, never its value."""

    name: str
    type: str
    size: int = 0
    length: int | None = None
    shape: tuple[int, ...] | None = None


class NamespaceMessage(Message, frozen=True, tag="namespace"):
    """Request and reply: the user's variables."""

    of: str = ""
    entries: tuple[NamespaceEntry, ...] = ()


class CompletionMessage(Message, frozen=True, tag="completion"):
    """Request and reply: names that could continue ``code`` at its end."""

    of: str = ""
    code: str = ""
    matches: tuple[str, ...] = ()


class HeartbeatMessage(Message, frozen=True, tag="heartbeat"):
    """Asked by the host, answered by the worker, also while it runs code."""

    of: str = ""
    memory_usage: int = 0
    cpu_percent: float = 0.0
    cpu_seconds: float = 0.0
    namespace_size: int = 0
    busy: bool = False


class CancelMessage(Message, frozen=True, tag="cancel"):
    """Stop this execution if it still runs. Acknowledged either way."""

    execution_id: str
    grace_timeout_ms: int = 500


class InterruptMessage(Message, frozen=True, tag="interrupt"):
    """Stop whatever runs. Acknowledged either way."""

    execution_id: str | None = None
    force_restart: bool = False


class ShutdownMessage(Message, frozen=True, tag="shutdown"):
    """Leave the loop and exit."""

    reason: str = ""


AnyMessage = (
    HelloMessage
    | ReadyMessage
    | AckMessage
    | ExecuteMessage
    | OutputMessage
    | DisplayMessage
    | InputMessage
    | InputResponseMessage
    | ResultMessage
    | ErrorMessage
    | CheckpointMessage
    | RestoreMessage
    | SnapshotMessage
    | NamespaceMessage
    | CompletionMessage
    | HeartbeatMessage
    | CancelMessage
    | InterruptMessage
    | ShutdownMessage
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


encode = _encoder.encode
"""The payload of one frame. Raises TypeError, ValueError or OverflowError for what is not data."""
decode = _decoder.decode
"""Raises msgspec.DecodeError (or ValidationError, its subclass) for anything that is not a message."""
