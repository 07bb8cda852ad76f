"""Random programs on Redis and on the in-memory reference."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redis_server import redis_cluster_url, redis_url
from standfast.base.errors import StandfastError, Unsupported
from standfast.store import operations
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.operations import BatchKey, Op, Splice, ViewUpdate
from standfast.store.redis.backend import RedisBackend
from standfast.store.tape import generate_tape_id, get_tape_ends, slice_spans
from standfast.testing import FakeClock, closing_backend
from standfast.testing.store.fixtures import dump_backend

__all__ = ["redis_cluster_url", "redis_url"]

NAMES = ["a", "b{}", "ç d"]
names = st.sampled_from(NAMES)
small = st.integers(0, 6)
expected = st.sampled_from([None, None, "now", 0, 99])
data = st.lists(st.binary(max_size=5), max_size=4).map(tuple)
metadata = st.dictionaries(
    st.sampled_from(["x", "ü", "n"]),
    st.none() | st.sampled_from([1, 1.0, 2**60, [], {}, "text", [{"deep": None}]]),
    max_size=3,
)
owners = st.sampled_from([None, "me", "you"])
keys = st.none() | st.builds(BatchKey, st.sampled_from(["k", "l"]), st.sampled_from(["one", "two"]))

# A move is turned into operations when the state of the sessions at that time is known.
Move = Callable[[Backend], Awaitable[list[Op]]]


async def resolve_version(backend: Backend, session_id: str, version: object) -> Any:
    record = await backend.get_session(session_id)
    return (record.version if record else 0) if version == "now" else version


def make_append(
    name: str, add: tuple[bytes, ...], key: BatchKey | None, version: object, owner: str | None, seal_choice: int
) -> Move:
    async def move(backend: Backend) -> list[Op]:
        expected, record = await resolve_version(backend, name, version), await backend.get_session(name)
        tape = record.tape if record and seal_choice else generate_tape_id()
        # A sealed history accepts nothing without a seal, so most histories never get one.
        seal = b"seal" if seal_choice > 5 or (record and record.seal) else None
        return [Splice(session_id=name, add=add, key=key, expected=expected, owner=owner, seal=seal, tape=tape)]

    return move


def make_view_update(name: str, to: int, add: tuple[bytes, ...], archive: bool) -> Move:
    async def move(backend: Backend) -> list[Op]:
        record = await backend.get_session(name)
        if record is None:
            view = ViewUpdate((), 0, len(add), archive)
            return [Splice(session_id=name, add=add, view_update=view, expected=0)]
        end = min(to, record.length)
        view = ViewUpdate(slice_spans(record.view, 0, end), record.next_seq, end + len(add), archive)
        return [Splice(session_id=name, add=add, view_update=view, expected=record.version)]

    return move


def make_fork(parent: str, child: str, at: int) -> Move:
    async def move(backend: Backend) -> list[Op]:
        record = await backend.get_session(parent)
        if record is None or parent == child:
            return []
        spans = slice_spans(record.view, 0, at)
        view = ViewUpdate(spans, 0, sum(map(len, spans)))
        fork = Splice(
            session_id=child,
            view_update=view,
            expected=0,
            links=tuple(get_tape_ends(spans).items()),
            owner=record.owner,
        )
        return [operations.RequireVersion(parent, record.version), fork]

    return move


def make_erase(name: str, forget: bool, version: object) -> Move:
    async def move(backend: Backend) -> list[Op]:
        expected = await resolve_version(backend, name, version)
        return [operations.Erase(session_id=name, forget=forget, expected=expected)]

    return move


def make_require(name: str, version: object) -> Move:
    async def move(backend: Backend) -> list[Op]:
        return [operations.RequireVersion(name, await resolve_version(backend, name, version) or 0)]

    return move


def make_move(op: Op) -> Move:
    async def move(backend: Backend) -> list[Op]:
        return [op]

    return move


def on_sessions(name: st.SearchStrategy[str]) -> st.SearchStrategy[Move]:
    return st.one_of(
        st.builds(make_append, name, data, keys, expected, owners, small),
        st.builds(make_view_update, name, small, data, st.booleans()),
        st.builds(make_erase, name, st.booleans(), expected),
        st.builds(make_require, name, st.sampled_from(["now", "now", 1])),
        st.builds(operations.Annotate, session_id=name, metadata=metadata, owner=owners).map(make_move),
        st.builds(operations.Quarantine, session_id=name, tape=small, seq=small, reason=st.text(max_size=3)).map(
            make_move
        ),
    )


def on_leases(name: st.SearchStrategy[str]) -> st.SearchStrategy[Move]:
    token, ttl = st.integers(0, 3), st.sampled_from([1, 2.5])
    return st.one_of(
        st.builds(operations.AcquireLease, name=name, owner=st.sampled_from(["me", "you"]), ttl=ttl).map(make_move),
        st.builds(operations.RenewLease, name=name, token=token, ttl=ttl).map(make_move),
        st.builds(operations.ReleaseLease, name=name, token=token).map(make_move),
        st.builds(operations.CheckFence, name, token).map(make_move),
    )


def moves_on(name: st.SearchStrategy[str]) -> st.SearchStrategy[Move]:
    return on_sessions(name) | on_sessions(name) | on_leases(name)


clock_steps = st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.7, -2.0])
forks = st.builds(make_fork, names, names, small).map(lambda move: [move])
across = st.lists(moves_on(names), min_size=1, max_size=4)
within = st.one_of(*(st.lists(moves_on(st.just(name)), min_size=1, max_size=4) for name in NAMES))


# Every program starts with a fork, because few would create one by chance.
PREAMBLE = [
    (0.0, [make_append("a", (b"1", b"2", b"3", b"4"), None, None, None, 1)]),
    (0.0, [make_fork("a", "b{}", 3)]),
    (0.0, [make_append("b{}", (b"5",), None, None, None, 1)]),
]


async def try_commit(backend: Backend, ops: list[Op]) -> Any:
    try:
        return await backend.commit(*ops)
    except StandfastError as error:
        return type(error), str(error), {name: value for name, value in vars(error).items() if name != "__notes__"}


async def compare(url: str, program: list[tuple[float, list[Move]]]) -> None:
    clock = FakeClock()
    backend = RedisBackend.from_url(url, prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    async with closing_backend(MemoryBackend(clock=clock)) as reference, closing_backend(backend):
        for seconds, batch in [*PREAMBLE, *program]:
            clock.advance(seconds)
            # Each move sees the state before the batch, so later moves of a batch may be refused.
            ops = [op for move in batch for op in await move(reference)]
            expected, actual = await try_commit(reference, ops), await try_commit(backend, ops)
            assert actual == expected, ops
            assert await dump(backend) == await dump(reference), ops


async def dump(backend: Backend) -> dict[str, Any]:
    reads = await dump_backend(backend, runs=False, leases=tuple(NAMES))
    for name in NAMES:
        reads[f"quarantined {name}"] = await backend.list_quarantined(name)
        reads[f"window {name}"] = await backend.read(name, start=1, stop=4), await backend.read(name, last=2)
    return msgspec.to_builtins(reads)


programs_on_one_server = st.lists(st.tuples(clock_steps, across | within | forks | forks), max_size=14)
programs_on_a_cluster = st.lists(st.tuples(clock_steps, within | forks | forks), max_size=14)

COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


@settings(COMMON, max_examples=4)
@given(program=programs_on_one_server)
async def test_one_server_matches_the_reference(redis_url: str, program: list[tuple[float, list[Move]]]) -> None:
    await compare(redis_url, program)


@settings(COMMON, max_examples=4)
@given(program=programs_on_a_cluster)
async def test_a_cluster_matches_the_reference(redis_cluster_url: str, program: list[tuple[float, list[Move]]]) -> None:
    await compare(redis_cluster_url, program)


@settings(COMMON, max_examples=15)
@given(batch=across)
async def test_a_cluster_refuses_commits_or_matches_the_reference(redis_cluster_url: str, batch: list[Move]) -> None:
    clock = FakeClock()
    backend = RedisBackend.from_url(redis_cluster_url, prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    async with closing_backend(MemoryBackend(clock=clock)) as reference, closing_backend(backend):
        ops = [op for move in batch for op in await move(reference)]
        actual = await try_commit(backend, ops)
        if actual[:1] == (Unsupported,):
            reference = MemoryBackend(clock=clock)
        else:
            assert actual == await try_commit(reference, ops)
        assert await dump(backend) == await dump(reference)


@pytest.mark.soak
@settings(COMMON, max_examples=300)
@given(program=programs_on_one_server)
async def test_one_server_matches_the_reference_in_many_programs(
    redis_url: str, program: list[tuple[float, list[Move]]]
) -> None:
    await compare(redis_url, program)


@pytest.mark.soak
@settings(COMMON, max_examples=300)
@given(program=programs_on_a_cluster)
async def test_a_cluster_matches_the_reference_in_many_programs(
    redis_cluster_url: str, program: list[tuple[float, list[Move]]]
) -> None:
    await compare(redis_cluster_url, program)
