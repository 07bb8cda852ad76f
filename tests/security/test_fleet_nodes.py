"""A pool and its nodes, without Ray: forged answers of a node, other pools, and what a worker sends through its node."""

import asyncio
import concurrent.futures
import contextlib
import tracemalloc

import msgspec
import pytest

from factories.runtime import wait_for
from standfast import StandfastError
from standfast.fleet._node import wire
from standfast.fleet._node.link import NodeLink
from standfast.fleet._node.supervisor import NodeSupervisor
from standfast.fleet._node.wire import (
    EncodedError,
    NodeReport,
    Reply,
    SessionBrief,
    decode,
    decode_reply,
    encode,
    encode_config,
)
from standfast.fleet.cluster import ClusterNode
from standfast.fleet.files import RemoteCapture
from standfast.fleet.session import RemoteWorkerSession
from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, WorkerDied
from standfast.workers.errors import CaptureFailed
from standfast.workers.wire.manifests import hash_chunk

MB = 1 << 20
CONFIG = PoolConfig(
    session=SessionConfig(sandbox=SandboxPolicy(require="plain")), min_idle=0, max_sessions=2, drain_timeout=1.0
)


class Reference:
    """What a remote call returns: ``future()`` has the answer."""

    def __init__(self, work):
        self._work = work

    def future(self):
        answer = concurrent.futures.Future()
        task = asyncio.ensure_future(self._work)
        task.add_done_callback(lambda done: answer.set_result(done.result()))
        return answer


class Method:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def options(self, **_):
        return self

    def remote(self, *arguments):
        return Reference(self._answer(*arguments))

    async def _answer(self, *arguments):
        answer = await getattr(self.actor.supervisor, self.name)(*arguments)
        return self.actor.forge(arguments[-2], answer)


class Actor:
    """The actor of a node, in this process. ``forge`` gets each method and answer, and returns what is answered."""

    def __init__(self, supervisor):
        self.supervisor = supervisor
        self.call, self.control = Method(self, "call"), Method(self, "control")
        self.forge = lambda method, answer: answer

    def link(self, client="pool"):
        return NodeLink(ClusterNode("node", "127.0.0.1", True), self, client, lambda _: None)


@pytest.fixture
async def actor():
    supervisor = NodeSupervisor(encode_config(CONFIG), "node", True)
    actor = Actor(supervisor)
    await actor.link().call("", "heartbeat", None, NodeReport)
    yield actor
    actor.forge = lambda method, answer: answer
    await actor.link().control("", "leave", None, type(None))
    supervisor._sweeper.cancel()
    await asyncio.wait([supervisor._sweeper])
    await supervisor._pool.close()


@pytest.fixture
async def session(actor):
    link = actor.link()
    leased, _ = await link.call("", "lease", 60.0, wire.Leased)
    return RemoteWorkerSession(CONFIG.session, link, leased)


