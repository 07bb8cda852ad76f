"""Random programs for a backend: strategies, and the operations of each step."""

from typing import Any

from hypothesis import strategies as st

from standfast.store import operations
from standfast.store.backend import Backend, Cursor
from standfast.store.operations import Op
from standfast.store.records import SessionRecord
from standfast.store.tape import get_tape_ends, slice_spans

SESSIONS, RUNS, APPROVALS, LEASES = ("a", "B", "c_%"), ("r1", "r2"), ("p1", "p2"), ("l1", "l2")

data = st.binary(max_size=4)
many = st.lists(data, max_size=3).map(tuple)
logged = st.lists(st.tuples(st.sampled_from(["k", "ü"]), data), max_size=3).map(tuple)
maybe_bytes = st.none() | data
values = st.none() | st.integers(-5, 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
metadata = st.dictionaries(st.sampled_from(["x", "y", 'q"\\', "é"]), values, max_size=3)
session, run, approval, lease = map(st.sampled_from, (SESSIONS, RUNS, APPROVALS, LEASES))
who = st.none() | st.sampled_from(["me", "you"])
off = st.sampled_from([0, 0, 0, 0, 1, -1])
"""The difference between an expected version, revision or token and the real one."""
key = st.none() | st.tuples(st.sampled_from(["k1", "k2"]), st.sampled_from(["d1", "d1", "d2"]))

steps = st.one_of(
    st.tuples(st.just("append"), session, many, key, maybe_bytes, st.none() | off, who),
    st.tuples(st.just("append"), session, many, st.none(), st.none(), st.none(), st.none()),
    st.tuples(st.just("reshape"), session, st.integers(0, 6), many, st.booleans(), off),
    st.tuples(st.just("fork"), session, session, st.integers(0, 6)),
    st.tuples(st.just("erase"), session, st.none() | off, st.booleans(), maybe_bytes),
    st.tuples(st.just("annotate"), session, metadata, who),
    st.tuples(st.just("require"), session, off),
    st.tuples(st.just("quarantine"), session, st.integers(0, 4), st.text("bad\n€", max_size=3)),
    st.tuples(st.just("save_run"), run, off, st.sampled_from(["on", "off"]), data, st.none() | session),
    st.tuples(st.just("fork_run"), run, run),
    st.tuples(st.just("delete_run"), run, off),
    st.tuples(st.just("journal"), run, logged),
    st.tuples(st.just("emit"), run, logged),
    st.tuples(st.just("save_approval"), approval, run, off, data, st.none() | st.floats(0, 10)),
    st.tuples(st.just("take"), lease, st.sampled_from(["me", "you"]), st.floats(0, 20)),
    st.tuples(st.just("renew"), lease, off, st.floats(0, 20)),
    st.tuples(st.just("drop"), lease, off),
    st.tuples(st.just("fence"), lease, off),
)
programs = st.lists(st.tuples(st.floats(-3, 9), st.lists(steps, min_size=1, max_size=4)), min_size=1, max_size=12)


class Program:
    """Turns steps into operations, with the state of the reference."""

    def __init__(self, reference: Backend, prefix: str) -> None:
        self.reference = reference
        self.prefix = prefix

    def add_prefix(self, name: str | None) -> str | None:
        return None if name is None else self.prefix + name

    async def build_ops(self, step: tuple[Any, ...]) -> list[Op]:
        ops: list[Op] = await getattr(self, step[0])(*step[1:])
        return ops

    async def record(self, session_id: str) -> SessionRecord | None:
        return await self.reference.get_session(self.prefix + session_id)

    async def version(self, session_id: str, offset: int | None) -> int | None:
        record = await self.record(session_id)
        return None if offset is None else (record.version if record else 0) + offset

    async def append(self, name: str, add: Any, key: Any, seal: Any, offset: Any, owner: Any) -> list[Op]:
        return [
            operations.Splice(
                session_id=self.prefix + name,
                add=add,
                words=("some words",) * len(add),
                key=key and operations.BatchKey(*key),
                seal=seal,
                expected=await self.version(name, offset),
                owner=owner,
            )
        ]

    async def reshape(self, name: str, to: int, add: Any, archive: bool, offset: int) -> list[Op]:
        record = await self.record(name)
        if record is None:
            return []
        closed = slice_spans(record.view, 0, to)
        size = sum(map(len, closed)) + len(add)
        shape = operations.ViewUpdate(closed, record.next_seq, size, archive)
        return [
            operations.Splice(
                session_id=record.session_id, add=add, view_update=shape, expected=record.version + offset
            )
        ]

    async def fork(self, parent: str, child: str, at: int) -> list[Op]:
        record = await self.record(parent)
        if record is None or parent == child:
            return []
        closed = slice_spans(record.view, 0, at)
        view = operations.ViewUpdate(closed, 0, sum(map(len, closed)))
        links = tuple(get_tape_ends(closed).items())
        fork = operations.Splice(session_id=self.prefix + child, view_update=view, expected=0, links=links)
        return [operations.RequireVersion(record.session_id, record.version), fork]

    async def erase(self, name: str, offset: int | None, forget: bool, seal: bytes | None) -> list[Op]:
        expected = await self.version(name, offset)
        return [operations.Erase(session_id=self.prefix + name, expected=expected, forget=forget, seal=seal)]

    async def annotate(self, name: str, metadata: dict[str, Any], owner: str | None) -> list[Op]:
        return [operations.Annotate(session_id=self.prefix + name, metadata=metadata, owner=owner)]

    async def require(self, name: str, offset: int) -> list[Op]:
        return [operations.RequireVersion(self.prefix + name, await self.version(name, offset) or 0)]

    async def quarantine(self, name: str, seq: int, reason: str) -> list[Op]:
        record = await self.record(name)
        tape = record.tape if record else 7
        return [operations.Quarantine(session_id=self.prefix + name, tape=tape, seq=seq, reason=reason)]

    async def save_run(self, name: str, offset: int, status: str, data: bytes, session_id: str | None) -> list[Op]:
        run = await self.reference.get_run(self.prefix + name)
        return [
            operations.SaveRun(
                run_id=self.prefix + name,
                expected=(run.revision if run else 0) + offset,
                status=status,
                data=data,
                session_id=self.add_prefix(session_id),
            )
        ]

    async def fork_run(self, parent: str, child: str) -> list[Op]:
        fork = operations.SaveRun(
            run_id=self.prefix + child, expected=0, status="on", data=b"{}", parent=self.prefix + parent
        )
        return [fork]

    async def delete_run(self, name: str, offset: int) -> list[Op]:
        run = await self.reference.get_run(self.prefix + name)
        return [operations.DeleteRun(run_id=self.prefix + name, expected=(run.revision if run else 0) + offset)]

    async def journal(self, name: str, entries: Any) -> list[Op]:
        return [operations.AppendJournal(run_id=self.prefix + name, entries=entries)]

    async def emit(self, name: str, events: Any) -> list[Op]:
        return [operations.AppendEvents(run_id=self.prefix + name, events=events)]

    async def save_approval(self, name: str, run: str, offset: int, data: bytes, expires_at: float | None) -> list[Op]:
        approval = await self.reference.get_approval(self.prefix + name)
        return [
            operations.SaveApproval(
                approval_id=self.prefix + name,
                expected=(approval.revision if approval else 0) + offset,
                run_id=self.prefix + run,
                status="pending",
                data=data,
                expires_at=expires_at,
            )
        ]

    async def token(self, name: str, offset: int) -> int:
        lease = await self.reference.get_lease(self.prefix + name)
        return (lease.token if lease else 1) + offset

    async def take(self, name: str, owner: str, ttl: float) -> list[Op]:
        return [operations.AcquireLease(name=self.prefix + name, owner=owner, ttl=ttl)]

    async def renew(self, name: str, offset: int, ttl: float) -> list[Op]:
        return [operations.RenewLease(name=self.prefix + name, token=await self.token(name, offset), ttl=ttl)]

    async def drop(self, name: str, offset: int) -> list[Op]:
        return [operations.ReleaseLease(name=self.prefix + name, token=await self.token(name, offset))]

    async def fence(self, name: str, offset: int) -> list[Op]:
        return [operations.CheckFence(self.prefix + name, await self.token(name, offset))]


async def try_commit(backend: Backend, ops: list[Op]) -> Any:
    """The results of a commit, or the error with its attributes."""
    try:
        return await backend.commit(*ops)
    except Exception as error:
        return type(error), str(error), vars(error)


async def dump(backend: Backend, prefix: str) -> dict[str, Any]:
    """The results of all reads about one program."""
    reads: dict[str, Any] = {}
    # Queries ignore case.
    reads["sessions"] = await backend.list_sessions(owner=None, query=prefix.upper(), limit=100, after=None)
    reads["mine"] = await backend.list_sessions(owner="me", query=prefix, limit=2, after=None)
    if reads["sessions"]:
        first = reads["sessions"][0]
        cursor = Cursor(first.updated_at, first.session_id)
        reads["after"] = await backend.list_sessions(owner=None, query=prefix, limit=100, after=cursor)
    for name in (prefix + session_id for session_id in SESSIONS):
        reads[name] = [await backend.get_session(name), await backend.read(name), await backend.read(name, last=2)]
        reads[name] += [await backend.read(name, start=1, stop=3), await backend.list_quarantined(name)]
        generations = await backend.list_generations(name)
        reads[name] += [
            await backend.read(name, generation=generation.number) for generation in generations
        ] + generations
    order = {}
    for name in (prefix + run_id for run_id in RUNS):
        run = await backend.get_run(name)
        if run is not None:
            order[name] = run.order
            reads[name] = [getattr(run, field) for field in run.__struct_fields__ if field != "order"]
        reads[f"log of {name}"] = [
            await backend.read_journal(name, after=0),
            await backend.read_events(name, after=1, limit=2),
        ]
    reads["order"] = sorted(order, key=lambda name: order[name])
    for name in (prefix + approval_id for approval_id in APPROVALS):
        reads[name] = await backend.get_approval(name)
    reads["approvals"] = await backend.list_approvals(
        status="pending", run_id=prefix + RUNS[0], session_id=None, limit=5, after=""
    )
    reads["leases"] = [await backend.get_lease(prefix + name) for name in LEASES]
    return reads
