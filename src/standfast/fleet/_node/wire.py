"""The calls between a pool and a node, as MessagePack. No pickle of ours crosses: what code in a worker made is bytes.

An answer is a :class:`Reply`. An exception crosses as its name and its fields, and is raised again by the pool.
"""

import dataclasses
from typing import Any, TypeVar

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
    """What a node tells about itself."""

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
