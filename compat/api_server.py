"""A deterministic OpenAI API on loopback: Responses (also over WebSockets), Chat Completions, and Conversations.

The model follows the last user message: ``call NAME {...}`` calls that function, ``do TYPE {...}`` emits a call of that
item type, anything else is repeated. After a tool output it reports the output. With a JSON schema it answers with the
smallest fitting value. An eager model first calls every function that it is offered, or else hands off, once for each
message of the user.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from websockets.frames import Opcode
from websockets.server import ServerProtocol

Item = dict[str, Any]


class ApiServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *, eager: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.eager = eager
        self.requests: list[Item] = []
        self.conversations: dict[str, list[Item]] = {}
        self.responses: set[str] = set()
        self.count = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reset(self) -> None:
        self.requests, self.conversations, self.responses, self.count = [], {}, set(), 0

    def new_id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count}"


@contextmanager
def serve(*, eager: bool = False) -> Iterator[ApiServer]:
    server = ApiServer(eager=eager)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}")
        path = self.path.removeprefix("/v1").partition("?")[0]
        self.server.requests.append({"path": path, "body": body})
        if path == "/responses":
            self._respond(body)
        elif path == "/chat/completions":
            self._complete(body)
        elif path == "/conversations":
            name = self.server.new_id("conv")
            self.server.conversations[name] = list(body.get("items") or [])
            self._send_json({"id": name, "object": "conversation", "created_at": 0, "metadata": {}})
        elif path == "/responses/compact":
            self._send_json(self._compact(body))
        elif path == "/decisions":
            self._send_json(
                {"answers": [_decide(one) for one in body["questions"]], "model": body["model"], "usage": _USAGE}
            )
        elif not path.startswith("/conversations/"):
            self.send_error(404)
        else:
            stored = self.server.conversations[path.split("/")[2]]
            stored += [{"id": self.server.new_id("item"), **item} for item in body["items"]]
            self._send_json({"object": "list", "data": stored, "has_more": False, "first_id": None, "last_id": None})

    def do_GET(self) -> None:
        if self.headers.get("upgrade") == "websocket":
            self._serve_websocket()
            return
        stored = self.server.conversations[self.path.split("/")[3]]
        descending = "order=desc" in self.path
        data = [_as_stored(item) for item in (reversed(stored) if descending else stored)]
        self._send_json({"object": "list", "data": data, "has_more": False, "first_id": None, "last_id": None})

    def log_message(self, *_: object) -> None:
        return

    def _send_json(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _send_events(self, events: list[tuple[str | None, Any]]) -> None:
        lines = []
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data)
            lines.append((f"event: {name}\n" if name else "") + f"data: {text}\n\n")
        body = "".join(lines).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _serve_websocket(self) -> None:
        """Answer ``response.create`` frames until the client closes the connection."""
        protocol = ServerProtocol(max_size=None)
        protocol.receive_data(
            f"{self.requestline}\r\n{self.headers}".replace("\n", "\r\n").replace("\r\r", "\r").encode()
        )
        (request,) = protocol.events_received()
        protocol.send_response(protocol.accept(request))
        self.close_connection, text = True, b""
        while True:
            for data in protocol.data_to_send():
                self.connection.sendall(data) if data else None
            if protocol.close_expected():
                return
            received = self.connection.recv(65536)
            protocol.receive_data(received) if received else protocol.receive_eof()
            for frame in protocol.events_received():
                if frame.opcode in (Opcode.TEXT, Opcode.CONT):
                    text += frame.data
                    if frame.fin:
                        self._answer_frame(protocol, json.loads(text))
                        text = b""

    def _answer_frame(self, protocol: ServerProtocol, frame: Item) -> None:
        self.server.requests.append({"path": "ws:" + self.path.removeprefix("/v1"), "body": frame})
        previous = frame.get("previous_response_id")
        if previous is not None and previous not in self.server.responses:
            message = f"Previous response with id '{previous}' not found."
            error = {"type": "invalid_request_error", "code": "previous_response_not_found", "message": message}
            protocol.send_text(json.dumps({"type": "error", "status": 400, "error": error}).encode())
            return
        for event in _stream_response(self._make_response(frame)):
            protocol.send_text(json.dumps(event).encode())

    def _make_response(self, body: Item) -> Item:
        items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        output = [
            {"id": self.server.new_id(_PREFIXES.get(item["type"], "item")), **item}
            for item in _answer(items, body, eager=self.server.eager)
        ]
        response = {
            "id": self.server.new_id("resp"), "object": "response", "created_at": 0, "status": "completed",
            "model": body.get("model") or "prompt-model", "output": output, "parallel_tool_calls": True,
            "tool_choice": "auto", "tools": [], "metadata": {}, "instructions": None, "error": None,
            "incomplete_details": None, "temperature": 1.0, "top_p": 1.0,
            "usage": {"input_tokens": len(items), "output_tokens": len(output), "total_tokens": len(items) + len(output),
                      "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
        }  # fmt: skip
        self.server.responses.add(response["id"])
        return response

    def _compact(self, body: Item) -> Item:
        """Return the messages of the user and one item for all the rest."""
        kept = [{"type": "message", **item} for item in body.get("input") or [] if item.get("role") == "user"]
        compacted = {"type": "compaction", "encrypted_content": "compacted"}
        output = [{"id": self.server.new_id("cmp"), **item} for item in [*kept, compacted]]
        return {
            "id": self.server.new_id("resp"), "object": "response.compaction", "created_at": 0, "output": output,
            "usage": _USAGE,
        }  # fmt: skip

    def _respond(self, body: Item) -> None:
        response = self._make_response(body)
        if body.get("stream"):
            self._send_events([(event["type"], event) for event in _stream_response(response)])
        else:
            self._send_json(response)

    def _complete(self, body: Item) -> None:
        items = [_from_chat(message) for message in body["messages"] if message["role"] != "system"]
        tools = [{"type": "function", **tool["function"]} for tool in body.get("tools") or []]
        schema = (body.get("response_format") or {}).get("json_schema")
        form = {"format": {"type": "json_schema", **schema}} if schema else None
        answer = _answer(items, {"tools": tools, "text": form}, eager=self.server.eager)
        message: Item = {"role": "assistant", "content": None, "refusal": None}
        for item in answer:
            if item["type"] == "message":
                message["content"] = item["content"][0]["text"]
            else:
                call = {"name": item["name"], "arguments": item["arguments"]}
                message.setdefault("tool_calls", []).append(
                    {"id": item["call_id"], "type": "function", "function": call}
                )
        reason = "tool_calls" if "tool_calls" in message else "stop"
        base = {"id": self.server.new_id("chat"), "created": 0, "model": body["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send_json({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        delta = {
            **message,
            "tool_calls": [{"index": place, **call} for place, call in enumerate(message.get("tool_calls") or [])]
            or None,
        }
        chunks = [
            {"index": 0, "delta": delta, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": reason},
        ]
        sent = [{**base, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
        sent.append({**base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self._send_events([*((None, chunk) for chunk in sent), (None, "[DONE]")])


_PREFIXES = {"message": "msg", "function_call": "fc"}


_USAGE = {
    "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
}  # fmt: skip


def _decide(question: Item) -> Item:
    """Return the answer to a question: yes, or the first choice."""
    named = {"type": question["type"], "name": question.get("name")}
    if question["type"] == "predicate":
        return {**named, "probability": 0.9}
    if question["type"] == "score":
        return {**named, "score": 1.0, "confidence": 1.0, "probabilities": []}
    values = [one["value"] if isinstance(one, dict) else one for one in question["choices"]]
    shares = [{"value": value, "probability": float(value == values[0])} for value in values]
    return {**named, "choice": values[0], "confidence": 1.0, "probabilities": shares}


def _as_stored(item: Item) -> Item:
    return {"type": "message", "status": "completed", **item} if "role" in item else item


def _answer(items: list[Item], body: Item, *, eager: bool) -> list[Item]:
    """Return the items that the model answers with."""
    outputs = []
    for item in reversed(items):
        if not str(item.get("type")).endswith("_output"):
            break
        outputs.insert(0, item)
    if outputs:
        said = " and ".join(_get_text(item.get("output", item.get("status"))) for item in outputs)
        return [_make_message(f"Result: {said}", body)]
    users = [item for item in items if item.get("role") == "user"]
    text = _get_text(users[-1]["content"]) if users else "nothing"
    calls = []
    for number, (verb, name, arguments) in enumerate(re.findall(r"\b(call|do) (\S+) (\{.*?\})(?=$| and )", text)):
        call = {"call_id": f"call_{len(items)}_{number}", "status": "completed"}
        if verb == "call":
            calls.append({"type": "function_call", "name": name, "arguments": arguments, **call})
        else:
            calls.append({"type": name, **call, **json.loads(arguments)})
    if eager and not calls:
        calls = _call_everything(items, body)
    return calls or [_make_message(f"You said: {text}", body)]


def _call_everything(items: list[Item], body: Item) -> list[Item]:
    """Return a call of each function with the smallest fitting arguments; of a handoff only if there is nothing else."""
    functions = [tool for tool in body.get("tools") or [] if tool["type"] == "function"]
    offered = [tool for tool in functions if not tool["name"].startswith("transfer_to_")] or functions[:1]
    return [
        {
            "type": "function_call", "name": tool["name"], "call_id": f"call_{len(items)}_{number}", "status": "completed",
            "arguments": json.dumps(_make_value(tool["parameters"], tool["parameters"])),
        }
        for number, tool in enumerate(offered)
    ]  # fmt: skip


def _get_text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(_get_text(part.get("text") or part.get("stdout") or part.get("type")) for part in content)
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True)


def _make_message(text: str, body: Item) -> Item:
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        text = json.dumps(_make_value(form["schema"], form["schema"]))
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _make_value(schema: Item, root: Item) -> Any:
    if "$ref" in schema:
        return _make_value(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _make_value(schema["anyOf"][0], root)
    match schema.get("type"):
        case "object":
            return {name: _make_value(part, root) for name, part in (schema.get("properties") or {}).items()}
        case "array":
            return [_make_value(schema["items"], root)]
        case "integer" | "number":
            return 7
        case "boolean":
            return True
    return "text"


def _stream_response(response: Item) -> list[Item]:
    events: list[Item] = [{"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}]
    for index, item in enumerate(response["output"]):
        events += list(_stream_item(index, item))
    events.append({"type": "response.completed", "response": response})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _stream_item(index: int, item: Item) -> Iterator[Item]:
    empty = (
        {**item, "content": []}
        if item["type"] == "message"
        else {**item, "arguments": ""}
        if "arguments" in item
        else item
    )
    yield {"type": "response.output_item.added", "output_index": index, "item": {**empty, "status": "in_progress"}}
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "message":
        place, part = {**where, "content_index": 0}, item["content"][0]
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        for word in re.findall(r"\S+\s*", part["text"]):
            yield {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
    elif item["type"] == "function_call":
        yield {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]}
        yield {
            "type": "response.function_call_arguments.done",
            **where,
            "arguments": item["arguments"],
            "name": item["name"],
        }
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _from_chat(message: Item) -> Item:
    if message["role"] == "tool":
        return {"type": "function_call_output", "output": message["content"]}
    return {"role": message["role"], "content": message.get("content") or ""}
