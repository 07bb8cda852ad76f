"""A server in this process that speaks the wire protocol of MongoDB, with the commands that sessions use.

It stands in where no ``mongod`` is installed. It knows the operators of the filters and updates of sessions, raises an
error for every other, and applies one command at a time, as MongoDB applies changes of one document.
"""

import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import bson

OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
HELLO = {
    "ismaster": True,
    "isWritablePrimary": True,
    "helloOk": True,
    "maxBsonObjectSize": 2**24,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "minWireVersion": 0,
    "maxWireVersion": 21,
    "ok": 1.0,
}


def matches(document: dict[str, Any], where: dict[str, Any]) -> bool:
    return all(
        any(matches(document, one) for one in wanted) if name == "$or" else fits(document, name, wanted)
        for name, wanted in where.items()
    )


def fits(document: dict[str, Any], name: str, wanted: Any) -> bool:
    value = document.get(name)
    if not (isinstance(wanted, dict) and any(key.startswith("$") for key in wanted)):
        return bool(value == wanted)
    ((operator, operand),) = wanted.items()
    checks: dict[str, Callable[[], object]] = {
        "$in": lambda: value in operand,
        "$ne": lambda: value != operand,
        "$lt": lambda: value is not None and value < operand,
        "$exists": lambda: (name in document) is operand,
    }
    return bool(checks[operator]())


def change(document: dict[str, Any], update: dict[str, Any], *, is_new: bool) -> None:
    for operator, fields in update.items():
        for name, value in fields.items():
            match operator:
                case "$set":
                    document[name] = value
                case "$setOnInsert":
                    document.update({name: value} if is_new else {})
                case "$inc":
                    document[name] = document.get(name, 0) + value
                case "$pop" if value == 1:
                    document[name] = document[name][:-1]
                case _:
                    raise NotImplementedError(operator)


class Database:
    """The collections of all databases, by database and name."""

    def __init__(self) -> None:
        self.collections: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.lock = threading.Lock()

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        name, target = next(iter(command.items()))
        if name.lower() in ("hello", "ismaster"):
            return HELLO
        if name in ("ping", "endSessions", "createIndexes", "killCursors"):
            return {"ok": 1.0}
        with self.lock:
            documents = self.collections.setdefault((command["$db"], target), [])
            try:
                return {**getattr(self, f"run_{name}")(documents, command), "ok": 1.0}
            except (AttributeError, KeyError, NotImplementedError) as error:
                return {"ok": 0.0, "errmsg": f"{name} is not implemented: {error!r}", "code": 59}

    def run_find(self, documents: list[dict[str, Any]], command: dict[str, Any]) -> dict[str, Any]:
        found = [document for document in documents if matches(document, command.get("filter", {}))]
        for field, direction in reversed(list(command.get("sort", {}).items())):
            found.sort(key=lambda document: document[field], reverse=direction < 0)
        found = found[: command["limit"]] if command.get("limit") else found
        return {"cursor": {"id": bson.Int64(0), "ns": f"{command['$db']}.{command['find']}", "firstBatch": found}}

    def run_insert(self, documents: list[dict[str, Any]], command: dict[str, Any]) -> dict[str, Any]:
        documents += command["documents"]
        return {"n": len(command["documents"])}

    def run_update(self, documents: list[dict[str, Any]], command: dict[str, Any]) -> dict[str, Any]:
        (one,) = command["updates"]
        found = [document for document in documents if matches(document, one["q"])][:1]
        for document in found:
            change(document, one["u"], is_new=False)
        return {"n": len(found), "nModified": len(found)}

    def run_delete(self, documents: list[dict[str, Any]], command: dict[str, Any]) -> dict[str, Any]:
        (one,) = command["deletes"]
        found = [document for document in documents if matches(document, one["q"])]
        found = found[: one["limit"]] if one["limit"] else found
        documents[:] = [document for document in documents if not any(document is gone for gone in found)]
        return {"n": len(found)}

    def run_findAndModify(self, documents: list[dict[str, Any]], command: dict[str, Any]) -> dict[str, Any]:
        found = next((document for document in documents if matches(document, command["query"])), None)
        is_new = found is None
        if found is None:
            found = {"_id": bson.ObjectId()}
            documents.append(found)
        change(found, command["update"], is_new=is_new)
        return {"value": found}


class Connection(socketserver.StreamRequestHandler):
    """Reads requests and sends replies until the client closes the connection."""

    database: Database

    def handle(self) -> None:
        while len(header := self.rfile.read(16)) == 16:
            length, request, _, code = struct.unpack("<iiii", header)
            body = self.rfile.read(length - 16)
            if code == OP_QUERY:
                end = body.index(b"\0", 4) + 1
                answer = bson.encode(self.database.run(bson.decode(body[end + 8 :])))
                self.send(request, OP_REPLY, struct.pack("<iqii", 8, 0, 0, 1) + answer)
            else:
                answer = bson.encode(self.database.run(parse_message(body)))
                self.send(request, OP_MSG, struct.pack("<i", 0) + b"\0" + answer)

    def send(self, request: int, code: int, body: bytes) -> None:
        self.wfile.write(struct.pack("<iiii", 16 + len(body), 0, request, code) + body)


def parse_message(body: bytes) -> dict[str, Any]:
    """Return the command of a message: a document, and lists of documents beside it."""
    place, command, lists = 4, dict[str, Any](), dict[str, Any]()
    while place < len(body):
        (size,) = struct.unpack_from("<i", body, place + 1)
        section = body[place + 1 : place + 1 + size]
        if body[place] == 0:
            command = bson.decode(section)
        else:
            end = section.index(b"\0", 4)
            lists[section[4:end].decode()] = bson.decode_all(section[end + 1 :])
        place += 1 + size
    return {**command, **lists}


@contextmanager
def serve_mongodb() -> Iterator[str]:
    """Run a server while the block lasts, and return its URL."""
    handler = type("BoundConnection", (Connection,), {"database": Database()})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"mongodb://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
