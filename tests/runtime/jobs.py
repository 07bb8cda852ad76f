"""The programs of the processes in these tests: each function is one process."""

import asyncio
import ctypes
import os
import random
import signal
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import httpx2
import msgspec
from coder_job import coder, make_steps, sandbox_config
from kill_programs import choose_agent, kill_workers, make_notebooks
from notebook_job import make_program, notebook
from shop import LEASE, Ledger, agents, echo
from talker import talker

from standfast import Agent, ApprovalSettled, Runtime, Store, ToolContext, function_tool
from standfast.base.errors import FenceLost
from standfast.history import HistoryCompaction, Trigger
from standfast.runtime import RunHandle
from standfast.server import Principal, Role, create_app
from standfast.store.operations import AppendVersions
from standfast.store.urls import open_backend
from standfast.testing import CrashingBackend
from standfast.workers import PoolConfig, PythonSessions, SessionPool

COMPACTION = HistoryCompaction(
    summarise=lambda items: f"about {len(items)} items", trigger=Trigger(items=6), keep_last=3
)


def choose_lease(point: str) -> float:
    """Return a short lease for a process that is killed. One that counts its commits loses none on a busy machine."""
    return LEASE if point else 60.0


async def charge(url: str, ledger: str, scenario: str, point: str, key: str | None = None) -> None:
    """Drive the run of a scenario to its end, approving what it asks, and die at the point on the way.

    ``point`` is what :class:`CrashingBackend` takes, or ``tool:before:n`` and ``tool:after:n`` for a death inside the
    tool, around its effect for order ``n``. In the end it prints how many commits there were.
    """
    inside = point.removeprefix("tool:") if point.startswith("tool:") else ""
    backend = await open_backend(url)
    counted: Any = CrashingBackend(backend, "" if inside else point)
    known = agents(Ledger(ledger, deadly=inside), scenario)
    async with Runtime.open(Store(counted), agents=known, lease=choose_lease(point), encryption_key=key) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        while not await _ended(runtime, run, scenario):
            pass
    await backend.close()
    print(counted.commit_count, flush=True)


async def _ended(runtime: Runtime, run: RunHandle, scenario: str) -> bool:
    if scenario == "streamed":
        async for _ in run.events():
            pass
    outcome = await run.wait()
    for asked in outcome.approvals:
        await runtime.decide(asked.id, "approve", by="the process")
    return outcome.status == "completed"


async def decide_and_die(url: str, approval_id: str, way: str, point: str) -> None:
    """Approve a call in this process, or through a server in it, and die at the point on the way."""
    backend = await open_backend(url)
    crashing: Any = CrashingBackend(backend, point)
    async with Runtime.open(Store(crashing)) as runtime:
        if way == "library":
            await runtime.decide(approval_id, "approve", by="eve")
        else:
            transport = httpx2.ASGITransport(app=create_app(runtime, auth=[Eve()]))
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                answer = await client.post(f"/approvals/{approval_id}", json={"decision": "approve"})
                assert answer.status_code == 200, answer.text
    await backend.close()


