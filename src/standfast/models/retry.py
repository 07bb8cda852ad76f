"""Retry decisions for failed requests; :func:`~standfast.models.request.call_model` carries them out.

Policies cannot override four rules. A request is never retried after output was emitted, after the caller aborted it,
or more than ``max_retries`` times; and a request that may already have changed state on the server is retried only if
the provider declares that safe or the policy sets ``approve_unsafe_replay``.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias

from standfast.agents.errors import ModelTimeoutError, UserError
from standfast.agents.model_settings import ModelRetryBackoffInput, ModelRetryBackoffSettings, ModelRetrySettings
from standfast.agents.types import maybe_await
from standfast.base.errors import StandfastError
from standfast.base.text import describe_error
from standfast.base.time import Clock, system_clock
from standfast.models.interface import IncompleteStream, ResponseFailed

ReplaySafety: TypeAlias = Literal["safe", "unsafe"]

INITIAL_DELAY, MAX_DELAY, MULTIPLIER = 0.25, 2.0, 2.0

# A conversation is locked while another request writes to it. The request was rejected, so repeating it is safe.
CONVERSATION_LOCKED = "conversation_locked"
LOCKED_DELAYS = (1.0, 2.0, 4.0)

# Errors of openai, httpx and their successors, by name.
_TIMEOUT_ERRORS = frozenset(["APITimeoutError", "TimeoutException"])
_NETWORK_ERRORS = frozenset(["APIConnectionError", "TransportError"])

_UNSET: Any = object()


@dataclass(init=False)
class ModelRetryNormalizedError:
    """The facts about an error, independent of the library that raised it.

    It remembers which facts were passed to the constructor, so that :meth:`merge` replaces only those.
    """

    status_code: int | None = None
    error_code: str | None = None
    message: str | None = None
    request_id: str | None = None
    retry_after: float | None = None
    is_abort: bool = False
    is_network_error: bool = False
    is_timeout: bool = False

    def __init__(
        self,
        status_code: int | None = _UNSET,
        error_code: str | None = _UNSET,
        message: str | None = _UNSET,
        request_id: str | None = _UNSET,
        retry_after: float | None = _UNSET,
        is_abort: bool = _UNSET,
        is_network_error: bool = _UNSET,
        is_timeout: bool = _UNSET,
    ) -> None:
        facts = locals()
        self._fields_set = [name for name in self.__dataclass_fields__ if facts[name] is not _UNSET]
        for name in self._fields_set:
            setattr(self, name, facts[name])

    def merge(self, other: "ModelRetryNormalizedError | None") -> "ModelRetryNormalizedError":
        """Return a copy in which the facts that ``other`` has replace those of this error."""
        if other is None:
            return self
        facts = {name: getattr(self, name) for name in self._fields_set}
        return ModelRetryNormalizedError(**facts | {name: getattr(other, name) for name in other._fields_set})


@dataclass
class ModelRetryAdvice:
    """A provider's advice on retrying a request. ``replay_safety`` is ``safe`` if the request had no effect."""

    suggested: bool | None = None
    retry_after: float | None = None
    replay_safety: ReplaySafety | None = None
    reason: str | None = None
    normalized: ModelRetryNormalizedError | None = None
    response_started: bool = False


@dataclass
class ModelRetryAdviceRequest:
    """A failed attempt on which a provider is asked for advice. ``attempt`` counts from 1."""

    error: Exception
    attempt: int
    stream: bool
    previous_response_id: str | None = None
    conversation_id: str | None = None

    @property
    def stateful(self) -> bool:
        """Whether the provider keeps the conversation of the request."""
        return bool(self.previous_response_id or self.conversation_id)


@dataclass
class RetryDecision:
    """The decision of a policy. Without a ``delay`` the server's ``Retry-After`` or the backoff determines it."""

    retry: bool
    delay: float | None = None
    reason: str | None = None
    approve_unsafe_replay: bool = False
    veto: bool = False

    @classmethod
    def coerce(cls, value: Any) -> "RetryDecision":
        """Return the decision that a policy's value means."""
        if isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls(value)
        raise UserError(f"a retry policy must return a bool or a RetryDecision, got {value!r}")


