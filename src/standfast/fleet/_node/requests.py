"""The requests to a session on another machine, as structs: one for each method that a pool can call."""

from typing import Any, Literal

import msgspec

from standfast.workers.wire import messages as m

MAX_BATCH_BYTES = 1 << 20
"""How much one answer of a stream carries; a single message or chunk may be larger."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Run code to its end, and answer with its result. Without ``has_timeout`` the session's own one holds."""

    code: str
    has_timeout: bool = False
    timeout: float | None = None
    transaction: m.TransactionPolicy = "commit_always"
    allow_input: bool | None = None
    seed: int | None = None


class Execute(msgspec.Struct, frozen=True, array_like=True):
    """Start to run code, and answer with the first messages."""

    message: m.ExecuteMessage
    has_timeout: bool = False
    timeout: float | None = None


class Named(msgspec.Struct, frozen=True, array_like=True):
    """A request about one thing by its name: an execution, a snapshot, a capture, a file."""

    name: str = ""


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    execution_id: str
    grace: float


class Point(msgspec.Struct, frozen=True, array_like=True):
    action: Literal["rollback", "drop"]
    point_id: str
    hazards: tuple[str, ...] = ()


class Restore(msgspec.Struct, frozen=True, array_like=True):
    data: bytes
    clear_existing: bool


class StartCapture(msgspec.Struct, frozen=True, array_like=True):
    manifest: bytes | None
    digests: tuple[bytes, ...]
    max_bytes: int
    timeout: float


class CaptureBatch(msgspec.Struct, frozen=True, array_like=True):
    """Chunks of a capture; the last batch has the manifest."""

    chunks: list[tuple[bytes, bytes]]
    manifest: bytes | None = None


class PutChunks(msgspec.Struct, frozen=True, array_like=True):
    chunks: list[tuple[bytes, bytes]]


class RestoreWorkspace(msgspec.Struct, frozen=True, array_like=True):
    manifest: bytes
    max_bytes: int
    timeout: float | None
    is_prepared: bool = False


class WriteFiles(msgspec.Struct, frozen=True, array_like=True):
    entries: list[tuple[str, int, bytes | None]]


class FileRequest(msgspec.Struct, frozen=True, array_like=True):
    path: str
    data: bytes = b""
    limit: int = 0


class Receive(msgspec.Struct, frozen=True, array_like=True):
    type: str | None
    timeout: float | None


class Send(msgspec.Struct, frozen=True, array_like=True):
    message: m.AnyMessage


class Messages(msgspec.Struct, frozen=True, array_like=True):
    """A batch of the messages of an execution; ``is_last`` with the end of its stream."""

    messages: list[m.AnyMessage]
    is_last: bool = False


class Leased(msgspec.Struct, frozen=True, array_like=True):
    """A session that was leased: its id and its description."""

    session_id: str
    info: dict[str, Any]