class Eve:
    """Takes every request for one of Eve, who may decide."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return Principal(subject="eve", role=Role.APPROVER, owner="eve", method="token")


async def rekey(url: str, point: str, *keys: str) -> None:
    """Encrypt the runs of the store again with the first key, and die at the point on the way."""
    backend = await open_backend(url)
    crashing: Any = CrashingBackend(backend, point)
    async with Runtime.open(Store(crashing), encryption_key=keys) as runtime:
        await runtime.rekey()
    await backend.close()


async def follow(url: str, run_id: str) -> None:
    """Print the number and the type of every event of a run that another process drives."""
    async with Runtime.open(url) as runtime:
        async for event in (await runtime.run(run_id)).events():
            print(event.seq, event.type, flush=True)


async def stall(url: str) -> None:
    """Stay in a tool, to be paused there and continued when another process owns the run."""
    begun = asyncio.Event()

    @function_tool
    async def charge(order: str) -> str:
        begun.set()
        print("inside the tool", flush=True)
        await asyncio.sleep(60)
        return "too late"

    [shop] = agents(Ledger(os.devnull))
    await _lose(url, shop.clone(tools=[charge]), begun)


async def block(url: str, ledger: str, passed: str) -> None:
    """Stay in a tool that blocks the event loop until another process has the run: then a file exists."""
    book, begun = Ledger(ledger), asyncio.Event()

    @function_tool
    async def charge(ctx: ToolContext[Any], order: str) -> str:
        begun.set()
        print("inside the tool", flush=True)
        while not os.path.exists(passed):  # noqa: ASYNC240
            time.sleep(0.01)  # noqa: ASYNC251 - this is what is tested
        return book.charge(ctx.idempotency_key, order)

    [shop] = agents(book)
    await _lose(url, shop.clone(tools=[charge]), begun)


async def _lose(url: str, shop: Agent[Any], begun: asyncio.Event) -> None:
    """Begin a run, be inside of its tool, and tell when it has passed on to another process."""
    async with Runtime.open(url, agents=[shop], lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        await begun.wait()
        while run.local:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
        print("passed on", flush=True)


async def _together(go: str) -> None:
    """Wait until all the processes of a test may begin."""
    print("ready", flush=True)
    while not os.path.exists(go):  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.001)


async def talk(url: str, go: str, name: str, count: int) -> None:
    """Start many runs on one session at the same time, and wait until all of them have ended."""
    async with Runtime.open(url, agents=[echo()], lease=2.0) as runtime:
        await _together(go)
        said = [f"{name}{n}" for n in range(count)]
        runs = await asyncio.gather(*(runtime.start("echo", text, session_id="s") for text in said))
        outcomes = await asyncio.gather(*(run.wait() for run in runs))
        assert {outcome.status for outcome in outcomes} == {"completed"}
        assert [outcome.final_output for outcome in outcomes] == [f"echo {text}" for text in said]


async def charge_once(url: str, go: str, ledger: str, scenario: str) -> None:
    """Ask for the same run as the other processes, resume it, and wait for it. No lease expires on a busy machine."""
    async with Runtime.open(url, agents=agents(Ledger(ledger), scenario), lease=300) as runtime:
        await _together(go)
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        run = await runtime.resume(run.id)
        print(run.id, (await run.wait()).final_output, flush=True)


async def decide(url: str, go: str, approval_id: str, verdict: str, by: str) -> None:
    """Answer a question that others answer too."""
    async with Runtime.open(url, lease=LEASE) as runtime:
        await _together(go)
        try:
            await runtime.decide(approval_id, verdict, by=by)
            print("decided", flush=True)
        except ApprovalSettled as refused:
            print("settled", refused.status, refused.by, flush=True)


async def ask_with_compaction(url: str, point: str, key: str | None = None) -> None:
    """Ask one question in a long session, and die at the point. In the end it prints how many commits there were."""
    backend = await open_backend(url)
    counted: Any = CrashingBackend(backend, point)
    options: dict[str, Any] = {"lease": choose_lease(point), "encryption_key": key, "compaction": COMPACTION}
    async with Runtime.open(Store(counted), agents=[echo()], **options) as runtime:
        run = await runtime.start("echo", "the question", session_id="s", key="question-1")
        await run.wait()
    await backend.close()
    print(counted.commit_count, flush=True)


async def compute(url: str, seed: int, length: int, point: str, session_id: str, key: str) -> None:
    """Run a random program in a durable run, and die at a commit on the way; then print the number of commits."""
    backend = await open_backend(url)
    counted: Any = CrashingBackend(backend, point)
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool,
        Runtime.open(
            Store(counted), agents=[notebook(pool, make_program(seed, length))], lease=choose_lease(point)
        ) as runtime,
    ):
        run = await runtime.start("notebook", "go", session_id=session_id, key=key)
        await run.wait()
    await backend.close()
    print(counted.commit_count, flush=True)


async def command(url: str, point: str) -> None:
    """Run commands in the sandbox of a durable run, and wait for ever inside or after the second one."""
    agent = coder(make_steps(), hang=point)
    async with Runtime.open(url, agents=[agent], lease=LEASE, run_config=sandbox_config()) as runtime:
        run = await runtime.start("coder", "go", session_id="s", key="k")
        await run.wait()


async def append_late(url: str) -> None:
    """Run a cell, and stop before the version that it made is written. Go on with the same conversation later."""

    class StoppingBackend(CrashingBackend):
        is_armed = False

        async def commit(self, *ops: Any) -> Any:
            if self.is_armed and any(isinstance(op, AppendVersions) and op.versions for op in ops):
                self.is_armed = False
                print("stops", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            return await super().commit(*ops)

    backend: Any = StoppingBackend(await open_backend(url), "")
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool:
        sessions = PythonSessions(pool, store=Store(backend))
        await sessions.run("n = 1", key="talk")
        await sessions.save("talk")
        backend.is_armed = True
        try:
            await sessions.run("n += 1", key="talk")
        except FenceLost as problem:
            print(problem.code, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        print((await sessions.run("n += 1; n", key="talk")).as_text().splitlines()[-1], flush=True)
        sessions.close()
    await backend.backend.close()


async def compute_killed(
    url: str, programs: dict[str, int], folder: str, kills: list[str], point: str, origins: dict[str, str]
) -> None:
    """Run random programs, by name and number, in durable runs while processes of their workers are killed.

    Those in ``origins`` continue another run: in a fork of it, or in its own session after that was rewound. Dies at a
    commit on the way. ``folder`` is where its workers have their directories, and where this is allowed it has a
    network of its own, as on another machine. Ends when the runs do.
    """
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    tempfile.tempdir = folder
    backend = await open_backend(url)
    counted: Any = CrashingBackend(backend, point)
    killer = asyncio.create_task(kill_workers(random.Random(f"{folder} {point}"), kills))

    async def open_run(name: str, seed: int) -> RunHandle:
        origin = origins.get(name)
        if origin is None or origin == name:
            key = name if origin is None else f"{name} rewound"
            return await runtime.start(choose_agent(seed), str(seed), session_id=name, key=key, max_turns=500)
        if forks := await runtime.runs(session_id=name):
            return await runtime.run(forks[0].run_id)
        [info] = await runtime.runs(session_id=origin)
        events = (await runtime.run(info.run_id)).events()
        steps = [event.seq async for event in events if event.type == "calls.made"]
        return await runtime.fork(info.run_id, at=steps[seed % len(steps)], session_id=name)

    async def compute(name: str, seed: int) -> None:
        run = await open_run(name, seed)
        while (outcome := await run.wait()).status == "waiting":  # too many processes were killed at one step
            run = await runtime.resume(run.id)
        print("outcome", name, outcome.status, outcome.error or "", flush=True)

    # Turns cost nothing here: while the pool refuses to start workers, a run would use up all that it has.
    limits = PoolConfig(min_idle=0, max_sessions=len(programs) + 1, breaker_backoff=0.01, breaker_backoff_limit=0.1)
    async with (
        SessionPool(limits) as pool,
        Runtime.open(Store(counted), agents=make_notebooks(pool), lease=LEASE) as runtime,
    ):
        async with asyncio.TaskGroup() as group:
            for name, seed in programs.items():
                group.create_task(compute(name, seed))
        killer.cancel()
    await backend.close()


async def drive_talker(url: str, folder: str, options: dict[str, Any], live: bool = True, lease: float = 30.0) -> None:
    """Drive a run of the talker, which another process starts, or continue one that it has begun."""
    key, name = options.pop("encryption_key", None), options.pop("name", "talk")
    agents = [talker(folder, **options)]
    async with Runtime.open(url, agents=agents, live=live, lease=lease, encryption_key=key) as runtime:
        run = await runtime.start("talker", "go", key=name)
        print("run", run.id, flush=True)
        print((await run.wait()).status, flush=True)
        await asyncio.sleep(3600)  # it may be asked for what was missed


async def listen(url: str, run_id: str, path: str) -> None:
    """Write the events of a run, whoever drives it, to a file as JSON."""
    with open(path, "w") as file:  # noqa: ASYNC230
        async with Runtime.open(url) as runtime:
            async for event in (await runtime.run(run_id)).events(until="end"):
                print(msgspec.json.encode(event).decode(), file=file)
