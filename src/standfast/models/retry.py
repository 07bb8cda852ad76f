"""Whether a request that failed is made again. Everything here is a decision; :mod:`standfast.models.request` acts on it.

Four rules no policy can change: nothing is repeated after the model's words were shown to anybody, nothing that the
caller aborted, nothing more often than allowed, and nothing that may have had its effect on the server already, unless
the provider calls it safe or the policy approves of exactly that.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias

from standfast.agents.errors import ModelTimeoutError, UserError
from standfast.agents.model_settings import ModelRetryBackoffInput, ModelRetryBackoffSettings, ModelRetrySettings
from standfast.agents.types import maybe_await
from standfast.base.clock import Clock, system_clock
from standfast.base.errors import StandfastError
from standfast.models.interface import IncompleteStream, ResponseFailed

ReplaySafety: TypeAlias = Literal["safe", "unsafe"]

INITIAL_DELAY, MAX_DELAY, MULTIPLIER = 0.25, 2.0, 2.0

# A conversation is locked while another request writes to it: the request was turned away, so it may come again.
CONVERSATION_LOCKED = "conversation_locked"
LOCKED_DELAYS = (1.0, 2.0, 4.0)

_UNSET: Any = object()


@dataclass(init=False)
class ModelRetryNormalizedError:
    """What an error means, whatever library raised it. Facts that were not given can be filled in by others."""

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
        """The same with every fact that ``better`` was given in its place."""
        if other is None:
            return self
        mine = {name: getattr(self, name) for name in self._fields_set}
        return ModelRetryNormalizedError(**mine | {name: getattr(other, name) for name in other._fields_set})


@dataclass
class ModelRetryAdvice:
    """What a provider says about repeating a request. ``replay_safety`` is ``safe`` when it had no effect."""

    suggested: bool | None = None
    retry_after: float | None = None
    replay_safety: ReplaySafety | None = None
    reason: str | None = None
    normalized: ModelRetryNormalizedError | None = None
    response_started: bool = False


@dataclass
class ModelRetryAdviceRequest:
    """What a provider is asked for advice on. ``attempt`` counts from 1."""

    error: Exception
    attempt: int
    stream: bool
    previous_response_id: str | None = None
    conversation_id: str | None = None

    @property
    def stateful(self) -> bool:
        return bool(self.previous_response_id or self.conversation_id)


@dataclass
class RetryDecision:
    """What a policy wants. Without a ``delay`` the server's wish or the backoff decides how long to wait."""

    retry: bool
    delay: float | None = None
    reason: str | None = None
    approve_unsafe_replay: bool = False
    veto: bool = False

    @classmethod
    def coerce(cls, value: Any) -> "RetryDecision":
        if isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls(value)
        raise UserError(f"a retry policy must return a bool or a RetryDecision, not {value!r}")


@dataclass
class RetryPolicyContext:
    """A failed attempt, for a policy to judge. ``attempt`` counts from 1."""

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
        return None if self.provider_advice is None else self.provider_advice.replay_safety

    @property
    def response_started(self) -> bool:
        """Whether the model's words have been shown already."""
        return self.provider_advice is not None and self.provider_advice.response_started

    @property
    def stateful_request(self) -> bool:
        """Whether the server remembers what it was sent, so that sending it twice may show."""
        return bool(self.previous_response_id or self.conversation_id)


RetryPolicy: TypeAlias = Callable[
    [RetryPolicyContext], bool | RetryDecision | Awaitable[bool] | Awaitable[RetryDecision]
]


class RetryPolicies:
    """The ready-made policies. Each is a function of a :class:`RetryPolicyContext`."""

    def never(self) -> RetryPolicy:
        return lambda context: False

    def provider_suggested(self) -> RetryPolicy:
        """Do as the provider says; without a word from it, do not repeat. Its *no* also overrules ``any``."""

        def judge(context: RetryPolicyContext) -> RetryDecision:
            advice = context.provider_advice
            if advice is None or advice.suggested is None:
                return RetryDecision(False)
            return RetryDecision(advice.suggested, advice.retry_after, advice.reason, veto=not advice.suggested)

        return judge

    def network_error(self) -> RetryPolicy:
        """Repeat when the answer did not come through or not in time."""
        return lambda context: context.normalized.is_network_error or context.normalized.is_timeout

    def http_status(self, statuses: Iterable[int]) -> RetryPolicy:
        wanted = frozenset(statuses)
        return lambda context: context.normalized.status_code in wanted

    def retry_after(self) -> RetryPolicy:
        """Repeat when the server said when, and then."""

        def judge(context: RetryPolicyContext) -> RetryDecision:
            delay = get_server_delay(context)
            return RetryDecision(delay is not None, delay)

        return judge

    def any(self, *policies: RetryPolicy) -> RetryPolicy:
        """Repeat when one of them wants to and none vetoes; wait as long as the most patient one."""

        async def judge(context: RetryPolicyContext) -> RetryDecision:
            found = [RetryDecision.coerce(await maybe_await(policy(context))) for policy in policies]
            vetoes = [decision for decision in found if decision.veto]
            return vetoes[0] if vetoes else _merge_decisions([decision for decision in found if decision.retry])

        return judge

    def all(self, *policies: RetryPolicy) -> RetryPolicy:
        """Repeat when every one of them wants to; wait as long as the most patient one."""

        async def judge(context: RetryPolicyContext) -> RetryDecision:
            found = [RetryDecision.coerce(await maybe_await(policy(context))) for policy in policies]
            against = [decision for decision in found if not decision.retry]
            return against[0] if against else _merge_decisions(found)

        return judge