@dataclass
class RetryPolicyContext:
    """The argument of a policy: a failed attempt. ``attempt`` counts from 1."""

    error: Exception
    attempt: int
    max_retries: int
    stream: bool
    normalized: ModelRetryNormalizedError
    provider_advice: ModelRetryAdvice | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None

    @property
    def replay_safety(self) -> ReplaySafety | None:
        """Whether the provider says that the request can be repeated safely."""
        return None if self.provider_advice is None else self.provider_advice.replay_safety

    @property
    def response_started(self) -> bool:
        """Whether output of the model was already emitted."""
        return self.provider_advice is not None and self.provider_advice.response_started

    @property
    def stateful_request(self) -> bool:
        """Whether the server keeps the conversation, so that a repeated request may be recorded twice."""
        return bool(self.previous_response_id or self.conversation_id)


RetryPolicy: TypeAlias = Callable[
    [RetryPolicyContext], bool | RetryDecision | Awaitable[bool] | Awaitable[RetryDecision]
]


class RetryPolicies:
    """The predefined policies. Each method returns a function of a :class:`RetryPolicyContext`."""

    def never(self) -> RetryPolicy:
        """Do not retry."""
        return lambda context: False

    def provider_suggested(self) -> RetryPolicy:
        """Follow the provider's advice; without advice, do not retry. Advice against a retry is a veto in ``any``."""

        def decide(context: RetryPolicyContext) -> RetryDecision:
            advice = context.provider_advice
            if advice is None or advice.suggested is None:
                return RetryDecision(False)
            return RetryDecision(advice.suggested, advice.retry_after, advice.reason, veto=not advice.suggested)

        return decide

    def network_error(self) -> RetryPolicy:
        """Retry after network errors and timeouts."""
        return lambda context: context.normalized.is_network_error or context.normalized.is_timeout

    def http_status(self, statuses: Iterable[int]) -> RetryPolicy:
        """Retry after responses with one of these HTTP statuses."""
        retryable = frozenset(statuses)
        return lambda context: context.normalized.status_code in retryable

    def retry_after(self) -> RetryPolicy:
        """Retry if the server sent a ``Retry-After``, after that delay."""

        def decide(context: RetryPolicyContext) -> RetryDecision:
            delay = get_server_delay(context)
            return RetryDecision(delay is not None, delay)

        return decide

    def any(self, *policies: RetryPolicy) -> RetryPolicy:
        """Retry if one of the policies does and none vetoes, after the longest of their delays."""

        async def decide(context: RetryPolicyContext) -> RetryDecision:
            decisions = [RetryDecision.coerce(await maybe_await(policy(context))) for policy in policies]
            vetoes = [decision for decision in decisions if decision.veto]
            return vetoes[0] if vetoes else _merge_decisions([decision for decision in decisions if decision.retry])

        return decide

    def all(self, *policies: RetryPolicy) -> RetryPolicy:
        """Retry if all of the policies do, after the longest of their delays."""

        async def decide(context: RetryPolicyContext) -> RetryDecision:
            decisions = [RetryDecision.coerce(await maybe_await(policy(context))) for policy in policies]
            against = [decision for decision in decisions if not decision.retry]
            return against[0] if against else _merge_decisions(decisions)

        return decide


retry_policies = RetryPolicies()


def resolve_retry_settings(settings: ModelRetrySettings | None, *, stateful: bool) -> ModelRetrySettings:
    """Return the effective settings. A retry requires both ``max_retries`` and a ``policy``.

    The provider's client never retries stateful requests, because it cannot know whether that is safe; without
    settings, they are retried here according to the provider's advice.
    """
    if settings is None and stateful:
        return ModelRetrySettings(max_retries=2, policy=retry_policies.provider_suggested())
    return settings or ModelRetrySettings()


