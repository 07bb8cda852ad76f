"""The messages between host and worker, as frozen, tagged structs in MessagePack.

Unknown fields are ignored and all but the essential fields have defaults, so that either side may be newer than the
other. The two HelloMessages negotiate what both understand.
"""

import itertools
import os
import time
from typing import Any, Literal

import msgspec

PROTOCOL_VERSIONS = (1,)
OMITTED_MIME_TYPE = "application/vnd.standfast.left-out+json"
"""In a MIME bundle: the forms that were too large to send, with their sizes."""

_sequence = itertools.count(1)
_id_prefix = os.urandom(6).hex()


def reset_id_prefix() -> None:
    """Give this process its own id prefix. Every forked process must call it, or ids would repeat."""
    global _id_prefix
    _id_prefix = os.urandom(6).hex()


def new_id() -> str:
    """Return an id that is unique among the messages of all processes."""
    return f"{_id_prefix}-{next(_sequence)}"


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base class of all messages. Each has an id and the time at which it was created."""

    id: str = msgspec.field(default_factory=new_id)
    timestamp: float = msgspec.field(default_factory=time.time)


class HelloMessage(Message, frozen=True, tag="hello"):
    """The first message of each side: supported versions and features. The worker's reply names the chosen version."""

    versions: tuple[int, ...] = PROTOCOL_VERSIONS
    features: tuple[str, ...] = ()
    settings: dict[str, Any] = {}


class ReadyMessage(Message, frozen=True, tag="ready"):
    """The worker is inside its sandbox and waits for code."""

    session_id: str = ""
    capabilities: tuple[str, ...] = ()


class AckMessage(Message, frozen=True, tag="ack"):
    """The worker has received the message ``of``. For an execution, it precedes all output.

    A worker may omit it for an execution that ends at once; the host then delivers it in the worker's place.
    """

    of: str
    execution_id: str | None = None
    note: str = ""


TransactionPolicy = Literal["commit_always", "rollback_on_failure", "rollback_always"]


class ExecuteMessage(Message, frozen=True, tag="execute"):
    """Run code in the session's namespace. Its ``id`` is the execution id.

    ``seed`` seeds the generators of ``random`` and NumPy before.
    """

    code: str
    transaction_id: str | None = None
    transaction_policy: TransactionPolicy = "commit_always"
    capture_source: bool = True
    allow_input: bool | None = None
    filename: str | None = None
    seed: int | None = None


class OutputMessage(Message, frozen=True, tag="output"):
    """Text that was written to a standard stream. ``dropped`` bytes were left out just before ``data``."""

    data: str
    stream: Literal["stdout", "stderr"] = "stdout"
    execution_id: str = ""
    dropped: int = 0


class DisplayMessage(Message, frozen=True, tag="display"):
    """A displayed object as a MIME bundle. Binary representations are bytes."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str | None = None
    execution_id: str = ""


class InputMessage(Message, frozen=True, tag="input"):
    """Running code waits for a line of input. Answer with ``InputResponseMessage(input_id=message.id)``."""

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
    """Resources of one execution: CPU seconds including its child processes, and the peak of resident memory."""

    cpu: float = 0.0
    peak_rss: int = 0


NamespaceState = Literal["preserved", "lost"]


class ResultMessage(Message, frozen=True, tag="result"):
    """The code ran to its end. ``value`` is the last value if that is plain data; ``repr`` is always set."""

    execution_id: str
    value: Any = None
    repr: str = ""
    data: dict[str, Any] = {}
    execution_time: float = 0.0
    usage: ExecutionUsage = ExecutionUsage()
    rolled_back: bool = False
    warnings: tuple[str, ...] = ()


class ErrorMessage(Message, frozen=True, tag="error"):
    """The code or a request failed. Without ``execution_id`` the error concerns the session, not an execution.

    ``state`` says whether the variables of the worker survived; if not, ``cause`` is the kind of its end.
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
    """A request for the namespace as bytes, and the reply, whose ``of`` is the id of the request."""

    of: str = ""
    name: str = ""
    data: bytes = b""
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = {}
    function_count: int = 0
    class_count: int = 0


class RestoreMessage(Message, frozen=True, tag="restore"):
    """A request to load a checkpoint, and the reply, which lists what could not be restored."""

    of: str = ""
    data: bytes = b""
    clear_existing: bool = True
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = {}


class SnapshotMessage(Message, frozen=True, tag="snapshot"):
    """A request to take, restore or drop a copy of the worker process, or to fork it; and the reply."""

    of: str = ""
    action: Literal["take", "rollback", "drop", "fork"] = "take"
    point: str = ""
    hazards: tuple[str, ...] = ()


class CaptureMessage(Message, frozen=True, tag="capture"):
    """A request to copy the worker and send its workspace over the descriptor that comes with it; and the reply."""

    of: str = ""
    capture_id: str = ""


class RestoreWorkspaceMessage(Message, frozen=True, tag="restore_workspace"):
    """A request to restore what is sent over the descriptor that comes with it; and the reply."""

    of: str = ""
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = {}


class NamespaceEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name, type and size of one variable, never its value."""

    name: str
    type: str
    size: int = 0
    length: int | None = None
    shape: tuple[int, ...] | None = None


class NamespaceMessage(Message, frozen=True, tag="namespace"):
    """A request for the user's variables, and the reply."""

    of: str = ""
    entries: tuple[NamespaceEntry, ...] = ()


class CompletionMessage(Message, frozen=True, tag="completion"):
    """A request for names that complete the end of ``code``, and the reply."""

    of: str = ""
    code: str = ""
    matches: tuple[str, ...] = ()


class HeartbeatMessage(Message, frozen=True, tag="heartbeat"):
    """A request for a sign of life, and the reply, which the worker sends also while it runs code."""

    of: str = ""
    memory_usage: int = 0
    cpu_percent: float = 0.0
    cpu_seconds: float = 0.0
    namespace_size: int = 0
    busy: bool = False


class CancelMessage(Message, frozen=True, tag="cancel"):
    """Stop this execution if it is running. The worker acknowledges it in any case."""

    execution_id: str
    grace_timeout_ms: int = 500


class InterruptMessage(Message, frozen=True, tag="interrupt"):
    """Stop the execution that is running. The worker acknowledges it in any case."""

    execution_id: str | None = None
    force_restart: bool = False


class ShutdownMessage(Message, frozen=True, tag="shutdown"):
    """Ask the worker to exit."""

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
    | CaptureMessage
    | RestoreWorkspaceMessage
    | NamespaceMessage
    | CompletionMessage
    | HeartbeatMessage
    | CancelMessage
    | InterruptMessage
    | ShutdownMessage
)


class MessageHeader(msgspec.Struct, frozen=True):
    """The fields that say what a message belongs to. Decoding it builds nothing else."""

    type: str = ""
    of: str = ""
    execution_id: str | None = None


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(MessageHeader)
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


encode = _encoder.encode
"""Encode a message as the payload of a frame. Raises TypeError, ValueError or OverflowError for other objects."""
decode = _decoder.decode
"""Decode the payload of a frame. Raises msgspec.DecodeError for anything that is not a message."""
decode_header = _header_decoder.decode
"""Decode what the message in the payload of a frame belongs to. Raises msgspec.DecodeError."""