retry_policies = RetryPolicies()


def resolve_retry_settings(settings: ModelRetrySettings | None, *, stateful: bool) -> ModelRetrySettings:
    """The settings that count. Repeating needs both a number and a policy.

    Requests that the server remembers are never repeated by the provider's client, which cannot know whether that is
    safe; in its place the provider's own advice is followed when nothing was set.
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
    """How long to wait before the next attempt, or ``None`` for: let the error stand."""
    if context.response_started or context.normalized.is_abort:
        return None
    if context.attempt > context.max_retries or not decision.retry:
        return None
    unsafe = context.replay_safety == "unsafe" or (context.stateful_request and context.replay_safety != "safe")
    if unsafe and not decision.approve_unsafe_replay:
        return None
    if decision.delay is not None:
        return max(decision.delay, 0.0)
    asked = get_server_delay(context)
    return compute_backoff(context.attempt, backoff, rng=rng) if asked is None else asked


def get_locked_delay(context: RetryPolicyContext, *, locked_attempts: int) -> float | None:
    """How long to wait for a conversation that another request holds; ``None`` when that is not the matter."""
    locked = context.normalized.error_code == CONVERSATION_LOCKED and not context.response_started
    return LOCKED_DELAYS[locked_attempts] if locked and locked_attempts < len(LOCKED_DELAYS) else None


def compute_backoff(
    attempt: int, settings: ModelRetryBackoffInput | None = None, *, rng: Callable[[], float] = random.random
) -> float:
    """The pause after the given attempt (from 1): it grows up to a limit, and a quarter of it is left to chance."""
    given = ModelRetryBackoffSettings.coerce(settings or {})
    first = INITIAL_DELAY if given.initial_delay is None else given.initial_delay
    most = MAX_DELAY if given.max_delay is None else given.max_delay
    growth = MULTIPLIER if given.multiplier is None else given.multiplier
    try:
        delay = min(first * growth ** (attempt - 1), most)
    except OverflowError:
        delay = most
    return delay if given.jitter is False else delay * (1 - rng() / 4)


def get_server_delay(context: RetryPolicyContext) -> float | None:
    """When the server wants to be asked again, if it said so."""
    advice = context.provider_advice
    return context.normalized.retry_after if advice is None or advice.retry_after is None else advice.retry_after


def normalize_error(error: Exception) -> ModelRetryNormalizedError:
    """What an error means, as far as its type and its usual attributes tell."""
    if isinstance(error, ModelTimeoutError | TimeoutError):
        return ModelRetryNormalizedError(message=str(error), is_timeout=True)
    if isinstance(error, ConnectionError | IncompleteStream):
        return ModelRetryNormalizedError(message=str(error), is_network_error=True)
    if isinstance(error, ResponseFailed):
        return ModelRetryNormalizedError(message=error.message, error_code=error.error_code)
    status, code, request = (getattr(error, name, None) for name in ("status_code", "code", "request_id"))
    return ModelRetryNormalizedError(
        status_code=status if isinstance(status, int) else None,
        error_code=code if isinstance(code, str) and not isinstance(error, StandfastError) else None,
        message=str(error),
        request_id=request if isinstance(request, str) else None,
        retry_after=parse_retry_after(getattr(getattr(error, "response", None), "headers", None)),
    )


def parse_retry_after(headers: Mapping[str, str] | None, *, clock: Clock = system_clock) -> float | None:
    """The seconds to wait that an answer's headers ask for, as a number or as a date."""
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
    """One decision from several that all want to repeat."""
    if not decisions:
        return RetryDecision(False)
    delays = [decision.delay for decision in decisions if decision.delay is not None]
    return RetryDecision(
        True,
        delay=max(delays, default=None),
        reason=next((decision.reason for decision in decisions if decision.reason), None),
        approve_unsafe_replay=any(decision.approve_unsafe_replay for decision in decisions),
    )
