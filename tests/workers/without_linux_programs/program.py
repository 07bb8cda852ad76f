"""Exercise what workers can do outside of Linux. The argument is an interpreter for them."""

import without_linux  # noqa: F401, I001 - before anything else is imported

import asyncio
import os
import sys
from dataclasses import replace

from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, SessionPool, WorkerSession
from standfast.workers.errors import WorkerRequestFailed, SandboxUnavailable


async def main(python: str) -> None:
    config = SessionConfig(python=python, sandbox=SandboxPolicy(require="plain"))
    print("/proc:", len(os.listdir("/proc")), "mode:", config.mode)
    for policy in (SandboxPolicy(), SandboxPolicy(require="locked")):
        try:
            await WorkerSession(replace(config, sandbox=policy)).start()
        except SandboxUnavailable as problem:
            print("required:", problem)
    async with WorkerSession(config) as session:
        metadata = session.info.metadata
        print("level:", metadata["sandbox"], "features:", *sorted(metadata["features"]))
        await run_code(session)
        await stop_code(session)
        await try_snapshots(session)
        await save_and_restore(session)
    async with SessionPool(PoolConfig(session=config, min_idle=1)) as pool, pool.acquire() as leased:
        assert (await leased.run("1 + 1")).value == 2
    print("done")


async def run_code(session: WorkerSession) -> None:
    assert (await session.run("import os, sys, time; x = 6 * 7; print(sys.platform); x")).value == 42
    written = await session.run("print('a'); sys.stdout.flush(); os.write(1, b'b'); os.system('echo c'); None")
    print("written:", written.stdout)
    failed = await session.run("1 / 0")
    assert failed.error is not None
    assert failed.error.exception_type == "ZeroDivisionError"
    assert (await session.heartbeat()).memory_usage > 0


async def stop_code(session: WorkerSession) -> None:
    for code in ("while True: pass", "time.sleep(60)"):
        running = asyncio.ensure_future(session.run(f"print('begun', flush=True)\n{code}"))
        while not (await session.heartbeat()).busy:
            pass
        assert {name.name for name in await session.namespace()} >= {"x"}
        assert (await session.interrupt()).state == "preserved"
        await running
    assert (await session.run("x")).value == 42


async def try_snapshots(session: WorkerSession) -> None:
    for attempt in (session.snapshot, session.fork):
        try:
            await attempt()
        except WorkerRequestFailed as problem:
            print("refused:", problem)
    result = await session.run("x = 1", transaction="rollback_on_failure")
    assert result.error is not None
    print("transaction:", result.error.exception_message)
    assert (await session.run("x")).value == 42


async def save_and_restore(session: WorkerSession) -> None:
    await session.files.write("note.txt", b"kept")
    saved = await session.checkpoint()
    died = await session.run("os._exit(3)")
    print("died:", died.state, died.reason)
    await session.restart()
    await session.restore(saved)
    assert (await session.run("x")).value == 42
    assert await session.files.read("note.txt") == b"kept"


asyncio.run(main(sys.argv[1]))
