"""Requests to the OpenAI API: the client and its owner, typed errors, exactly-once requests, conversion to items."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.base.errors import InvalidInput, MissingExtra, NotFound, StoreUnavailable
from standfast.base.items import Item
from standfast.base.network import create_openai_client

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

MAX_RETRY_DELAY = 8.0


class RequestOutcome(StrEnum):
    """Whether a failed request may have had an effect."""

    NO_EFFECT = "nothing-done"
    UNKNOWN = "unknown"


class OpenAIRequestFailed(StoreUnavailable):
    """A request to the OpenAI API failed. ``outcome`` is whether it may have had an effect."""

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
        effect = "nothing was changed" if outcome is RequestOutcome.NO_EFFECT else "it may have been executed"
        super().__init__(f"{action} failed: {reason}; {effect}")
        self.action, self.reason, self.outcome, self.status = action, reason, outcome, status
        self.finished = finished  # False if the server may still be processing the request
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed if it is repeated later."""
        return self.finished and (self.status is None or self.status in (409, 429) or self.status >= 500)

    def as_no_effect(self) -> "OpenAIRequestFailed":
        """Return the same failure for a request that turned out to have had no effect."""
        return OpenAIRequestFailed(self.action, self.reason, outcome=RequestOutcome.NO_EFFECT, status=self.status)


class LazyOpenAIClient:
    """The client of the caller, or one that is created by the first request and closed by :meth:`aclose`."""

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
                self.created = create_openai_client(library)
            except library.OpenAIError as error:
                raise InvalidInput(f"{self.feature} cannot create an OpenAI client: {error}") from error
        return self.created

    async def aclose(self) -> None:
        """Close the client if it was created here. A later request creates a new one."""
        client, self.created = self.created, None
        if client is not None:
            await client.close()


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
    """Translate the errors of the openai library. ``resource`` is what does not exist after a 404."""
    library = load_openai(action)
    try:
        yield
    except library.NotFoundError as error:
        raise NotFound(*resource) from error
    except library.APIStatusError as error:
        # A gateway that responds with 408 or 5xx may have forwarded the request before it gave up.
        uncertain = mutating and (error.status_code == 408 or error.status_code >= 500)
        raise OpenAIRequestFailed(
            action,
            f"the server responded with status {error.status_code} ({error.message})",
            outcome=RequestOutcome.UNKNOWN if uncertain else RequestOutcome.NO_EFFECT,
            status=error.status_code,
            retry_after=_parse_retry_after(error.response.headers),
        ) from error
    except library.APIConnectionError as error:
        sent = mutating and type(error.__cause__).__name__ not in ("ConnectError", "ConnectTimeout", "PoolTimeout")
        timed_out = isinstance(error, library.APITimeoutError)
        raise OpenAIRequestFailed(
            action,
            "the request timed out" if timed_out else f"no response ({error.__cause__!r})",
            outcome=RequestOutcome.UNKNOWN if sent else RequestOutcome.NO_EFFECT,
            finished=not (sent and timed_out),
        ) from error
    except (library.OpenAIError, ValueError, AttributeError) as error:  # the client fails on malformed responses
        if isinstance(error, InvalidInput):
            raise
        raise OpenAIRequestFailed(
            action,
            f"malformed response ({error})",
            outcome=RequestOutcome.UNKNOWN if mutating else RequestOutcome.NO_EFFECT,
        ) from error


async def request_exactly_once(
    send: Callable[[], Awaitable[T]],
    find_result: Callable[[], Awaitable[T | None]],
    *,
    max_attempts: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> T:
    """Send a request that must not be executed twice, with up to ``max_attempts`` attempts.

    After a failure with an unknown outcome, ``find_result`` is called: it returns the result of the request, or
    ``None`` if it was not executed, and raises :class:`OpenAIRequestFailed` if it cannot find out. The ``outcome`` of
    the error that leaves this function takes that into account.
    """
    for attempt in range(max_attempts):
        try:
            return await send()
        except OpenAIRequestFailed as failure:
            problem = failure
        if problem.outcome is RequestOutcome.UNKNOWN:
            try:
                result = await find_result()
            except (OpenAIRequestFailed, NotFound) as error:
                raise problem from error
            if result is not None:
                return result
            if not problem.finished:
                raise problem
        if attempt + 1 == max_attempts or not problem.is_transient or is_stopped():
            raise problem.as_no_effect() from problem
        await asyncio.sleep(_compute_delay(attempt, problem.retry_after))
    raise InvalidInput(f"max_attempts must be >= 1, got {max_attempts}")


def to_input_item(value: Any) -> Item:
    """Convert an object of the openai library to an item that the API accepts as input."""
    item = to_plain_dict(value)
    item.pop("created_by", None)  # the API returns it but does not accept it
    return item


def to_plain_dict(value: Any) -> dict[str, Any]:
    """Convert an object of the openai library to the JSON object it was parsed from."""
    if isinstance(value, Mapping):
        return dict(value)
    if not hasattr(value, "model_dump"):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    plain: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return plain


def _parse_retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(float(headers[name]) * unit, 0.0)
        except (KeyError, ValueError):
            continue
    return None


def _compute_delay(attempt: int, retry_after: float | None) -> float:
    delay = 0.5 * 2**attempt * random.uniform(0.75, 1) if retry_after is None else retry_after
    return min(delay, MAX_RETRY_DELAY)
