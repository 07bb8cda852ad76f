"""Random programs, run by the reference backend and by Redis side by side."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
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

# A move becomes operations when it is known what the sessions show at that moment.
Move = Callable[[Backend], Awaitable[list[Op]]]


async def version_of(backend: Backend, session_id: str, wanted: object) -> Any:
    record = await backend.get_session(session_id)
    return (record.version if record else 0) if wanted == "now" else wanted


def appending(
    name: str, add: tuple[bytes, ...], key: BatchKey | None, wanted: object, owner: str | None, sealing: int
) -> Move:
    async def move(backend: Backend) -> list[Op]:
        version, record = await version_of(backend, name, wanted), await backend.get_session(name)
        tape = record.tape if record and sealing else generate_tape_id()
        # A history that had a seal takes nothing without one, so most never get one.
        seal = b"seal" if sealing > 5 or (record and record.seal) else None
        return [Splice(session_id=name, add=add, key=key, expected=version, owner=owner, seal=seal, tape=tape)]

    return move


def reshaping(name: str, to: int, add: tuple[bytes, ...], archive: bool) -> Move:
    async def move(backend: Backend) -> list[Op]:
        record = await backend.get_session(name)
        if record is None:
            shape = ViewUpdate((), 0, len(add), archive)
            return [Splice(session_id=name, add=add, view_update=shape, expected=0)]
        to_ = min(to, record.length)
        shape = ViewUpdate(slice_spans(record.view, 0, to_), record.next_seq, to_ + len(add), archive)
        return [Splice(session_id=name, add=add, view_update=shape, expected=record.version)]

    return move


def forking(parent: str, child: str, at: int) -> Move:
    async def move(backend: Backend) -> list[Op]:
        record = await backend.get_session(parent)
        if record is None or parent == child:
            return []
        view = slice_spans(record.view, 0, at)
        shape = ViewUpdate(view, 0, sum(map(len, view)))
        fork = Splice(
            session_id=child,
            view_update=shape,
            expected=0,
            links=tuple(get_tape_ends(view).items()),
            owner=record.owner,
        )
        return [operations.RequireVersion(parent, record.version), fork]

    return move


def erasing(name: str, forget: bool, wanted: object) -> Move:
    async def move(backend: Backend) -> list[Op]:
        version = await version_of(backend, name, wanted)
        return [operations.Erase(session_id=name, forget=forget, expected=version)]

    return move


def requiring(name: str, wanted: object) -> Move:
    async def move(backend: Backend) -> list[Op]:
        return [operations.RequireVersion(name, await version_of(backend, name, wanted) or 0)]

    return move


def plain(op: Op) -> Move:
    async def move(backend: Backend) -> list[Op]:
        return [op]

    return move


def on_sessions(name: st.SearchStrategy[str]) -> st.SearchStrategy[Move]:
    return st.one_of(
        st.builds(appending, name, data, keys, expected, owners, small),
        st.builds(reshaping, name, small, data, st.booleans()),
        st.builds(erasing, name, st.booleans(), expected),
        st.builds(requiring, name, st.sampled_from(["now", "now", 1])),
        st.builds(operations.Annotate, session_id=name, metadata=metadata, owner=owners).map(plain),
        st.builds(operations.Quarantine, session_id=name, tape=small, seq=small, reason=st.text(max_size=3)).map(plain),
    )


def on_leases(name: st.SearchStrategy[str]) -> st.SearchStrategy[Move]:
    token, ttl = st.integers(0, 3), st.sampled_from([1, 2.5])
    return st.one_of(
        st.builds(operations.AcquireLease, name=name, owner=st.sampled_from(["me", "you"]), ttl=ttl).map(plain),
        st.builds(operations.RenewLease, name=name, token=token, ttl=ttl).map(plain),
        st.builds(operations.ReleaseLease, name=name, token=token).map(plain),
        st.builds(operations.CheckFence, name, token).map(plain),
    )


def moves_on(name: st.SearchStrategy[str]) -> st.SearchStrategy[Move]:
    return on_sessions(name) | on_sessions(name) | on_leases(name)


turns = st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.7, -2.0])
forks = st.builds(forking, names, names, small).map(lambda move: [move])
across = st.lists(moves_on(names), min_size=1, max_size=4)
within = st.one_of(*(st.lists(moves_on(st.just(name)), min_size=1, max_size=4) for name in NAMES))


# Every program begins with some relatives, or most would never have any.
FAMILY = [
    (0.0, [appending("a", (b"1", b"2", b"3", b"4"), None, None, None, 1)]),
    (0.0, [forking("a", "b{}", 3)]),
    (0.0, [appending("b{}", (b"5",), None, None, None, 1)]),
]


async def attempt(backend: Backend, ops: list[Op]) -> Any:
    try:
        return await backend.commit(*ops)
    except StandfastError as error:
        return type(error), str(error), {name: value for name, value in vars(error).items() if name != "__notes__"}


async def run(url: str, program: list[tuple[float, list[Move]]]) -> None:
    clock = FakeClock()
    backend = RedisBackend.from_url(url, prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    async with closing_backend(MemoryBackend(clock=clock)) as reference, closing_backend(backend):
        for seconds, batch in [*FAMILY, *program]:
            clock.advance(seconds)
            # Each move sees what was there before the batch, so later ones in a batch may well be refused.
            ops = [op for move in batch for op in await move(reference)]
            wanted, got = await attempt(reference, ops), await attempt(backend, ops)
            assert got == wanted, ops
            assert await everything(backend) == await everything(reference), ops


async def everything(backend: Backend) -> dict[str, Any]:
    seen = await dump_backend(backend, runs=False, leases=tuple(NAMES))
    for name in NAMES:
        seen[f"quarantined {name}"] = await backend.list_quarantined(name)
        seen[f"window {name}"] = await backend.read(name, start=1, stop=4), await backend.read(name, last=2)
    return msgspec.to_builtins(seen)


HOW = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


@settings(HOW, max_examples=80)
@given(program=st.lists(st.tuples(turns, across | within | forks | forks), max_size=14))
async def test_one_server_matches_the_reference(redis_url: str, program: list[tuple[float, list[Move]]]) -> None:
    await run(redis_url, program)


@settings(HOW, max_examples=60)
@given(program=st.lists(st.tuples(turns, within | forks | forks), max_size=14))
async def test_a_cluster_matches_the_reference(
    redis_cluster_url: str, program: list[tuple[float, list[Move]]]
) -> None:
    await run(redis_cluster_url, program)


@settings(HOW, max_examples=50)
@given(batch=across)
async def test_a_cluster_refuses_commits_or_matches_the_reference(redis_cluster_url: str, batch: list[Move]) -> None:
    clock = FakeClock()
    backend = RedisBackend.from_url(redis_cluster_url, prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    async with closing_backend(MemoryBackend(clock=clock)) as reference, closing_backend(backend):
        ops = [op for move in batch for op in await move(reference)]
        got = await attempt(backend, ops)
        if got[:1] == (Unsupported,):
            reference = MemoryBackend(clock=clock)
        else:
            assert got == await attempt(reference, ops)
        assert await everything(backend) == await everything(reference)