def decide_delay(
    context: RetryPolicyContext,
    decision: RetryDecision,
    *,
    backoff: ModelRetryBackoffInput | None = None,
    rng: Callable[[], float] = random.random,
) -> float | None:
    """Return the delay before the next attempt; ``None`` if the error is final."""
    if context.response_started or context.normalized.is_abort:
        return None
    if context.attempt > context.max_retries or not decision.retry:
        return None
    unsafe = context.replay_safety == "unsafe" or (context.stateful_request and context.replay_safety != "safe")
    if unsafe and not decision.approve_unsafe_replay:
        return None
    if decision.delay is not None:
        return max(decision.delay, 0.0)
    server_delay = get_server_delay(context)
    return compute_backoff(context.attempt, backoff, rng=rng) if server_delay is None else server_delay


def get_locked_delay(context: RetryPolicyContext, *, locked_attempts: int) -> float | None:
    """Return the delay before the next attempt if another request holds the conversation; ``None`` otherwise."""
    locked = context.normalized.error_code == CONVERSATION_LOCKED and not context.response_started
    return LOCKED_DELAYS[locked_attempts] if locked and locked_attempts < len(LOCKED_DELAYS) else None


def compute_backoff(
    attempt: int, settings: ModelRetryBackoffInput | None = None, *, rng: Callable[[], float] = random.random
) -> float:
    """Return the delay after the given attempt (counted from 1).

    It grows exponentially up to a maximum, and is reduced at random by up to a quarter.
    """
    backoff = ModelRetryBackoffSettings.coerce(settings or {})
    initial_delay = INITIAL_DELAY if backoff.initial_delay is None else backoff.initial_delay
    max_delay = MAX_DELAY if backoff.max_delay is None else backoff.max_delay
    multiplier = MULTIPLIER if backoff.multiplier is None else backoff.multiplier
    try:
        delay = min(initial_delay * multiplier ** (attempt - 1), max_delay)
    except OverflowError:
        delay = max_delay
    return delay if backoff.jitter is False else delay * (1 - rng() / 4)


def get_server_delay(context: RetryPolicyContext) -> float | None:
    """Return the delay that the server requested, if any."""
    advice = context.provider_advice
    return context.normalized.retry_after if advice is None or advice.retry_after is None else advice.retry_after


def normalize_error(error: Exception) -> ModelRetryNormalizedError:
    """Return the facts about an error that its type and its common attributes provide."""
    if isinstance(error, ModelTimeoutError | TimeoutError):
        return ModelRetryNormalizedError(message=str(error), is_timeout=True)
    names = {kind.__name__ for kind in type(error).__mro__}  # of libraries that need not be installed
    if names & _TIMEOUT_ERRORS:
        return ModelRetryNormalizedError(message=str(error), is_timeout=True)
    if isinstance(error, ConnectionError | IncompleteStream) or names & _NETWORK_ERRORS:
        return ModelRetryNormalizedError(message=str(error), is_network_error=True)
    if isinstance(error, ResponseFailed):
        return ModelRetryNormalizedError(message=error.message, error_code=error.error_code)
    status, code, request = (getattr(error, name, None) for name in ("status_code", "code", "request_id"))
    return ModelRetryNormalizedError(
        status_code=status if isinstance(status, int) else None,
        error_code=code if isinstance(code, str) and not isinstance(error, StandfastError) else None,
        message=describe_error(error),
        request_id=request if isinstance(request, str) else None,
        retry_after=parse_retry_after(getattr(getattr(error, "response", None), "headers", None)),
    )


def parse_retry_after(headers: Mapping[str, str] | None, *, clock: Clock = system_clock) -> float | None:
    """Return the delay in seconds that ``Retry-After`` headers request, as a number or as a date."""
    if headers is None:
        return None
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(float(headers[name]) * unit, 0.0)
        except (KeyError, ValueError, TypeError):
            continue
    try:
        return max(parsedate_to_datetime(headers["retry-after"]).timestamp() - clock(), 0.0)
    except (KeyError, ValueError, TypeError):
        return None


def _merge_decisions(decisions: list[RetryDecision]) -> RetryDecision:
    """Combine decisions that all are for a retry."""
    if not decisions:
        return RetryDecision(False)
    delays = [decision.delay for decision in decisions if decision.delay is not None]
    return RetryDecision(
        True,
        delay=max(delays, default=None),
        reason=next((decision.reason for decision in decisions if decision.reason), None),
        approve_unsafe_replay=any(decision.approve_unsafe_replay for decision in decisions),
    )