FORGED = {
    "no bytes": "text",
    "nothing": None,
    "no message": b"",
    "garbage": b"\xc1\xff",
    "another message": encode([1, 2, 3]),
    "nested arrays": b"\x91" * 100_000,
    "an error without fields": encode(Reply(fault=EncodedError("WorkerDied", ()))),
    "an error with a wrong field": encode(Reply(fault=EncodedError("WorkerDied", (7,)))),
    "an error with too many fields": encode(Reply(fault=EncodedError("PoolBroken", (1, 2, 3, 4)))),
    "an error of an unknown class": encode(Reply(fault=EncodedError("os.system", ("id",)))),
    "a value of another type": encode(Reply(msgspec.Raw(encode([[1]])))),
    "many values": encode(Reply(msgspec.Raw(b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x80" * 1_000_000))),
    "an unknown state": encode(Reply(msgspec.Raw(b"\xc0"), None, SessionBrief("no such state", True))),
}


@pytest.mark.parametrize("answer", FORGED.values(), ids=FORGED)
async def test_a_forged_answer_is_an_error_of_the_call(actor, session, answer):
    actor.forge = lambda method, real: answer
    for work in (session.run("1"), session.namespace(), session.files.read("x"), session.snapshot(), session.capture()):
        with pytest.raises(StandfastError):
            await wait_for(work)
    actor.forge = lambda method, real: real
    assert (await session.run("6 * 7")).value == 42


def replace_chunks(change):
    """Return a forger that changes the chunks of a capture, a list of digests and data."""

    def forge(method, answer):
        if method != "next_chunks":
            return answer
        reply = decode_reply(answer)
        batch = decode(reply.value, wire.CaptureBatch)
        changed = wire.CaptureBatch(change(batch.chunks), batch.manifest)
        return encode(msgspec.structs.replace(reply, value=msgspec.Raw(encode(changed))))

    return forge


OTHERS = b"content of another conversation"
CHUNKS = {
    "another content under a digest": lambda chunks: [(digest, b"\x00forged") for digest, _ in chunks],
    "a content of no conversation": lambda chunks: [*chunks, (hash_chunk(OTHERS).digest(), b"\x00" + OTHERS)],
    "one twice": lambda chunks: [*chunks, chunks[0]],
    "one too few": lambda chunks: chunks[1:],
    "an unknown encoding": lambda chunks: [(digest, b"\x07" + data) for digest, data in chunks],
}


@pytest.mark.parametrize("change", CHUNKS.values(), ids=CHUNKS)
async def test_chunks_that_a_node_forges_are_not_stored(actor, session, change):
    await session.run("x = b'a' * 3_000_000; open('f', 'w').write('text' * 1000)")
    actor.forge = replace_chunks(change)
    async with await session.capture() as capture:
        with pytest.raises(CaptureFailed, match="not captured"):
            _ = [chunk async for chunk in capture]
        with pytest.raises(CaptureFailed):
            assert capture.manifest is None


async def test_a_capture_of_more_than_was_asked_for_is_refused(session):
    await session.run("import os; x = os.urandom(3_000_000)")
    name = await session.call("start_capture", wire.StartCapture(None, (), 100 * MB, 60.0), str)
    with pytest.raises(CaptureFailed, match="more than"):
        async for _ in RemoteCapture(session, name, known=frozenset(), max_bytes=2 * MB):
            pass


async def test_another_pool_cannot_end_a_session_by_the_request_that_leased_it(actor, session):
    (served,) = actor.supervisor._sessions.values()
    await actor.link("other").control("", "abort", served.request_id, type(None))
    assert (await session.run("6 * 7")).value == 42


@pytest.mark.parametrize("method", ["run", "checkpoint", "read_file", "terminate", "start_capture", "fork", "describe"])
async def test_another_pool_cannot_use_a_session(actor, session, method):
    with pytest.raises(WorkerDied):
        await actor.link("other").call(session.session_id, method, wire.Named(), msgspec.Raw)
    assert (await session.run("6 * 7")).value == 42


FLOOD = """
import os, sys
from standfast.workers.child.loop import WorkerLoop
from standfast.workers.wire import messages as m
frame = sys._getframe()
while not isinstance(frame.f_locals.get("self"), WorkerLoop):
    frame = frame.f_back
worker = frame.f_locals["self"]
worker.channel.flush()
payload = m.encode(m.DisplayMessage(data={"a": [{} for _ in range(14_000)]}, execution_id=worker.current_execution))
for _ in range(60):
    rest = len(payload).to_bytes(4, "big") + payload
    while rest: rest = rest[os.write(3, rest):]
"""


async def test_displays_of_many_small_parts_are_counted_by_their_memory(session):
    tracemalloc.start()
    with contextlib.closing(contextlib.ExitStack()) as owned:
        owned.callback(tracemalloc.stop)
        result = await session.run(FLOOD, timeout=120, on_message=lambda message: None)
        assert result.dropped["displays"] > 20
        assert tracemalloc.get_traced_memory()[1] < 60 * MB
