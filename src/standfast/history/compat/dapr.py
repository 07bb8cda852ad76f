"""Sessions in a state store of Dapr, with the constructors and the keys of openai-agents.

The history is the value of ``ID:messages``, a list of JSON texts. A change reads it and writes it with its etag; if
another writer was faster, it is read and changed again.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

from standfast.base.errors import InvalidInput, MissingExtra, SessionDamaged, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.base.items import Item
from standfast.history.compat.json_items import decode_text, decode_texts, encode_texts
from standfast.history.session import (
    SessionABC,
    SessionSettings,
    make_contention_error,
    make_conversation_key,
    validate_limit,
)
from standfast.lifecycle.scope import run_to_end

if TYPE_CHECKING:
    from dapr.aio.clients import DaprClient
    from dapr.clients.grpc._state import StateOptions

ConsistencyLevel = Literal["eventual", "strong"]
DAPR_CONSISTENCY_EVENTUAL: ConsistencyLevel = "eventual"
DAPR_CONSISTENCY_STRONG: ConsistencyLevel = "strong"

_MAX_ATTEMPTS = 50
_GRACE = 5.0  # seconds for a cancelled write to end by itself


class DaprSession(SessionABC):
    """A session in a state store of Dapr. The caller owns the client, except with :meth:`from_address`.

    Sessions of openai-agents in the same store are the same sessions: both programs can use them in turn. With ``ttl``,
    a session expires that many seconds after the last write, if the state store supports it. Items that cannot be read
    are skipped, and :meth:`pop_item` removes them.
    """

    def __init__(
        self,
        session_id: str,
        *,
        state_store_name: str,
        dapr_client: "DaprClient",
        ttl: int | None = None,
        consistency: ConsistencyLevel = DAPR_CONSISTENCY_EVENTUAL,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = validate_name("session id", session_id)
        self.session_settings = SessionSettings.coerce(session_settings)
        if consistency not in (DAPR_CONSISTENCY_EVENTUAL, DAPR_CONSISTENCY_STRONG):
            raise InvalidInput(f"consistency must be 'eventual' or 'strong', not {consistency!r}")
        self._client = dapr_client
        self._owns_client = False
        self._store = state_store_name
        self._consistency = consistency
        self._metadata = {} if ttl is None else {"ttlInSeconds": str(ttl)}

    @classmethod
    def from_address(
        cls,
        session_id: str,
        *,
        state_store_name: str,
        dapr_address: str = "localhost:50001",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a session with a client of its own, which :meth:`close` closes."""
        try:
            from dapr.aio.clients import DaprClient
        except ImportError as error:
            raise MissingExtra("dapr", "DaprSession") from error
        client = DaprClient(address=dapr_address)
        session = cls(
            session_id,
            state_store_name=state_store_name,
            dapr_client=client,
            session_settings=session_settings,
            **kwargs,
        )
        session._owns_client = True
        return session

    @property
    def conversation_key(self) -> str:
        """The key under which tools keep state for this session; sessions of other stores have other keys."""
        return make_conversation_key(f"dapr {self._store}", self.session_id)

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest ``limit`` items, oldest first. The default is the limit of the settings, else all items."""
        wanted = validate_limit(limit)
        if wanted is None and self.session_settings is not None:
            wanted = self.session_settings.limit
        items = decode_texts(self.session_id, (await self._read())[0])
        return items if wanted is None else items[len(items) - min(wanted, len(items)) :]

    async def add_items(self, items: list[Item]) -> None:
        """Append a batch atomically."""
        added = encode_texts(items)
        if added:
            await run_to_end(self._append(added), grace=_GRACE)

    async def _append(self, added: list[str]) -> None:
        await self._change(lambda texts: [*texts, *added])
        await self._describe()

    async def pop_item(self) -> Item | None:
        """Remove and return the latest item; ``None`` if the history is empty."""
        popped: list[Item] = []

        def pop(texts: list[Any]) -> list[Any]:
            popped.clear()
            while texts and not popped:
                item = decode_text(texts[-1])
                texts = texts[:-1]
                popped.extend([] if item is None else [item])
            return texts

        await run_to_end(self._change(pop), grace=_GRACE)
        return popped[0] if popped else None

    async def clear_session(self) -> None:
        """Erase the history."""
        options = self._make_options()
        for key in (f"{self.session_id}:messages", f"{self.session_id}:metadata"):
            await self._call(self._client.delete_state(self._store, key, options=options))

    async def ping(self) -> bool:
        """Return True if the sidecar and the state store respond."""
        try:
            await self._client.get_state(self._store, "__ping__", state_metadata={"consistency": self._consistency})
        except _get_error_types():
            return False
        return True

    async def close(self) -> None:
        """Close the client if :meth:`from_address` created it. A client of the caller stays open."""
        if self._owns_client:
            await self._client.close()  # type: ignore[no-untyped-call]

    async def _read(self) -> tuple[list[Any], str | None]:
        """Return the stored texts and their etag."""
        answer = await self._call(
            self._client.get_state(
                self._store, f"{self.session_id}:messages", state_metadata={"consistency": self._consistency}
            )
        )
        try:
            texts = json.loads(answer.data) if answer.data else []
        except ValueError as error:
            raise SessionDamaged(self.session_id, f"its messages are not JSON: {error}") from None
        if not isinstance(texts, list):
            raise SessionDamaged(self.session_id, f"its messages are {type(texts).__name__}, not a list")
        return texts, answer.etag or None

    async def _change(self, change: Callable[[list[Any]], list[Any]]) -> None:
        options = self._make_options(first_write=True)
        for attempt in range(_MAX_ATTEMPTS):
            texts, etag = await self._read()
            changed = change(texts)
            if changed == texts:
                return
            value = json.dumps(changed, ensure_ascii=False, separators=(",", ":"))
            try:
                await self._client.save_state(
                    self._store,
                    f"{self.session_id}:messages",
                    value,
                    etag=etag,
                    options=options,
                    state_metadata=self._metadata,
                )
            except _get_error_types() as error:
                if _get_status(error) not in ("ABORTED", "FAILED_PRECONDITION"):
                    raise self._translate(error) from error
                await asyncio.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 7)))
                continue
            return
        raise make_contention_error(self.session_id, _MAX_ATTEMPTS)

    def _make_options(self, *, first_write: bool = False) -> "StateOptions":
        from dapr.clients.grpc._state import Concurrency, Consistency, StateOptions

        consistency = Consistency.strong if self._consistency == DAPR_CONSISTENCY_STRONG else Consistency.eventual
        return StateOptions(
            consistency=consistency, concurrency=Concurrency.first_write if first_write else Concurrency.unspecified
        )

    async def _describe(self) -> None:
        """Store the times of the session, as openai-agents does. They are not part of the history."""
        key, now = f"{self.session_id}:metadata", str(int(time.time()))
        stored = await self._call(self._client.get_state(self._store, key))
        try:
            known = json.loads(stored.data)
            created = known["created_at"]
        except (ValueError, KeyError, TypeError):
            created = now
        value = json.dumps({"session_id": self.session_id, "created_at": created, "updated_at": now})
        await self._call(self._client.save_state(self._store, key, value, state_metadata=self._metadata))

    async def _call(self, call: Any) -> Any:
        try:
            return await call
        except _get_error_types() as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StoreUnavailable:
        call = _find_call(error)
        reason = call.details() if call is not None and hasattr(call, "details") else error
        return StoreUnavailable(f"the state store {self._store!r} of Dapr: {reason}")


def _get_error_types() -> tuple[type[Exception], ...]:
    import grpc
    from dapr.clients.exceptions import DaprGrpcError, DaprInternalError

    return (grpc.RpcError, DaprInternalError, DaprGrpcError, OSError)


def _find_call(error: BaseException | None) -> Any:
    """Return the failed call of gRPC, which the client may have put into an error of its own."""
    import grpc

    while error is not None and not isinstance(error, grpc.RpcError):
        error = error.__cause__ or error.__context__
    return error


def _get_status(error: Exception) -> str | None:
    call = _find_call(error)
    return call.code().name if call is not None and hasattr(call, "code") else None
