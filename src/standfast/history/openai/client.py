"""Talking to the OpenAI API: whose client it is, what a failure means, and how an answer becomes an item."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.base.errors import InvalidInput, MissingExtra, NotFound, StoreUnavailable
from standfast.base.items import Item

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

MAX_RETRY_DELAY = 8.0


class RequestOutcome(StrEnum):
    """What became of a request that failed."""

    NO_EFFECT = "nothing-done"
    UNKNOWN = "unknown"


class OpenAIRequestFailed(StoreUnavailable):
    """The OpenAI API did not answer or refused. ``outcome`` says whether the request can have had an effect."""

    code = "request-failed"

    def __init__(
        self,
        action: str,
        reason: str,
        *,
        outcome: RequestOutcome,
        status: int | None = None,
        finished: bool = True,
        retry_after: float | None = None,
    ) -> None:
        effect = "nothing was changed" if outcome is RequestOutcome.NO_EFFECT else "whether it was done is unknown"
        super().__init__(f"{action} failed: {reason}; {effect}")
        self.action, self.reason, self.outcome, self.status = action, reason, outcome, status
        self.finished = finished  # False when the server may still be working on it
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same request may well succeed a moment later."""
        return self.finished and (self.status is None or self.status in (409, 429) or self.status >= 500)

    def as_no_effect(self) -> "OpenAIRequestFailed":
        """The same failure, once a look has shown that the request did nothing."""
        return OpenAIRequestFailed(self.action, self.reason, outcome=RequestOutcome.NO_EFFECT, status=self.status)


class LazyOpenAIClient:
    """A client of the caller's, or one made at the first request, which is then ours to close."""

    def __init__(self, provided: "AsyncOpenAI | None", *, feature: str) -> None:
        self.provided = provided
        self.feature = feature
        self.created: AsyncOpenAI | None = None

    def get(self) -> "AsyncOpenAI":
        if self.provided is not None:
            return self.provided
        if self.created is None:
            library = load_openai(self.feature)
            try:
                self.created = library.AsyncOpenAI()
            except library.OpenAIError as error:
                raise InvalidInput(f"{self.feature} has no usable OpenAI client: {error}") from error
        return self.created

    async def aclose(self) -> None:
        """Close the client that was made here, if any. A later request makes a new one."""
        made, self.created = self.created, None
        if made is not None:
            await made.close()


def load_openai(feature: str) -> Any:
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", feature) from error
    return openai


@contextmanager
def translate_openai_errors(
    action: str, *, resource: tuple[str, str] = ("resource", ""), mutating: bool = True
) -> Iterator[None]:
    """Turn the client's errors into ours. ``about`` is what a 404 says does not exist."""
    library = load_openai(action)
    try:
        yield
    except library.NotFoundError as error:
        raise NotFound(*resource) from error
    except library.APIStatusError as error:
        # 408 and 5xx come from servers and gateways that may have passed the request on before they gave up.
        unclear = mutating and (error.status_code == 408 or error.status_code >= 500)
        raise OpenAIRequestFailed(
            action,
            f"the server answered {error.status_code} ({error.message})",
            outcome=RequestOutcome.UNKNOWN if unclear else RequestOutcome.NO_EFFECT,
            status=error.status_code,
            retry_after=_parse_retry_after(error.response.headers),
        ) from error
    except library.APIConnectionError as error:
        reached = mutating and type(error.__cause__).__name__ not in ("ConnectError", "ConnectTimeout", "PoolTimeout")
        raise OpenAIRequestFailed(
            action,
            "no answer in time" if isinstance(error, library.APITimeoutError) else f"no answer ({error.__cause__!r})",
            outcome=RequestOutcome.UNKNOWN if reached else RequestOutcome.NO_EFFECT,
            finished=not (reached and isinstance(error, library.APITimeoutError)),
        ) from error
    except (library.OpenAIError, ValueError, AttributeError) as error:  # the client trips over answers of no shape
        if isinstance(error, InvalidInput):
            raise
        raise OpenAIRequestFailed(
            action,
            f"the answer makes no sense ({error})",
            outcome=RequestOutcome.UNKNOWN if mutating else RequestOutcome.NO_EFFECT,
        ) from error


async def request_exactly_once(
    send: Callable[[], Awaitable[T]],
    find_result: Callable[[], Awaitable[T | None]],
    *,
    max_attempts: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> T:
    """Make a request that must not happen twice, as often as it takes and ``tries`` allows.

    After a failure that leaves it open whether the request was done, ``look`` finds out: it returns what the
    request would have returned, or ``None`` if it was not done, and raises :class:`RequestFailed` when it cannot
    tell. The failure that leaves this function says what is known in the end.
    """
    for attempt in range(max_attempts):
        try:
            return await send()
        except OpenAIRequestFailed as failure:
            problem = failure
        if problem.outcome is RequestOutcome.UNKNOWN:
            try:
                found = await find_result()
            except (OpenAIRequestFailed, NotFound) as blind:
                raise problem from blind
            if found is not None:
                return found
            if not problem.finished:
                raise problem
        if attempt + 1 == max_attempts or not problem.is_transient or is_stopped():
            raise problem.as_no_effect() from problem
        await asyncio.sleep(_compute_delay(attempt, problem.retry_after))
    raise InvalidInput(f"a request needs at least one try, not {max_attempts}")


def to_input_item(answer: Any) -> Item:
    """An object of the client's as an item that the API takes back as input."""
    item = to_plain_dict(answer)
    item.pop("created_by", None)  # the API reports it and does not accept it
    return item


def to_plain_dict(answer: Any) -> dict[str, Any]:
    """An object of the client's as the JSON object it was made from."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if not hasattr(answer, "model_dump"):
        raise ValueError(f"{type(answer).__name__} where an object should be")
    found: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return found


def _parse_retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(float(headers[name]) * unit, 0.0)
        except (KeyError, ValueError):
            continue
    return None


def _compute_delay(attempt: int, retry_after: float | None) -> float:
    wanted = 0.5 * 2**attempt * random.uniform(0.75, 1) if retry_after is None else retry_after
    return min(wanted, MAX_RETRY_DELAY)
