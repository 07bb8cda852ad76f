"""The fixtures of the store suite, and functions with which it writes and reads."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from standfast.store.backend import Backend
from standfast.store.operations import Splice, ViewUpdate
from standfast.store.records import Head
from standfast.store.tape import slice_spans
from standfast.testing.faults import Reopen, StorageFixtures, get_optional_fixture

CorruptRecord: TypeAlias = Callable[[Backend, str, int, bytes | None], Awaitable[None]]
ListStoredItems: TypeAlias = Callable[[Any], Awaitable[dict[tuple[int, int], bytes | None]]]


class StoreFixtures(StorageFixtures):
    """The fixtures and flags that :class:`~standfast.testing.StoreContract` describes."""

    runs = True
    examples = 20

    @pytest.fixture
    def corrupt(self) -> CorruptRecord:
        """Damages a record. Skips tests unless it is overridden."""
        pytest.skip("this backend supplies no way to damage a record")

    @pytest.fixture
    def list_items(self) -> ListStoredItems:
        """Lists what is stored. Skips tests unless it is overridden."""
        pytest.skip("this backend supplies no way to read its storage")

    @pytest.fixture
    def list_items_if_any(self, request: pytest.FixtureRequest) -> ListStoredItems | None:
        """``list_items``, or ``None``, for tests that do not depend on it."""
        reader: ListStoredItems | None = get_optional_fixture(request, "list_items")
        return reader

    @pytest.fixture
    async def backend(self, reopen: Reopen) -> AsyncIterator[Backend]:
        """The open backend."""
        async with reopen() as backend:
            yield backend

    @pytest.fixture
    def run_backend(self, backend: Backend) -> Backend:
        """``backend``, if it supports runs."""
        if not self.runs:
            pytest.skip("this backend does not support runs")
        return backend


async def append(backend: Backend, session_id: str, *data: bytes, **options: Any) -> Head:
    """Append items and return the new head."""
    (head,) = await backend.commit(Splice(session_id=session_id, add=data, **options))
    assert isinstance(head, Head)
    return head


async def read_data(backend: Backend, session_id: str, **window: Any) -> list[bytes | None]:
    """Return the data of the items that a read returns; an empty list if the session does not exist."""
    page = await backend.read(session_id, **window)
    return [row.data for row in page.rows] if page else []


async def make_rewind(backend: Backend, session_id: str, to: int, *add: bytes, archive: bool = True) -> Splice:
    """Return the splice that reduces the view to its first ``to`` items, followed by ``add``."""
    record = await backend.get_session(session_id)
    assert record is not None
    view_update = ViewUpdate(slice_spans(record.view, 0, to), record.next_seq, to + len(add), archive)
    return Splice(session_id=session_id, add=add, view_update=view_update, expected=record.version)


async def make_fork(backend: Backend, parent: str, child: str, at: int) -> Splice:
    """Return the splice that creates ``child`` with the first ``at`` items of ``parent``."""
    record = await backend.get_session(parent)
    assert record is not None
    spans = slice_spans(record.view, 0, at)
    links = {span.tape: max(end.stop for end in spans if end.tape == span.tape) for span in spans}
    return Splice(session_id=child, view_update=ViewUpdate(spans, 0, at), expected=0, links=tuple(links.items()))


async def dump_backend(
    backend: Backend, *, name_contains: str = "", runs: bool = True, leases: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the results of all reads about names that contain ``name_contains``, for comparisons."""
    dump: dict[str, Any] = {
        "sessions": await backend.list_sessions(owner=None, query=name_contains, limit=1000, after=None)
    }
    for record in dump["sessions"]:
        name = record.session_id
        generations = await backend.list_generations(name)
        dump[f"session {name}"] = {
            "record": await backend.get_session(name),
            "page": await backend.read(name),
            "generations": generations,
            "former views": [await read_data(backend, name, generation=entry.number) for entry in generations],
            "quarantined": await backend.list_quarantined(name),
        }
    if runs:
        listed = await backend.list_runs(status=None, session_id=None, limit=1000, after=0)
        approvals = await backend.list_approvals(status=None, run_id=None, session_id=None, limit=1000, after="")
        dump["runs"] = [run for run in listed if name_contains in run.run_id]
        for run in dump["runs"]:
            dump[f"journal {run.run_id}"] = await backend.read_journal(run.run_id, after=0)
            dump[f"events {run.run_id}"] = await backend.read_events(run.run_id, after=0, limit=1000)
        dump["approvals"] = [approval for approval in approvals if name_contains in approval.approval_id]
        workspaces = await backend.list_workspaces(limit=1000, after="")
        for workspace in [one for one in workspaces if name_contains in one.key]:
            versions = await backend.read_versions(workspace.key)
            checkpoints = [await backend.get_checkpoint(workspace.key, one.version) for one in versions]
            blobs = [await backend.find_blobs(one.blobs) for one in checkpoints if one is not None]
            dump[f"workspace {workspace.key}"] = [workspace, versions, checkpoints, blobs]
    dump["leases"] = [await backend.get_lease(name) for name in leases]
    return dump
