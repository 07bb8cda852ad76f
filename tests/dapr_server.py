"""A Dapr sidecar for tests: the state API of the published protocol, over gRPC, with one state store in memory.

It implements what the protocol says about etags (a save or deletion with another etag than the stored one fails, and
with first-write concurrency so does a save without an etag over an existing value) and ``ttlInSeconds``, which is
recorded.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, NamedTuple

import grpc
from dapr.proto import api_v1, common_v1
from dapr.proto.runtime.v1 import dapr_pb2_grpc
from google.protobuf.empty_pb2 import Empty

FIRST_WRITE = common_v1.StateOptions.StateConcurrency.CONCURRENCY_FIRST_WRITE


class Health(BaseHTTPRequestHandler):
    """What the client asks before it uses a sidecar."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serve_health() -> Iterator[str]:
    """Yield the URL for ``DAPR_HTTP_ENDPOINT``."""
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class StoredState(NamedTuple):
    value: bytes
    etag: str
    metadata: dict[str, str]


class DaprSidecar(dapr_pb2_grpc.DaprServicer):
    """The state of one sidecar, and the requests that it got."""

    def __init__(self) -> None:
        self.states: dict[str, StoredState] = {}
        self.requests: list[Any] = []
        self.fail_saves = 0  # so many saves to come fail, as if the store were away
        self.address = ""
        self._next_etag = 1

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator["DaprSidecar"]:
        sidecar, server = cls(), grpc.aio.server()
        dapr_pb2_grpc.add_DaprServicer_to_server(sidecar, server)  # type: ignore[no-untyped-call]
        sidecar.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield sidecar
        finally:
            await server.stop(None)

    async def check_store(self, name: str, context: Any) -> None:
        if name != "statestore":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"state store {name} is not found")

    async def check_etag(self, item: Any, context: Any) -> None:
        stored = self.states.get(item.key)
        wanted = item.etag.value
        if wanted and (stored is None or stored.etag != wanted):
            await context.abort(grpc.StatusCode.ABORTED, f"possible etag mismatch for {item.key}")
        if not wanted and stored is not None and item.options.concurrency == FIRST_WRITE:
            await context.abort(grpc.StatusCode.ABORTED, f"possible etag mismatch for {item.key}")

    async def GetState(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        await self.check_store(request.store_name, context)
        stored = self.states.get(request.key)
        return api_v1.GetStateResponse() if stored is None else api_v1.GetStateResponse(data=stored[0], etag=stored[1])

    async def SaveState(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        await self.check_store(request.store_name, context)
        if self.fail_saves:
            self.fail_saves -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "the state store is away")
        for item in request.states:
            await self.check_etag(item, context)
        for item in request.states:
            self.states[item.key] = StoredState(item.value, str(self._next_etag), dict(item.metadata))
            self._next_etag += 1
        return Empty()

    async def DeleteState(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        await self.check_store(request.store_name, context)
        await self.check_etag(request, context)
        self.states.pop(request.key, None)
        return Empty()
