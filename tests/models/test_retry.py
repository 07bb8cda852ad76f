"""Decisions about asking again: nothing here waits, and no clock but the test's is looked at."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import (
    ModelRetryAdvice,
    ModelRetryBackoffSettings,
    ModelRetryNormalizedError,
    ModelRetrySettings,
    ModelSettings,
    ModelTimeoutError,
    RetryDecision,
    RetryPolicyContext,
    UserError,
    retry_policies,
)
from standfast.agents.types import maybe_await
from standfast.models import ModelRequest, call_model
from standfast.models.retry import compute_backoff, decide_delay, get_locked_delay, normalize_error, parse_retry_after
from standfast.testing import FakeClock, ModelStep, ScriptedModel, assistant_message
from standfast.testing.virtual_time import run_in_virtual_time

seconds = st.floats(0, 1000)
advices = st.none() | st.builds(
    ModelRetryAdvice,
    suggested=st.none() | st.booleans(),
    retry_after=st.none() | seconds,
    replay_safety=st.sampled_from([None, "safe", "unsafe"]),
    response_started=st.booleans(),
)
contexts = st.builds(
    RetryPolicyContext,
    error=st.just(ValueError("no")),
    attempt=st.integers(1, 6),
    max_retries=st.integers(0, 5),
    stream=st.booleans(),
    normalized=st.builds(
        ModelRetryNormalizedError,
        status_code=st.none() | st.sampled_from([400, 429, 500]),
        error_code=st.none() | st.just("conversation_locked"),
        retry_after=st.none() | seconds,
        is_abort=st.booleans(),
        is_network_error=st.booleans(),
        is_timeout=st.booleans(),
    ),
    provider_advice=advices,
    previous_response_id=st.none() | st.just("resp_1"),
    conversation_id=st.none() | st.just("conv_1"),
)
decisions = st.builds(
    RetryDecision, retry=st.booleans(), delay=st.none() | seconds, approve_unsafe_replay=st.booleans()
)
backoffs = st.none() | st.builds(
    ModelRetryBackoffSettings,
    initial_delay=st.none() | seconds,
    max_delay=st.none() | seconds,
    multiplier=st.none() | st.floats(0, 10),
    jitter=st.none() | st.booleans(),
)


@given(contexts, decisions, backoffs)
def test_some_things_are_never_repeated(context: RetryPolicyContext, wanted: RetryDecision, backoff: Any) -> None:
    delay = decide_delay(context, wanted, backoff=backoff)
    if delay is None:
        return
    assert delay >= 0
    assert wanted.retry
    assert context.attempt <= context.max_retries
    assert not context.response_started
    assert not context.normalized.is_abort
    if not wanted.approve_unsafe_replay:
        assert context.replay_safety != "unsafe"
        assert context.replay_safety == "safe" or not context.stateful_request


@given(contexts, st.none() | seconds, backoffs)
def test_what_is_wanted_and_harmless_is_repeated(
    context: RetryPolicyContext, delay: float | None, backoff: Any
) -> None:
    context.attempt, context.max_retries = 1, 1
    context.normalized.is_abort = False
    context.provider_advice = ModelRetryAdvice(replay_safety="safe", retry_after=3.0)
    found = decide_delay(context, RetryDecision(True, delay), backoff=backoff)
    assert found == (3.0 if delay is None else delay)


@given(st.integers(1, 10_000), backoffs, st.floats(0, 1))
def test_a_pause_stays_within_its_limit(attempt: int, backoff: Any, chance: float) -> None:
    delay = compute_backoff(attempt, backoff, rng=lambda: chance)
    most = 2.0 if backoff is None or backoff.max_delay is None else backoff.max_delay
    assert 0 <= delay <= most
    assert compute_backoff(attempt, backoff, rng=lambda: 0.0) >= delay


def test_pauses_grow() -> None:
    settings = ModelRetryBackoffSettings(initial_delay=1, max_delay=5, multiplier=2, jitter=False)
    assert [compute_backoff(attempt, settings) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


@given(contexts, st.integers(0, 9))
def test_only_a_locked_conversation_is_waited_for_and_not_for_ever(context: RetryPolicyContext, before: int) -> None:
    delay = get_locked_delay(context, locked_attempts=before)
    locked = context.normalized.error_code == "conversation_locked" and not context.response_started
    assert delay == ([1.0, 2.0, 4.0][before] if locked and before < 3 else None)


policies = st.sampled_from(
    [
        retry_policies.never(),
        retry_policies.network_error(),
        retry_policies.http_status([429, 500]),
        retry_policies.retry_after(),
        retry_policies.provider_suggested(),
    ]
)


@given(contexts, st.lists(policies, max_size=4))
def test_any_and_all_are_what_they_say(context: RetryPolicyContext, chosen: list[Any]) -> None:
    async def judge(policy: Any) -> RetryDecision:
        return RetryDecision.coerce(await maybe_await(policy(context)))

    async def check() -> None:
        each = [await judge(policy) for policy in chosen]
        one, every = await judge(retry_policies.any(*chosen)), await judge(retry_policies.all(*chosen))
        vetoed = any(decision.veto for decision in each)
        assert one.retry == (any(decision.retry for decision in each) and not vetoed)
        assert every.retry == (bool(each) and all(decision.retry for decision in each))
        for together in (one, every):
            if together.retry:
                delays = [decision.delay for decision in each if decision.retry and decision.delay is not None]
                assert together.delay == max(delays, default=None)

    asyncio.run(check())


def test_an_error_is_understood_by_what_it_is() -> None:
    class Refused(Exception):
        status_code = 429

    assert normalize_error(Refused("x")).status_code == 429
    assert normalize_error(ConnectionResetError()).is_network_error
    assert normalize_error(TimeoutError()).is_timeout
    assert normalize_error(ModelTimeoutError(3)).is_timeout
    assert normalize_error(UserError("x")).error_code is None


def test_a_provider_corrects_only_what_it_knows() -> None:
    mine = ModelRetryNormalizedError(status_code=500, message="x")
    better = ModelRetryNormalizedError(is_network_error=True, status_code=None)
    both = mine.merge(better)
    assert (both.status_code, both.message, both.is_network_error, both.is_timeout) == (None, "x", True, False)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_servers_say_when_in_several_ways(headers: Any, expected: float | None) -> None:
    assert parse_retry_after(headers, clock=FakeClock(10.0)) == expected


class Sleeps:
    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def __call__(self, delay: float) -> None:
        self.pauses.append(delay)


def asking(retry: ModelRetrySettings | None, **parts: Any) -> ModelRequest:
    return ModelRequest("x", model_settings=ModelSettings(retry=retry), **parts)


async def test_repeating_needs_a_number_and_a_policy() -> None:
    always = lambda context: True  # noqa: E731
    for retry in (None, ModelRetrySettings(max_retries=3), ModelRetrySettings(policy=always)):
        model = ScriptedModel([ValueError("no"), [assistant_message("hi")]])
        with pytest.raises(ValueError, match="no"):
            await call_model(model, asking(retry))
        assert len(model.calls) == 1
    model = ScriptedModel([ValueError("no"), [assistant_message("hi")]])
    answer = await call_model(model, asking(ModelRetrySettings(max_retries=1, policy=always)), sleep=Sleeps())
    assert answer.usage.requests == 2


async def test_a_policy_sees_the_attempt_and_may_take_its_time() -> None:
    seen: list[RetryPolicyContext] = []

    async def policy(context: RetryPolicyContext) -> RetryDecision:
        seen.append(context)
        return RetryDecision(True, delay=context.attempt)

    advice = ModelRetryAdvice(reason="busy", normalized=ModelRetryNormalizedError(status_code=503))
    model = ScriptedModel([ModelStep.raise_error(ValueError(str(n)), retry_advice=advice) for n in range(3)])
    sleep = Sleeps()
    with pytest.raises(ValueError, match="2"):
        await call_model(model, asking(ModelRetrySettings(max_retries=2, policy=policy)), sleep=sleep)
    assert [context.attempt for context in seen] == [1, 2, 3]
    assert {context.normalized.status_code for context in seen} == {503}
    assert seen[0].provider_advice == advice
    assert sleep.pauses == [1, 2]
    model.assert_complete()


async def test_a_policy_that_says_nonsense_is_named() -> None:
    model = ScriptedModel([ValueError("no")])
    with pytest.raises(UserError, match="'maybe'"):
        await call_model(model, asking(ModelRetrySettings(max_retries=1, policy=lambda context: "maybe")))


async def test_a_request_that_a_server_remembers_is_repeated_only_when_safe() -> None:
    for safety, repeated in ((None, False), ("unsafe", False), ("safe", True)):
        advice = ModelRetryAdvice(suggested=True, replay_safety=safety)  # type: ignore[arg-type]
        for retry in (None, ModelRetrySettings(max_retries=1, policy=lambda context: True)):
            model = ScriptedModel(
                [ModelStep.raise_error(ValueError("no"), retry_advice=advice), [assistant_message("hi")]]
            )
            request = asking(retry, previous_response_id="resp_1")
            if repeated:
                await call_model(model, request, sleep=Sleeps())
            else:
                with pytest.raises(ValueError, match="no"):
                    await call_model(model, request, sleep=Sleeps())
            assert len(model.calls) == 1 + repeated


def test_the_time_of_a_slow_listener_is_not_the_models() -> None:
    model = ScriptedModel([[assistant_message("hi")]])
    listened = 0

    async def emit(event: Any) -> None:
        nonlocal listened
        listened += 1
        await asyncio.sleep(2)

    request = ModelRequest("x", model_settings=ModelSettings(timeout=5))
    assert run_in_virtual_time(call_model(model, request, emit=emit)).items[0]["content"][0]["text"] == "hi"
    assert listened == 9


async def test_a_late_model_is_drained_before_the_error_comes() -> None:
    drained = asyncio.Event()

    async def respond(call: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            drained.set()

    request = ModelRequest("x", model_settings=ModelSettings(timeout=0.01))
    with pytest.raises(ModelTimeoutError):
        await call_model(ScriptedModel([ModelStep.respond(respond)]), request)
    assert drained.is_set()


async def test_a_timeout_of_the_models_own_is_not_ours() -> None:
    model = ScriptedModel([TimeoutError("mine")])
    with pytest.raises(TimeoutError, match="mine"):
        await call_model(model, ModelRequest("x", model_settings=ModelSettings(timeout=60)))
