"""Requests to a server: encoded, authenticated, repeated where that is safe, and their errors.

An error is raised as the exception that the library raises; the exception is found by its code.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

import standfast.agents.errors
import standfast.runtime.errors
import standfast.server.auth.principals  # noqa: F401 - their exceptions are found by their codes
from standfast.base.errors import InvalidInput, MissingExtra, StandfastError
from standfast.base.time import Backoff
from standfast.server.types import Problem

T = TypeVar("T")
_UNAVAILABLE = (502, 503, 504)
_TOO_MANY = 429
_LONGEST_WAIT = 10.0
_MAX_ATTEMPTS = 6


class ServerError(StandfastError):
    """The server refused the request, or failed. ``code`` and ``status`` are those of its answer."""

    code = "server-error"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.code = problem.code  # type: ignore[misc]
        self.status, self.request_id = problem.status, problem.request_id


class ServerUnreachable(StandfastError):
    """The server cannot be reached, or did not answer. A request with a key can be sent again."""

    code = "server-unreachable"


def make_error(problem: Problem) -> StandfastError:
    """Return the exception with the code of the problem, or a :class:`ServerError` for an unknown code."""
    kind = next((one for one in iter_errors(StandfastError) if one.__dict__.get("code") == problem.code), None)
    if kind is None or kind is ServerError:
        return ServerError(problem)
    error = kind.__new__(kind)
    Exception.__init__(error, problem.detail)
    error.__dict__.update(problem.facts)
    return error


def iter_errors(kind: type[StandfastError]) -> Iterator[type[StandfastError]]:
    for one in kind.__subclasses__():
        yield one
        yield from iter_errors(one)


def parse_problem(status: int, content: bytes) -> Problem:
    """Return the problem document of an answer; a proxy in between may send something else."""
    try:
        return msgspec.json.decode(content, type=Problem)
    except msgspec.MsgspecError:
        text = content[:200].decode("utf-8", "replace")
        return Problem(
            title="", status=status, code="server-error", detail=f"the answer has the status {status}: {text}"
        )


try:
    import httpx2
except ImportError:  # pragma: no cover - without the extra
    raise MissingExtra("client", "standfast.client") from None


class Connection:
    """The connections to one server. Redirects are refused: a credential is for one server only."""

    def __init__(self, url: str, *, token: str | None, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"the URL of a server begins with http:// or https://, got {url!r}")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.http = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
            verify=url.startswith("https:"),  # reading the certificate authorities takes as long as ten requests
        )

    async def close(self) -> None:
        await self.http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        kind: Any = None,
        *,
        body: Any = msgspec.UNSET,
        content: bytes | None = None,
        files: Any = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        is_repeatable: bool = False,
    ) -> Any:
        """Send a request and return its answer as ``kind``; ``bytes`` is the answer as it is.

        With ``is_repeatable`` it is sent again while the server cannot be reached or is not ready. Any request that was
        refused because there were too many is sent again after the seconds that the server names.
        """
        sent = ({} if files else {"content-type": "application/json"}) | (headers or {})
        data = content if body is msgspec.UNSET else msgspec.json.encode(body)
        query = {name: value for name, value in (params or {}).items() if value is not None}
        backoff = Backoff()
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            is_last = attempt == _MAX_ATTEMPTS or not (is_repeatable or method == "GET")
            try:
                answer = await self.http.request(method, path, content=data, files=files, params=query, headers=sent)
            except httpx2.TransportError as problem:
                if is_last:
                    raise ServerUnreachable(f"{self.http.base_url}: {describe(problem)}") from problem
            else:
                wait = get_wait(answer)
                if attempt == _MAX_ATTEMPTS or (wait is None and (answer.status_code not in _UNAVAILABLE or is_last)):
                    return decode_answer(answer, kind)
                if wait is not None:
                    await asyncio.sleep(wait)
                    continue
            await asyncio.sleep(backoff.next_delay())
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Open a stream and yield its lines; raise the error that the server answered instead."""
        timeout = httpx2.Timeout(30.0, read=60.0)  # heartbeats come more often
        async with self.http.stream("GET", path, params=params, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                raise make_error(parse_problem(answer.status_code, await answer.aread()))
            yield split_lines(answer.aiter_bytes())


async def split_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a body. Only LF ends a line: JSON may contain what ends lines elsewhere, such as U+2028."""
    line: list[bytes] = []
    async for part in parts:
        *ends, rest = part.split(b"\n")
        for end in ends:
            yield b"".join([*line, end]).decode()
            line.clear()
        line.append(rest)
    if last := b"".join(line):
        yield last.decode()


def get_wait(answer: Any) -> float | None:
    """Return the seconds after which a request can be repeated that was one too many: it has changed nothing."""
    value = answer.headers.get("retry-after", "") if answer.status_code == _TOO_MANY else ""
    return min(float(value), _LONGEST_WAIT) if value.isdigit() else None


def decode_answer(answer: Any, kind: Any) -> Any:
    if answer.status_code >= 300:
        raise make_error(parse_problem(answer.status_code, answer.content))
    if kind is None or kind is bytes:
        return answer.content
    return msgspec.json.decode(answer.content, type=kind)


def describe(problem: Exception) -> str:
    return str(problem) or type(problem).__name__


def make_path(*parts: str) -> str:
    """Return the path of these parts, each of which may contain any characters."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
