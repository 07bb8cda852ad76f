"""The pool with real workers, and the pool policy without."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories.workers import wait_until
from standfast.base.errors import Closed, InvalidInput
from standfast.workers import (
    PoolBroken,
    PoolConfig,
    PoolExhausted,
    SandboxPolicy,
    SessionConfig,
    SessionPool,
    SessionState,
    WorkerError,
    python_function,
)
from standfast.workers.pool_policy import (
    AssignSession,
    CircuitBreaker,
    IdleSession,
    PoolStatus,
    RetireSession,
    StartSessions,
    plan_actions,
)

SESSION = SessionConfig(sandbox=SandboxPolicy(require="namespaces"))


def config(**changes) -> PoolConfig:
    return PoolConfig(**{"session": SESSION, "min_idle": 1, "max_sessions": 4, **changes})


async def test_warm_sessions_are_assigned_to_callers():
    async with SessionPool(config(min_idle=2)) as pool:
        assert pool.info()["idle"] == 2
        async with pool.acquire(timeout=60) as session:
            assert (await session.run("40 + 2")).value == 42
        assert pool.metrics["pool_hits"] == 1


async def test_a_session_in_the_pool_is_idle():
    async with SessionPool(config()) as pool:
        item = next(iter(pool._idle.values()))
        assert item.session.state is SessionState.IDLE


async def test_a_session_is_never_given_to_a_second_owner():
    async with SessionPool(config(max_sessions=2)) as pool:
        seen = set()
        for _ in range(5):
            async with pool.acquire(timeout=60) as session:
                assert session.session_id not in seen
                seen.add(session.session_id)
                assert (await session.run("'mark' in dir()")).value is False
                await session.run("mark = 1")


async def test_the_pool_starts_new_sessions_for_leased_ones():
    async with SessionPool(config(min_idle=2, max_sessions=3)) as pool, pool.acquire():
        await wait_until(lambda: pool.info()["idle"] == 2)
        assert pool.info()["leased"] == 1


async def test_there_are_never_more_sessions_than_allowed():
    async with SessionPool(config(min_idle=0, max_sessions=2)) as pool:
        async with pool.acquire(), pool.acquire():
            with pytest.raises(PoolExhausted):
                async with pool.acquire(timeout=0.05):
                    pass
        assert pool.metrics["acquisition_timeouts"] == 1


async def test_waiting_callers_are_served_in_order():
    order = []

    async def use(n):
        async with pool.acquire(timeout=60):
            order.append(n)

    async with SessionPool(config(min_idle=0, max_sessions=1)) as pool:
        tasks = []
        for n in range(5):
            tasks.append(asyncio.create_task(use(n)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    assert order == list(range(5))


async def test_too_many_waiting_callers_are_refused_at_once():
    async with SessionPool(config(min_idle=0, max_sessions=1, max_waiting=1)) as pool:
        async with pool.acquire():
            waiting = asyncio.create_task(pool.lease(timeout=60))
            await asyncio.sleep(0)
            with pytest.raises(PoolExhausted, match="already waiting"):
                await pool.lease(timeout=60)
        pool.release(await waiting)


async def test_a_caller_that_gives_up_does_not_lose_a_session_for_the_others():
    async with SessionPool(config(min_idle=0, max_sessions=1)) as pool:
        first = await pool.lease()
        impatient = asyncio.create_task(pool.lease())
        patient = asyncio.create_task(pool.lease(timeout=60))
        await asyncio.sleep(0)
        impatient.cancel()
        pool.release(first)
        pool.release(await patient)
        assert impatient.cancelled()


async def test_stopping_wakes_every_waiter():
    pool = SessionPool(config(min_idle=0, max_sessions=1, drain_timeout=0.05))
    await pool.start()
    held = await pool.lease()
    waiting = [asyncio.create_task(pool.lease()) for _ in range(3)]
    await asyncio.sleep(0)
    await pool.close()
    for task in waiting:
        with pytest.raises(Closed):
            await task
    assert held.state is SessionState.TERMINATED
    with pytest.raises(Closed):
        await pool.lease()


async def test_stopping_lets_leases_finish_within_the_drain_time():
    pool = SessionPool(config(drain_timeout=1000))
    await pool.start()
    session = await pool.lease()
    stopping = asyncio.create_task(pool.close())
    assert (await session.run("1")).value == 1
    pool.release(session)
    await stopping


async def test_a_foreign_or_second_release_is_an_error():
    async with SessionPool(config()) as pool:
        session = await pool.lease()
        pool.release(session)
        with pytest.raises(WorkerError):
            pool.release(session)


async def test_a_dead_idle_session_is_replaced():
    async with SessionPool(config(min_idle=1)) as pool:
        victim = next(iter(pool._idle.values())).session
        await victim.run("import os; os._exit(1)")
        async with pool.acquire(timeout=60) as session:
            assert session is not victim
            assert (await session.run("1")).value == 1
        assert pool.metrics["retired_dead"] == 1


async def test_a_health_check_finds_sessions_that_do_not_answer():
    async with SessionPool(config(min_idle=1)) as pool:
        victim = next(iter(pool._idle.values())).session
        await victim.run("import os, threading; threading.Timer(0.01, lambda: os._exit(1)).start()")
        await wait_until(lambda: not victim.is_alive)
        await pool.check_health()
        await wait_until(lambda: pool.info()["idle"] == 1)
        assert victim.session_id not in pool._idle


async def test_idle_sessions_above_the_memory_budget_are_retired():
    async with SessionPool(config(min_idle=1, memory_budget_mb=1)) as pool:
        await pool.check_health()
        assert pool.metrics["retired_memory"] == 1


@pytest.mark.parametrize("paths", [("data",), "/data", (7,), ["/data"]])
def test_a_path_that_is_not_absolute_is_refused_before_any_worker_starts(paths):
    with pytest.raises(InvalidInput, match="readable"):
        SandboxPolicy(readable=paths)


def test_a_list_of_hosts_that_is_no_tuple_is_refused_before_any_worker_starts():
    with pytest.raises(InvalidInput, match="tuple of host names"):
        SandboxPolicy(network=["api.example.org"])


async def test_workers_that_do_not_start_are_logged(caplog):
    broken = SessionConfig(sandbox=SandboxPolicy(level="plain"), warmup_code="1/0")
    async with SessionPool(config(session=broken, min_idle=0, breaker_threshold=2, breaker_backoff=30)) as pool:
        with pytest.raises(PoolBroken):
            await pool.lease(timeout=60)
    [logged] = [record.getMessage() for record in caplog.records if record.name.startswith("standfast.workers")]
    assert "ZeroDivisionError" in logged


async def test_workers_that_do_not_start_open_the_breaker():
    broken = SessionConfig(sandbox=SandboxPolicy(level="plain"), warmup_code="1/0")
    async with SessionPool(
        config(session=broken, min_idle=0, breaker_threshold=2, breaker_backoff=30, breaker_backoff_limit=30)
    ) as pool:
        with pytest.raises(PoolBroken) as caught:
            await pool.lease(timeout=60)
        assert caught.value.retry_after > 10
        assert "ZeroDivisionError" in caught.value.last_error
        with pytest.raises(PoolBroken):
            await pool.lease()


async def test_a_pool_works_in_spawn_mode_too():
    async with SessionPool(config(session=SessionConfig(mode="spawn"))) as pool:
        async with pool.acquire(timeout=60) as session:
            assert (await session.run("1")).value == 1


async def test_a_python_function_keeps_variables_and_reports_their_loss():
    async with SessionPool(config()) as pool:
        run_python = python_function(pool)
        assert await run_python("x = 20\nprint('set')") == "set"
        assert await run_python("x + 1") == "21"
        assert "ZeroDivisionError" in await run_python("1/0")
        assert "all variables are gone" in await run_python("import os; os._exit(1)")
        assert "NameError" in await run_python("x")
        run_python.sessions.close()


async def test_each_conversation_has_its_own_python():
    from standfast.workers.python_sessions import current_conversation

    async with SessionPool(config()) as pool:
        run_python = python_function(pool)

        async def talk(name):
            current_conversation.set(name)
            await run_python(f"me = {name!r}")
            await asyncio.sleep(0.01)
            return await run_python("me")

        assert await asyncio.gather(talk("ann"), talk("bob")) == ["'ann'", "'bob'"]
        run_python.sessions.close()


@pytest.mark.parametrize(
    "wrong", [{"min_idle": 5, "max_sessions": 2}, {"max_sessions": 0}, {"min_idle": -1}, {"idle_timeout": 0}]
)
def test_an_invalid_configuration_is_refused(wrong):
    with pytest.raises(InvalidInput):
        PoolConfig(**wrong)


idles = st.lists(
    st.builds(
        IdleSession,
        id=st.uuids().map(str),
        is_alive=st.booleans(),
        age=st.floats(0, 10_000),
        idle_for=st.floats(0, 1000),
        memory=st.integers(0, 50 << 20),
    ),
    max_size=12,
    unique_by=lambda idle: idle.id,
)
views = st.builds(
    PoolStatus,
    idle=idles.map(tuple),
    starting=st.integers(0, 6),
    leased=st.integers(0, 6),
    waiting=st.integers(0, 10),
    leased_memory=st.integers(0, 200 << 20),
    retry_after=st.sampled_from([0.0, 0.0, 3.0]),
    is_draining=st.booleans(),
)
configs = st.builds(
    lambda low, more, budget: PoolConfig(min_idle=low, max_sessions=low + more, memory_budget_mb=budget),
    st.integers(0, 4),
    st.integers(1, 8),
    st.sampled_from([None, 10, 100]),
)


@given(configs, views)
def test_the_pool_policy_keeps_its_promises(config, view):
    actions = plan_actions(config, view)
    given_, retired = ([a.id for a in actions if isinstance(a, kind)] for kind in (AssignSession, RetireSession))
    started = sum(a.count for a in actions if isinstance(a, StartSessions))
    living = {idle.id for idle in view.idle if idle.is_alive}
    assert len(set(given_) | set(retired)) == len(given_) + len(retired), "one fate per session"
    assert set(given_) <= living
    assert len(given_) <= view.waiting
    if view.is_draining:
        assert (given_, started) == ([], 0)
        assert set(retired) == {idle.id for idle in view.idle}
        return
    assert not (living - set(given_) - set(retired) and len(given_) < view.waiting), (
        "no caller waits while a session is idle"
    )
    if started:
        assert view.retry_after == 0
        assert view.total - len(retired) + started <= config.max_sessions
    assert {idle.id for idle in view.idle if not idle.is_alive} <= set(retired)


@given(st.integers(1, 10), st.floats(0.01, 5), st.lists(st.booleans(), max_size=60))
def test_the_breaker_opens_after_the_threshold_and_waits_longer_each_time(threshold, backoff, outcomes):
    config = PoolConfig(breaker_threshold=threshold, breaker_backoff=backoff, breaker_backoff_limit=30.0)
    breaker, row, last = CircuitBreaker(), 0, 0.0
    for failed in outcomes:
        breaker = breaker.record_failure(config, 100.0, "why") if failed else breaker.record_success()
        row = row + 1 if failed else 0
        pause = breaker.get_retry_delay(100.0)
        assert (pause > 0) == (row >= threshold)
        assert pause <= 30.0 + 1e-6
        assert not failed or pause >= last or row == 1
        last = pause


def test_min_idle_sessions_are_not_retired_for_being_idle():
    config = PoolConfig(min_idle=2, max_sessions=5, idle_timeout=60)
    stock = tuple(IdleSession(str(n), idle_for=100) for n in range(4))
    actions = plan_actions(config, PoolStatus(idle=stock))
    assert [a.id for a in actions if isinstance(a, RetireSession)] == ["0", "1"]
    assert not any(isinstance(a, StartSessions) for a in actions)


async def test_a_cancelled_task_can_still_lease_a_session():
    async with SessionPool(config()) as pool:

        async def cleaning_up():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                async with pool.acquire(timeout=60) as session:
                    return (await session.run("6 * 7")).value

        task = asyncio.create_task(cleaning_up())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == 42
