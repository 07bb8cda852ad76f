"""Requests to a server: encoded, authenticated, and repeated where that is safe."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from standfast.base.errors import InvalidInput, MissingExtra
from standfast.base.time import Backoff
from standfast.client.errors import ServerError, ServerUnreachable, make_error, parse_problem
from standfast.server.types import Problem

T = TypeVar("T")
_UNAVAILABLE = (502, 503, 504)
_TOO_MANY = 429
_LONGEST_WAIT = 10.0
_MAX_ATTEMPTS = 6
MAX_RESPONSE_BYTES = 100_000_000
"""The most bytes of one answer, or of one event, as the most that a server takes by default."""
MIN_RESPONSE_RATE = 1000.0
"""Bytes per second that an answer must have on average, so that a server cannot hold a caller by single bytes."""

try:
    import httpx2
except ImportError:  # pragma: no cover - without the extra
    raise MissingExtra("client", "standfast.client") from None


class Connection:
    """The connections to one server. Redirects are refused: a credential is for one server only.

    A server is asked for answers that are not compressed: a few compressed bytes could become gigabytes.
    """

    def __init__(self, url: str, *, token: str | None, timeout: float, max_response_bytes: int) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"the URL of a server begins with http:// or https://, got {url!r}")
        headers = {"accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self.timeout, self.max_response_bytes = timeout, max_response_bytes
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
                async with self.http.stream(
                    method, path, content=data, files=files, params=query, headers=sent
                ) as answer:
                    received = await self.read(answer)
            except httpx2.TransportError as problem:
                if is_last:
                    raise ServerUnreachable(f"{self.http.base_url}: {describe(problem)}") from problem
            else:
                wait = get_wait(answer)
                if attempt == _MAX_ATTEMPTS or (wait is None and (answer.status_code not in _UNAVAILABLE or is_last)):
                    return decode_answer(answer.status_code, received, kind)
                if wait is not None:
                    await asyncio.sleep(wait)
                    continue
            await asyncio.sleep(backoff.next_delay())
        raise AssertionError("unreachable")

    async def read(self, answer: Any) -> bytes:
        """Return the body of an answer; raise :class:`ServerError` before it has more bytes than allowed."""
        parts: list[bytes] = []
        size, deadline = 0, time.monotonic() + self.timeout
        async for part in iterate_body(answer):
            size += len(part)
            if size > self.max_response_bytes:
                raise self.make_size_error(answer.status_code)
            if time.monotonic() > deadline + size / MIN_RESPONSE_RATE:
                raise httpx2.ReadTimeout("the rest of the answer did not come")
            parts.append(part)
        return b"".join(parts)

    def make_size_error(self, status: int) -> ServerError:
        return make_server_error(status, f"the answer has more than {self.max_response_bytes:,} bytes")

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Open a stream and yield its lines; raise the error that the server answered instead."""
        timeout = httpx2.Timeout(30.0, read=60.0)  # heartbeats come more often
        try:
            async with self.http.stream("GET", path, params=params, headers=headers, timeout=timeout) as answer:
                if answer.status_code != 200:
                    raise make_error(parse_problem(answer.status_code, await self.read(answer)))
                yield self.split_lines(answer)
        except httpx2.TransportError as problem:
            raise ServerUnreachable(f"{self.http.base_url}: {describe(problem)}") from problem

    async def split_lines(self, answer: Any) -> AsyncIterator[str]:
        """Yield the lines of a body.

        Only LF ends a line: JSON may contain what ends lines elsewhere, such as U+2028.
        """
        line: list[bytes] = []
        size = 0
        async for part in iterate_body(answer):
            *ends, rest = part.split(b"\n")
            for end in ends:
                yield decode_line([*line, end])
                line.clear()
                size = 0
            line.append(rest)
            size += len(rest)
            if size > self.max_response_bytes:
                raise self.make_size_error(answer.status_code)
        if any(line):
            yield decode_line(line)


async def iterate_body(answer: Any) -> AsyncIterator[bytes]:
    """Yield the bytes of a body, which must not be compressed."""
    if (encoding := answer.headers.get("content-encoding", "identity")) != "identity":
        raise make_server_error(answer.status_code, f"the answer is compressed with {encoding!r}, which was not asked")
    async for part in answer.aiter_raw():
        yield part


def decode_line(parts: list[bytes]) -> str:
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError as problem:
        raise make_server_error(200, f"the answer is not UTF-8: {problem}") from None


def get_wait(answer: Any) -> float | None:
    """Return the seconds after which a request can be repeated that was one too many: it has changed nothing."""
    value = answer.headers.get("retry-after", "") if answer.status_code == _TOO_MANY else ""
    return min(float(value), _LONGEST_WAIT) if value.isdecimal() else None


def decode_answer(status: int, content: bytes, kind: Any) -> Any:
    if status >= 300:
        raise make_error(parse_problem(status, content))
    return content if kind is None or kind is bytes else decode_content(content, kind, status=status)


def decode_content(content: bytes | str, kind: Any, *, status: int = 200) -> Any:
    """Return the JSON of an answer or an event as ``kind``, or raise :class:`ServerError`."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise make_server_error(status, f"the answer is not what it should be: {problem}") from None


def make_server_error(status: int, detail: str) -> ServerError:
    return ServerError(Problem(title="", status=status, code=ServerError.code, detail=detail))


def describe(problem: Exception) -> str:
    return str(problem) or type(problem).__name__


def make_path(*parts: str) -> str:
    """Return the path of these parts, each of which may contain any characters."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
