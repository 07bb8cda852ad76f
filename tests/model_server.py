"""A server of OpenAI's model APIs that answers by script, over real HTTP, and misbehaves when told to."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class Reply:
    """A whole answer."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Stream:
    """An answer in server-sent events. ``cut`` breaks the connection after them, without an end."""

    events: Sequence[dict[str, Any]]
    cut: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Drop:
    """No answer: the connection is closed."""


@dataclass
class Hang:
    """No answer, until the client gives up; ``given_up`` is set then. ``first`` is streamed before."""

    first: Sequence[dict[str, Any]] = ()
    given_up: asyncio.Event = field(default_factory=asyncio.Event)


class ModelServer:
    """Plays answers in order; ``asked`` has what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.answers: deque[Reply | Stream | Drop | Hang] = deque()

    @property
    def last(self) -> dict[str, Any]:
        return self.asked[-1].body

    def plays(self, *answers: Reply | Stream | Drop | Hang) -> None:
        self.answers.extend(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(head[0].split()[1], headers, json.loads(body or b"{}")))
                await self.answer(self.answers.popleft(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, answer: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match answer:
            case Reply():
                body = json.dumps(answer.body).encode()
                head = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
                writer.write(_head(answer.status, head) + body)
                await writer.drain()
            case Stream():
                await self.stream(writer, answer.events, answer.headers)
                if answer.cut:
                    raise ConnectionAbortedError
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            case Hang():
                if answer.first:
                    await self.stream(writer, answer.first, {}, done=False)
                await reader.read()
                answer.given_up.set()
                raise ConnectionAbortedError
            case Drop():
                raise ConnectionAbortedError

    async def stream(
        self,
        writer: asyncio.StreamWriter,
        events: Sequence[dict[str, Any]],
        headers: Mapping[str, str],
        done: bool = True,
    ) -> None:
        head = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers}
        writer.write(_head(200, head))
        chat = bool(events) and "type" not in events[0]
        for event in events:
            name = "" if chat else f"event: {event['type']}\n"
            _chunk(writer, f"{name}data: {json.dumps(event)}\n\n")
        if chat and done:
            _chunk(writer, "data: [DONE]\n\n")
        await writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Said so", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    serving = ModelServer()
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        await serving.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    serving.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield serving
    finally:
        server.close()
        for writer in connections.values():
            writer.transport.abort()
        await asyncio.gather(*connections)
        await server.wait_closed()


# What the APIs answer.


def failed(status: int, message: str = "no", code: str | None = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply({"error": {"message": message, "type": "error", "param": None, "code": code}}, status, named)


def response(*output: dict[str, Any], status: str = "completed", **parts: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "usage": usage,
        **parts,
    }


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def called(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def response_events(*output: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a streamed answer, from the first to the last."""
    begun = response(status="in_progress", usage=None)
    found: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(output):
        found.append(
            {"type": "response.output_item.added", "item": {**item, "status": "in_progress"}, "output_index": index}
        )
        if item["type"] == "message":
            found.append(
                {
                    "type": "response.output_text.delta",
                    "item_id": item["id"],
                    "output_index": index,
                    "content_index": 0,
                    "delta": item["content"][0]["text"],
                    "logprobs": [],
                }
            )
        found.append({"type": "response.output_item.done", "item": item, "output_index": index})
    found.append({"type": "response.completed", "response": response(*output)})
    return [{**event, "sequence_number": number} for number, event in enumerate(found)]


def completion(message: dict[str, Any], finish_reason: str = "stop", **parts: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        **parts,
    }


def chunks(*deltas: dict[str, Any], finish_reason: str | None = "stop", usage: bool = True) -> list[dict[str, Any]]:
    """The chunks of a streamed completion."""
    base = {"id": "chatcmpl_1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    found = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish_reason is not None:
        found.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    if usage:
        counted = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        found.append({**base, "choices": [], "usage": counted})
    return found
