"""The calls between a pool and a node, as MessagePack. No pickle of ours crosses: what code in a worker made is bytes.

Each method that a pool can call on a session is a request. An answer is a :class:`Reply`. An exception crosses as its
name and its fields, and is raised again by the pool.
"""

import dataclasses
from typing import Any, Literal, TypeVar

import msgspec

from standfast.base.errors import Closed, InvalidInput, NotFound, StandfastError, Unsupported
from standfast.workers.config import PoolConfig
from standfast.workers.errors import (
    CaptureFailed,
    Cause,
    ExecutionTimeout,
    PoolBroken,
    PoolExhausted,
    SandboxUnavailable,
    StartFailed,
    WorkerDied,
    WorkerError,
    WorkerRequestFailed,
    WorkspaceRefused,
)
from standfast.workers.state import SessionState
from standfast.workers.wire import messages as m

T = TypeVar("T")

# By class: the fields from which the exception is made again; without any, its message.
_ERRORS: dict[type[BaseException], tuple[str, ...]] = {
    WorkerDied: ("cause",),
    StartFailed: (),
    WorkerRequestFailed: ("kind", "detail"),
    CaptureFailed: ("kind", "detail"),
    WorkspaceRefused: ("kind", "detail"),
    SandboxUnavailable: ("required", "available", "reason"),
    ExecutionTimeout: ("execution_id", "timeout", "state"),
    PoolExhausted: (),
    PoolBroken: ("retry_after", "last_error"),
    WorkerError: (),
    Closed: (),
    InvalidInput: (),
    NotFound: ("what", "name"),
    Unsupported: (),
    TimeoutError: (),
    OSError: (),
}
_BY_NAME = {kind.__name__: kind for kind in _ERRORS}
MAX_BATCH_BYTES = 1 << 20
"""How much one answer of a stream carries; a single message or chunk may be larger."""


class RemoteError(StandfastError):
    """An error of a kind that a node does not pass on by its class."""

    code = "remote"


class EncodedError(msgspec.Struct, frozen=True, array_like=True):
    """An exception: its class, its fields or its message."""

    name: str
    fields: tuple[Any, ...]


class SessionBrief(msgspec.Struct, frozen=True, array_like=True):
    """The state and the counters of a session, as they are after each call."""

    state: SessionState
    is_alive: bool
    execution_count: int = 0
    error_count: int = 0
    last_used_at: float = 0.0


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one call: a value or a fault, and the session afterwards."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: EncodedError | None = None
    brief: SessionBrief | None = None


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node."""

    node_id: str
    host: str
    process: int
    capacity: int
    leased: int
    idle: int
    waiting: int
    clients: int
    draining: bool
    memory: int = 0
    sandbox: str | None = None
    sandbox_notes: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    problem: str = ""


_reply_decoder = msgspec.msgpack.Decoder(Reply)


def _to_plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to another machine")


encode = msgspec.msgpack.Encoder(enc_hook=_to_plain).encode


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    return msgspec.msgpack.decode(data, type=kind)


def decode_reply(data: bytes) -> Reply:
    return _reply_decoder.decode(data)


def encode_config(config: PoolConfig) -> bytes:
    return encode(dataclasses.asdict(config))


def decode_config(data: bytes) -> PoolConfig:
    return msgspec.convert(msgspec.msgpack.decode(data), PoolConfig, strict=False)


def encode_error(problem: BaseException) -> EncodedError:
    for kind in type(problem).__mro__:
        if kind in _ERRORS:
            names = _ERRORS[kind]
            fields = tuple(_describe(getattr(problem, name)) for name in names) if names else (str(problem),)
            return EncodedError(kind.__name__, fields)
    return EncodedError(type(problem).__name__, (str(problem),))


def _describe(value: Any) -> Any:
    return dataclasses.asdict(value) if isinstance(value, Cause) else value


def restore_error(fault: EncodedError) -> BaseException:
    kind = _BY_NAME.get(fault.name)
    if kind is WorkerDied:
        return WorkerDied(msgspec.convert(fault.fields[0], Cause))
    if kind is None:
        return RemoteError(f"{fault.name}: {fault.fields[0] if fault.fields else ''}")
    return kind(*fault.fields)


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
