"""The pool's end of one node: calls to its actor, and what Ray reports when the node is lost."""

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from standfast.fleet._node.wire import NodeReport, Reply, SessionBrief, decode, decode_reply, encode, restore_error
from standfast.fleet.cluster import ClusterNode, is_loss
from standfast.workers.errors import Cause, WorkerDied, WorkerRequestFailed

T = TypeVar("T")
_requests = itertools.count(1)


class NodeLink:
    """Calls the actor of one node for one pool. Once Ray reports that it is gone, every call raises ``WorkerDied``."""

    def __init__(self, node: ClusterNode, actor: Any, client: str, on_loss: Callable[["NodeLink"], None]) -> None:
        self.node, self._actor, self._client, self._on_loss = node, actor, client, on_loss
        self._control = actor.control.options(concurrency_group="control")
        self.loss: Cause | None = None
        self.report: NodeReport | None = None
        self.leased = 0
        self.draining = self.has_answered = False
        self._waiting: set[asyncio.Future[bytes]] = set()

    async def call(self, session_id: str, method: str, request: Any, kind: type[T]) -> tuple[T, SessionBrief | None]:
        """Call a method of a session, or of the node. If the caller is cancelled, so is the call."""
        request_id = f"{self._client}-{os.getpid()}-{next(_requests)}"
        self.check()
        work = self._actor.call.remote(self._client, request_id, session_id, method, encode(request))
        try:
            return self._decode(await self._receive(work), kind)
        except asyncio.CancelledError:
            if self.loss is None:
                self._control.remote(self._client, "", "abort", encode(request_id))
            raise

    async def control(self, session_id: str, method: str, request: Any, kind: type[T]) -> tuple[T, SessionBrief | None]:
        """Call a method that does not wait behind the others."""
        self.check()
        work = self._control.remote(self._client, session_id, method, encode(request))
        return self._decode(await self._receive(work), kind)

    def notify(self, method: str, request: Any) -> None:
        """Send a control call without waiting for its answer."""
        if self.loss is None:
            self._control.remote(self._client, "", method, encode(request))

    def check(self) -> None:
        """Raise :class:`WorkerDied` if the node is lost."""
        if self.loss is not None:
            raise WorkerDied(self.loss)

    async def _receive(self, work: Any) -> bytes:
        answered: asyncio.Future[bytes] = asyncio.wrap_future(work.future())
        self._waiting.add(answered)
        try:
            return await answered
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.loss is None or task is None or task.cancelling():
                raise
            raise WorkerDied(self.loss) from None
        except Exception as problem:
            if not is_loss(problem):
                raise
            self.lose(str(problem).strip().splitlines()[0])
            raise WorkerDied(self.loss or Cause("node-lost", "")) from None
        finally:
            self._waiting.discard(answered)

    def lose(self, detail: str) -> None:
        """Note that the node, or its actor, is gone."""
        if self.loss is None:
            self.loss = Cause("node-lost", f"node {self.node.node_id[:12]} at {self.node.address} is lost: {detail}")
            self._on_loss(self)
            # Without a head, Ray does not report that a call will get no answer.
            for answered in self._waiting:
                answered.cancel()

    @staticmethod
    def _decode(data: bytes, kind: type[T]) -> tuple[T, SessionBrief | None]:
        try:
            reply: Reply = decode_reply(data)
            fault = None if reply.fault is None else restore_error(reply.fault)
            value = cast(T, None) if fault else decode(reply.value, kind)
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError, LookupError) as problem:
            raise WorkerRequestFailed("ProtocolError", f"the node answered something else: {problem}") from None
        if fault is not None:
            raise fault
        return value, reply.brief
