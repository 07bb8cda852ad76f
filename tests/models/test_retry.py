"""Retry decisions and ``call_model``. Nothing here sleeps or depends on the real time."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.models import SleepRecorder
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


@settings(max_examples=50)
@given(contexts, decisions, backoffs)
def test_no_policy_overrides_the_four_rules(context: RetryPolicyContext, decision: RetryDecision, backoff: Any) -> None:
    delay = decide_delay(context, decision, backoff=backoff)
    if delay is None:
        return
    assert delay >= 0
    assert decision.retry
    assert context.attempt <= context.max_retries
    assert not context.response_started
    assert not context.normalized.is_abort
    if not decision.approve_unsafe_replay:
        assert context.replay_safety != "unsafe"
        assert context.replay_safety == "safe" or not context.stateful_request


@settings(max_examples=50)
@given(contexts, st.none() | seconds, backoffs)
def test_a_safe_request_is_retried_when_the_policy_decides_so(
    context: RetryPolicyContext, delay: float | None, backoff: Any
) -> None:
    context.attempt, context.max_retries = 1, 1
    context.normalized.is_abort = False
    context.provider_advice = ModelRetryAdvice(replay_safety="safe", retry_after=3.0)
    found = decide_delay(context, RetryDecision(True, delay), backoff=backoff)
    assert found == (3.0 if delay is None else delay)


@given(st.integers(1, 10_000), backoffs, st.floats(0, 1))
def test_a_delay_stays_within_its_limit(attempt: int, backoff: Any, chance: float) -> None:
    delay = compute_backoff(attempt, backoff, rng=lambda: chance)
    limit = 2.0 if backoff is None or backoff.max_delay is None else backoff.max_delay
    assert 0 <= delay <= limit
    assert compute_backoff(attempt, backoff, rng=lambda: 0.0) >= delay


def test_delays_grow() -> None:
    settings = ModelRetryBackoffSettings(initial_delay=1, max_delay=5, multiplier=2, jitter=False)
    assert [compute_backoff(attempt, settings) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


@settings(max_examples=50)
@given(contexts, st.integers(0, 9))
def test_only_a_locked_conversation_has_a_delay_and_at_most_three_times(
    context: RetryPolicyContext, before: int
) -> None:
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


@settings(max_examples=50)
@given(contexts, st.lists(policies, max_size=4))
def test_any_and_all_combine_decisions(context: RetryPolicyContext, chosen: list[Any]) -> None:
    async def decide(policy: Any) -> RetryDecision:
        return RetryDecision.coerce(await maybe_await(policy(context)))

    async def check() -> None:
        each = [await decide(policy) for policy in chosen]
        one, every = await decide(retry_policies.any(*chosen)), await decide(retry_policies.all(*chosen))
        vetoed = any(decision.veto for decision in each)
        assert one.retry == (any(decision.retry for decision in each) and not vetoed)
        assert every.retry == (bool(each) and all(decision.retry for decision in each))
        for together in (one, every):
            if together.retry:
                delays = [decision.delay for decision in each if decision.retry and decision.delay is not None]
                assert together.delay == max(delays, default=None)

    asyncio.run(check())


def test_errors_are_normalized_by_type_and_attributes() -> None:
    class Refused(Exception):
        status_code = 429

    assert normalize_error(Refused("x")).status_code == 429
    assert normalize_error(ConnectionResetError()).is_network_error
    assert normalize_error(TimeoutError()).is_timeout
    assert normalize_error(ModelTimeoutError(3)).is_timeout
    assert normalize_error(UserError("x")).error_code is None


def test_merging_replaces_only_the_facts_that_are_given() -> None:
    first = ModelRetryNormalizedError(status_code=500, message="x")
    second = ModelRetryNormalizedError(is_network_error=True, status_code=None)
    both = first.merge(second)
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
def test_retry_after_is_a_number_or_a_date(headers: Any, expected: float | None) -> None:
    assert parse_retry_after(headers, clock=FakeClock(10.0)) == expected


def make_request(retry: ModelRetrySettings | None, **parts: Any) -> ModelRequest:
    return ModelRequest("x", model_settings=ModelSettings(retry=retry), **parts)


async def test_a_retry_needs_a_number_and_a_policy() -> None:
    always = lambda context: True  # noqa: E731
    for retry in (None, ModelRetrySettings(max_retries=3), ModelRetrySettings(policy=always)):
        model = ScriptedModel([ValueError("no"), [assistant_message("hi")]])
        with pytest.raises(ValueError, match="no"):
            await call_model(model, make_request(retry))
        assert len(model.calls) == 1
    model = ScriptedModel([ValueError("no"), [assistant_message("hi")]])
    answer = await call_model(
        model, make_request(ModelRetrySettings(max_retries=1, policy=always)), sleep=SleepRecorder()
    )
    assert answer.usage.requests == 2


async def test_a_policy_receives_the_attempt_and_may_be_async() -> None:
    contexts: list[RetryPolicyContext] = []

    async def policy(context: RetryPolicyContext) -> RetryDecision:
        contexts.append(context)
        return RetryDecision(True, delay=context.attempt)

    advice = ModelRetryAdvice(reason="busy", normalized=ModelRetryNormalizedError(status_code=503))
    model = ScriptedModel([ModelStep.raise_error(ValueError(str(n)), retry_advice=advice) for n in range(3)])
    sleep = SleepRecorder()
    with pytest.raises(ValueError, match="2"):
        await call_model(model, make_request(ModelRetrySettings(max_retries=2, policy=policy)), sleep=sleep)
    assert [context.attempt for context in contexts] == [1, 2, 3]
    assert {context.normalized.status_code for context in contexts} == {503}
    assert contexts[0].provider_advice == advice
    assert sleep.delays == [1, 2]
    model.assert_complete()


async def test_an_invalid_decision_of_a_policy_is_rejected() -> None:
    model = ScriptedModel([ValueError("no")])
    with pytest.raises(UserError, match="'maybe'"):
        await call_model(model, make_request(ModelRetrySettings(max_retries=1, policy=lambda context: "maybe")))


async def test_a_stateful_request_is_retried_only_when_safe() -> None:
    for safety, repeated in ((None, False), ("unsafe", False), ("safe", True)):
        advice = ModelRetryAdvice(suggested=True, replay_safety=safety)  # type: ignore[arg-type]
        for retry in (None, ModelRetrySettings(max_retries=1, policy=lambda context: True)):
            model = ScriptedModel(
                [ModelStep.raise_error(ValueError("no"), retry_advice=advice), [assistant_message("hi")]]
            )
            request = make_request(retry, previous_response_id="resp_1")
            if repeated:
                await call_model(model, request, sleep=SleepRecorder())
            else:
                with pytest.raises(ValueError, match="no"):
                    await call_model(model, request, sleep=SleepRecorder())
            assert len(model.calls) == 1 + repeated


def test_the_time_limit_does_not_include_the_time_of_emit() -> None:
    model = ScriptedModel([[assistant_message("hi")]])
    emitted = 0

    async def emit(event: Any) -> None:
        nonlocal emitted
        emitted += 1
        await asyncio.sleep(2)

    request = ModelRequest("x", model_settings=ModelSettings(timeout=5))
    assert run_in_virtual_time(call_model(model, request, emit=emit)).items[0]["content"][0]["text"] == "hi"
    assert emitted == 9


def test_a_model_that_times_out_has_ended_before_the_error_is_raised() -> None:
    ended = asyncio.Event()

    async def respond(call: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    request = ModelRequest("x", model_settings=ModelSettings(timeout=5))
    with pytest.raises(ModelTimeoutError):
        run_in_virtual_time(call_model(ScriptedModel([ModelStep.respond(respond)]), request))
    assert ended.is_set()


async def test_a_timeout_error_of_the_model_itself_is_raised_unchanged() -> None:
    model = ScriptedModel([TimeoutError("mine")])
    with pytest.raises(TimeoutError, match="mine"):
        await call_model(model, ModelRequest("x", model_settings=ModelSettings(timeout=60)))
