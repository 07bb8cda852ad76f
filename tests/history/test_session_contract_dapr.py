"""The session contract over a state store of Dapr, and states of openai-agents."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from standfast import DaprSession
from standfast.base.errors import SessionDamaged, StoreUnavailable
from standfast.history.session import SessionSettings
from standfast.testing import PlainSessionContract
from standfast.testing.faults import Reopen

pytest.importorskip("dapr")
theirs = pytest.importorskip("agents.extensions.memory.dapr_session")

from dapr.aio.clients import DaprClient  # noqa: E402

from dapr_server import DaprSidecar, serve_health  # noqa: E402

pytestmark = pytest.mark.leaks("fd", "thread")  # gRPC polls in a thread of its own, which ends when it likes


@pytest.fixture(autouse=True, scope="module")
def health() -> Iterator[None]:
    with serve_health() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAPR_HTTP_ENDPOINT", url)
        yield


@pytest.fixture
async def sidecar() -> AsyncIterator[DaprSidecar]:
    async with DaprSidecar.running() as running:
        yield running


class TestOverDapr(PlainSessionContract):
    @pytest.fixture
    def reopen(self, sidecar: DaprSidecar) -> Reopen:
        @asynccontextmanager
        async def reopen() -> AsyncIterator[DaprClient]:
            async with DaprClient(address=sidecar.address) as client:
                yield client

        return reopen

    def open_session(self, storage: Any, session_id: str, *, settings: SessionSettings | None = None) -> DaprSession:
        return DaprSession(session_id, state_store_name="statestore", dapr_client=storage, session_settings=settings)


def make_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_both_programs_use_a_session_in_turn(sidecar: DaprSidecar) -> None:
    place: dict[str, Any] = {"state_store_name": "statestore", "dapr_address": sidecar.address, "ttl": 60}
    our, their = DaprSession.from_address("ann", **place), theirs.DaprSession.from_address("ann", **place)
    await their.add_items([make_message("1"), make_message("2, é")])
    await our.add_items([make_message("3")])
    await their.add_items([make_message("4")])
    assert await our.get_items() == await their.get_items() == [make_message(text) for text in ("1", "2, é", "3", "4")]
    assert await our.pop_item() == make_message("4")
    assert await their.pop_item() == make_message("3")
    assert {state.metadata["ttlInSeconds"] for state in sidecar.states.values()} == {"60"}
    await our.clear_session()
    assert await their.get_items() == []
    assert sidecar.states == {}
    await our.close()
    await their.close()


async def test_failures_are_errors_of_the_store(sidecar: DaprSidecar) -> None:
    place: dict[str, Any] = {"dapr_address": sidecar.address, "consistency": "strong"}
    session = DaprSession.from_address("ann", state_store_name="statestore", **place)
    missing = DaprSession.from_address("ann", state_store_name="nowhere", **place)
    assert (await session.ping(), await missing.ping()) == (True, False)
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await missing.get_items()
    sidecar.fail_saves = 1
    with pytest.raises(StoreUnavailable, match="is away"):
        await session.add_items([make_message("lost")])
    assert await session.get_items() == []
    async with DaprClient(address=sidecar.address) as client:
        await client.save_state("statestore", "ann:messages", '{"not": "a list"}')
    with pytest.raises(SessionDamaged):
        await session.add_items([make_message("x")])
    await session.close()
    await missing.close()
