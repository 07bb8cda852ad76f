"""An OpenAI API on loopback: conversations, their items, and ``/responses/compact``, with fault injection."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient


@dataclass
class Fault:
    """A fault in the handling of a request.

    With ``applied`` the request takes effect before it fails. The response has ``status``, or status 200 and ``body``;
    with neither, the connection is aborted. ``hold`` delays the request until it is set. With ``plain`` the request
    succeeds after the delay.
    """

    status: int | None = None
    body: str | None = None
    applied: bool = False
    hold: asyncio.Event | None = None
    plain: bool = False
    headers: dict[str, str] = field(default_factory=lambda: {"retry-after-ms": "1"})


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    body: dict[str, Any]

    @classmethod
    def of(cls, method: str, target: str, body: bytes) -> Self:
        url = urlsplit(target)
        return cls(method, url.path.removeprefix("/v1"), parse_qs(url.query), json.loads(body or b"{}"))

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WithoutSockets(httpx2.AsyncBaseTransport):
    """A transport to a server in the same event loop, for tests in virtual time."""

    def __init__(self, server: "OpenAIServer") -> None:
        self.server = server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.server.respond(Request.of(request.method, str(request.url), await request.aread()))
        if response is None:
            raise httpx2.ReadError("the connection was aborted")
        status, headers, body = response
        return httpx2.Response(status, headers=headers, content=body)


class AtOnce(ThreadPoolExecutor):
    """Runs at once what a client submits to a thread, such as detecting the platform."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class OpenAIServer:
    """Started by :meth:`running`. It records ``requests`` and stores ``conversations``."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.conversations: dict[str, list[dict[str, Any]]] = {}
        self.faults: dict[int, Fault] = {}
        self.fault_for: Callable[[Request], Fault | None] = lambda request: None
        self.compact: Callable[[dict[str, Any]], list[dict[str, Any]]] = compacted
        self.arrived = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._handlers: set[asyncio.Task[None]] = set()
        self._clients: list[AsyncOpenAI] = []

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        self = cls()
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            for client in self._clients:
                await client.close()
            listener.close()
            for task in list(self._handlers):
                task.cancel()
            await asyncio.gather(*self._handlers, return_exceptions=True)
            await listener.wait_closed()

    def client(self, **options: Any) -> AsyncOpenAI:
        """Return a real client of this server, which is closed with it."""
        # Loading certificates would take most of the time of a test, and plain HTTP needs none.
        plain_http = DefaultAsyncHttpxClient(verify=False)
        client = AsyncOpenAI(base_url=self.url, api_key="test", http_client=plain_http, **{"max_retries": 0, **options})
        self._clients.append(client)
        return client

    def near_client(self) -> AsyncOpenAI:
        """Return a client without sockets and threads, for an event loop in virtual time."""
        asyncio.get_running_loop().set_default_executor(AtOnce())
        near = DefaultAsyncHttpxClient(transport=WithoutSockets(self))
        return AsyncOpenAI(base_url="http://near/v1", api_key="test", http_client=near, max_retries=0)

    async def asked(self, count: int) -> None:
        """Wait until ``count`` requests were received."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    def fail_next(self, *faults: Fault | None) -> None:
        """Inject faults into the next requests, in order."""
        for index, fault in enumerate(faults, start=len(self.requests)):
            if fault is not None:
                self.faults[index] = fault

    def log(self) -> list[str]:
        return [str(request) for request in self.requests]

    @property
    def only(self) -> list[dict[str, Any]]:
        """The items of the only conversation."""
        (items,) = self.conversations.values()
        return items

    # --- HTTP -----------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            while await self._serve_request(reader, writer):
                pass
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        start, *lines = head.strip().split("\r\n")
        method, target, _ = start.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request.of(method, target, raw)
        response = await self.respond(request)
        if response is None:
            return False
        status, headers, body = response
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body)
        await writer.drain()
        return True

    async def respond(self, request: Request) -> tuple[int, dict[str, str], bytes] | None:
        """Return status, headers and body; ``None`` to abort the connection."""
        number = len(self.requests)
        async with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
        fault = self.faults.pop(number, None) or self.fault_for(request)
        if fault is not None and fault.hold is not None:
            await fault.hold.wait()
        status, text = 200, ""
        if fault is None or fault.applied or fault.plain:
            try:
                text = json.dumps(self._handle(request))
            except Refused as refused:
                status, text = refused.status, json.dumps({"error": {"message": str(refused)}})
        headers = {"content-type": "application/json"}
        if fault is not None and not fault.plain:
            if fault.body is not None:
                status, text, headers = 200, fault.body, {"content-type": "text/html"}
            elif fault.status is not None:
                status, text = fault.status, json.dumps({"error": {"message": "injected fault"}})
            else:
                return None
            headers |= fault.headers
        return status, headers, text.encode()

    # --- the API --------------------------------------------------------------------------------

    def _handle(self, request: Request) -> dict[str, Any]:
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["conversations"]:
                name = f"conv_{next(self._numbers)}"
                self.conversations[name] = []
                return {"id": name, "object": "conversation", "created_at": 1, "metadata": {}}
            case "DELETE", ["conversations", name]:
                self._items(name)
                del self.conversations[name]
                return {"id": name, "object": "conversation.deleted", "deleted": True}
            case "POST", ["conversations", name, "items"]:
                return self._listing(self._add(self._items(name), request.body["items"]), more=False)
            case "GET", ["conversations", name, "items"]:
                return self._list(self._items(name), request.query)
            case "GET", ["conversations", name, "items", item_id]:
                return self._find(self._items(name), item_id)
            case "DELETE", ["conversations", name, "items", item_id]:
                items = self._items(name)
                items.remove(self._find(items, item_id))
                return {"id": name, "object": "conversation", "created_at": 1, "metadata": {}}
            case "POST", ["responses", "compact"]:
                if request.body.get("previous_response_id") == "resp_gone":
                    raise Refused(404, "no such response")
                return {
                    "id": f"cmp_{next(self._numbers)}",
                    "object": "response.compaction",
                    "created_at": 1,
                    "output": self.compact(request.body),
                    "usage": {
                        "input_tokens": 70,
                        "input_tokens_details": {"cached_tokens": 0},
                        "output_tokens": 7,
                        "output_tokens_details": {"reasoning_tokens": 0},
                        "total_tokens": 77,
                    },
                }
        raise Refused(404, f"nothing at {request.path}")

    def _items(self, name: str) -> list[dict[str, Any]]:
        if name not in self.conversations:
            raise Refused(404, f"no conversation {name}")
        return self.conversations[name]

    def _find(self, items: list[dict[str, Any]], item_id: str) -> dict[str, Any]:
        for item in items:
            if item["id"] == item_id:
                return item
        raise Refused(404, f"no item {item_id}")

    def _add(self, items: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not 1 <= len(new) <= 20:
            raise Refused(400, f"1 to 20 items, not {len(new)}")
        stored = [self._store(item) for item in new]
        items += stored
        return stored

    def _store(self, item: dict[str, Any]) -> dict[str, Any]:
        if "created_by" in item:
            raise Refused(400, "Unknown parameter: created_by")
        if item.get("type") == "reasoning" and not item.get("id") and not item.get("encrypted_content"):
            raise Refused(400, "Invalid item")
        stored = {"id": f"item_{next(self._numbers)}", "type": "message", "status": "completed", **item}
        if isinstance(stored.get("content"), str):
            part = "output_text" if stored.get("role") == "assistant" else "input_text"
            stored["content"] = [{"type": part, "text": stored["content"]}]
        if stored["type"] == "function_call_output":
            stored["created_by"] = "user"
        return stored

    def _list(self, items: list[dict[str, Any]], query: dict[str, list[str]]) -> dict[str, Any]:
        limit = int(query.get("limit", ["20"])[0])
        if not 1 <= limit <= 100:
            raise Refused(400, f"limit must be 1 to 100, not {limit}")
        ordered = items if query.get("order") == ["asc"] else items[::-1]
        if "after" in query:
            ordered = ordered[ordered.index(self._find(items, query["after"][0])) + 1 :]
        included = query.get("include[]", query.get("include", []))
        page = [without_pictures(item, included) for item in ordered[:limit]]
        return self._listing(page, more=len(ordered) > limit)

    def _listing(self, items: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
        first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
        return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": more}


def without_pictures(item: dict[str, Any], included: list[str]) -> dict[str, Any]:
    if "message.input_image.image_url" in included or not isinstance(item.get("content"), list):
        return item
    parts = [{key: value for key, value in part.items() if key != "image_url"} for part in item["content"]]
    return {**item, "content": parts}


def compacted(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the user's messages, and one compaction item for everything else."""
    items = body.get("input") or []
    messages = [{"id": f"msg_{n}", "type": "message", "status": "completed", **item} for n, item in enumerate(items)]
    about = body.get("previous_response_id") or len(items)
    return [
        *(item for item in messages if item.get("role") == "user"),
        {"id": "cmp_item", "type": "compaction", "encrypted_content": f"all of {about}", "created_by": "server"},
    ]
