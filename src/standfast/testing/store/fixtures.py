"""What a backend supplies to the store suite, and how the suite looks at a backend."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from standfast.store.backend import Backend
from standfast.store.operations import Splice, ViewUpdate
from standfast.store.records import Head
from standfast.store.tape import slice_spans
from standfast.testing.faults import Reopen, StorageFixtures, get_optional_fixture

CorruptRecord: TypeAlias = Callable[[Backend, str, int, bytes | None], Awaitable[None]]
StoredItemsReader: TypeAlias = Callable[[Any], Awaitable[dict[tuple[int, int], bytes | None]]]


class StoreFixtures(StorageFixtures):
    """The fixtures and flags that :class:`~standfast.testing.StoreContract` describes."""

    runs = True
    examples = 20

    @pytest.fixture
    def corrupt(self) -> CorruptRecord:
        pytest.skip("this backend has no way to damage a record")

    @pytest.fixture
    def stored(self) -> StoredItemsReader:
        pytest.skip("this backend has no way to look at its storage")

    @pytest.fixture
    def stored_if_any(self, request: pytest.FixtureRequest) -> StoredItemsReader | None:
        """``stored`` for clauses that also prove something without it."""
        found: StoredItemsReader | None = get_optional_fixture(request, "stored")
        return found

    @pytest.fixture
    async def backend(self, reopen: Reopen) -> AsyncIterator[Backend]:
        async with reopen() as backend:
            yield backend

    @pytest.fixture
    def run_backend(self, backend: Backend) -> Backend:
        """A backend that keeps runs as well as histories."""
        if not self.runs:
            pytest.skip("this backend keeps no runs")
        return backend


async def append(backend: Backend, session_id: str, *data: bytes, **options: Any) -> Head:
    """Append records; the head afterwards."""
    (head,) = await backend.commit(Splice(session_id=session_id, add=data, **options))
    assert isinstance(head, Head)
    return head


async def read_data(backend: Backend, session_id: str, **window: Any) -> list[bytes | None]:
    """The records that a read shows, without their places; none for a session that does not exist."""
    page = await backend.read(session_id, **window)
    return [row.data for row in page.rows] if page else []


async def make_rewind(backend: Backend, session_id: str, to: int, *add: bytes, archive: bool = True) -> Splice:
    """The splice that shows the first ``to`` records and ``add`` after them."""
    record = await backend.get_session(session_id)
    assert record is not None
    shape = ViewUpdate(slice_spans(record.view, 0, to), record.next_seq, to + len(add), archive)
    return Splice(session_id=session_id, add=add, view_update=shape, expected=record.version)


async def make_fork(backend: Backend, parent: str, child: str, at: int) -> Splice:
    """The splice that makes ``child`` start with the first ``at`` records of ``parent``."""
    record = await backend.get_session(parent)
    assert record is not None
    spans = slice_spans(record.view, 0, at)
    links = {span.tape: max(end.stop for end in spans if end.tape == span.tape) for span in spans}
    return Splice(session_id=child, view_update=ViewUpdate(spans, 0, at), expected=0, links=tuple(links.items()))


async def dump_backend(
    backend: Backend, *, name_contains: str = "", runs: bool = True, leases: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Everything that any read shows of what has ``within`` in its name, to compare before with after."""
    seen: dict[str, Any] = {
        "sessions": await backend.list_sessions(owner=None, query=name_contains, limit=1000, after=None)
    }
    for record in seen["sessions"]:
        name = record.session_id
        generations = await backend.list_generations(name)
        seen[f"session {name}"] = {
            "record": await backend.get_session(name),
            "page": await backend.read(name),
            "generations": generations,
            "shown before": [await read_data(backend, name, generation=entry.number) for entry in generations],
            "quarantined": await backend.list_quarantined(name),
        }
    if runs:
        listed = await backend.list_runs(status=None, session_id=None, limit=1000, after=0)
        asked = await backend.list_approvals(status=None, run_id=None, session_id=None, limit=1000, after="")
        seen["runs"] = [run for run in listed if name_contains in run.run_id]
        for run in seen["runs"]:
            seen[f"journal {run.run_id}"] = await backend.read_journal(run.run_id, after=0)
            seen[f"events {run.run_id}"] = await backend.read_events(run.run_id, after=0, limit=1000)
        seen["approvals"] = [approval for approval in asked if name_contains in approval.approval_id]
    seen["leases"] = [await backend.get_lease(name) for name in leases]
    return seen
