"""Talking to the OpenAI API: whose client it is, what a failure means, and how an answer becomes an item."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.base.errors import InvalidInput, MissingExtra, NotFound, StoreUnavailable
from holdfast.base.items import Item

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

LONGEST_PAUSE = 8.0


class Outcome(StrEnum):
    """What became of a request that failed."""

    NOTHING = "nothing-done"
    UNKNOWN = "unknown"


class RequestFailed(StoreUnavailable):
    """The OpenAI API did not answer or refused. ``outcome`` says whether the request can have had an effect."""

    code = "request-failed"

    def __init__(
        self,
        doing: str,
        reason: str,
        *,
        outcome: Outcome,
        status: int | None = None,
        over: bool = True,
        retry_after: float | None = None,
    ) -> None:
        effect = "nothing was changed" if outcome is Outcome.NOTHING else "whether it was done is unknown"
        super().__init__(f"{doing} failed: {reason}; {effect}")
        self.doing, self.reason, self.outcome, self.status = doing, reason, outcome, status
        self.over = over  # False when the server may still be working on it
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed a moment later."""
        return self.over and (self.status is None or self.status in (409, 429) or self.status >= 500)

    def without_effect(self) -> "RequestFailed":
        """The same failure, once a look has shown that the request did nothing."""
        return RequestFailed(self.doing, self.reason, outcome=Outcome.NOTHING, status=self.status)


class ApiClient:
    """A client of the caller's, or one made at the first request, which is then ours to close."""

    def __init__(self, given: "AsyncOpenAI | None", *, why: str) -> None:
        self.given = given
        self.why = why
        self.made: AsyncOpenAI | None = None

    def get(self) -> "AsyncOpenAI":
        if self.given is not None:
            return self.given
        if self.made is None:
            library = load_openai(self.why)
            try:
                self.made = library.AsyncOpenAI()
            except library.OpenAIError as error:
                raise InvalidInput(f"{self.why} has no usable OpenAI client: {error}") from error
        return self.made

    async def aclose(self) -> None:
        """Close the client that was made here, if any. A later request makes a new one."""
        made, self.made = self.made, None
        if made is not None:
            await made.close()


def load_openai(why: str) -> Any:
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", why) from error
    return openai


@contextmanager
def asking(doing: str, *, about: tuple[str, str] = ("resource", ""), changes: bool = True) -> Iterator[None]:
    """Turn the client's errors into ours. ``about`` is what a 404 says does not exist."""
    library = load_openai(doing)
    try:
        yield
    except library.NotFoundError as error:
        raise NotFound(*about) from error
    except library.APIStatusError as error:
        # 408 and 5xx come from servers and gateways that may have passed the request on before they gave up.
        unclear = changes and (error.status_code == 408 or error.status_code >= 500)
        raise RequestFailed(
            doing,
            f"the server answered {error.status_code} ({error.message})",
            outcome=Outcome.UNKNOWN if unclear else Outcome.NOTHING,
            status=error.status_code,
            retry_after=_retry_after(error.response.headers),
        ) from error
    except library.APIConnectionError as error:
        reached = changes and type(error.__cause__).__name__ not in ("ConnectError", "ConnectTimeout", "PoolTimeout")
        raise RequestFailed(
            doing,
            "no answer in time" if isinstance(error, library.APITimeoutError) else f"no answer ({error.__cause__!r})",
            outcome=Outcome.UNKNOWN if reached else Outcome.NOTHING,
            over=not (reached and isinstance(error, library.APITimeoutError)),
        ) from error
    except (library.OpenAIError, ValueError, AttributeError) as error:  # the client trips over answers of no shape
        if isinstance(error, InvalidInput):
            raise
        raise RequestFailed(
            doing,
            f"the answer makes no sense ({error})",
            outcome=Outcome.UNKNOWN if changes else Outcome.NOTHING,
        ) from error


async def exactly_once(
    ask: Callable[[], Awaitable[T]],
    look: Callable[[], Awaitable[T | None]],
    *,
    tries: int,
    stopped: Callable[[], bool] = lambda: False,
) -> T:
    """Make a request that must not happen twice, as often as it takes and ``tries`` allows.

    After a failure that leaves it open whether the request was done, ``look`` finds out: it returns what the
    request would have returned, or ``None`` if it was not done, and raises :class:`RequestFailed` when it cannot
    tell. The failure that leaves this function says what is known in the end.
    """
    for attempt in range(tries):
        try:
            return await ask()
        except RequestFailed as failure:
            problem = failure
        if problem.outcome is Outcome.UNKNOWN:
            try:
                found = await look()
            except (RequestFailed, NotFound) as blind:
                raise problem from blind
            if found is not None:
                return found
            if not problem.over:
                raise problem
        if attempt + 1 == tries or not problem.passing or stopped():
            raise problem.without_effect() from problem
        await asyncio.sleep(_pause(attempt, problem.retry_after))
    raise InvalidInput(f"a request needs at least one try, not {tries}")


def as_input(answer: Any) -> Item:
    """An object of the client's as an item that the API takes back as input."""
    item = plain(answer)
    item.pop("created_by", None)  # the API reports it and does not accept it
    return item


def plain(answer: Any) -> dict[str, Any]:
    """An object of the client's as the JSON object it was made from."""
    if isinstance(answer, Mapping):
        return dict(answer)
    if not hasattr(answer, "model_dump"):
        raise ValueError(f"{type(answer).__name__} where an object should be")
    found: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return found


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(float(headers[name]) * unit, 0.0)
        except (KeyError, ValueError):
            continue
    return None


def _pause(attempt: int, asked_for: float | None) -> float:
    wanted = 0.5 * 2**attempt * random.uniform(0.75, 1) if asked_for is None else asked_for
    return min(wanted, LONGEST_PAUSE)
