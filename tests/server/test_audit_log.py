"""The audit log: entries in order of time, without secrets, until they are pruned."""

from collections.abc import Sequence

import pytest

from standfast import InvalidInput, Store, open_store
from standfast.server import Audit, AuditEntry, Principal, Role
from standfast.store.memory import MemoryBackend
from standfast.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def audit(clock: FakeClock) -> Audit:
    return Audit(Store(MemoryBackend(clock=clock)), clock=clock)


def make_principal(subject: str) -> Principal:
    return Principal(subject=subject, role=Role.USER, owner="acme", method="key")


async def fill(audit: Audit, clock: FakeClock, count: int) -> None:
    for number in range(count):
        clock.advance(1)
        await audit.append("decided", make_principal("ann" if number % 3 else "bob"), {"approval_id": f"a{number}"})


def list_approvals(entries: Sequence[AuditEntry]) -> list[str]:
    return [entry.details["approval_id"] for entry in entries]


async def test_entries_are_listed_newest_first_in_pages(audit: Audit, clock: FakeClock) -> None:
    await fill(audit, clock, 450)
    seen: list[str] = []
    after = None
    while page := await audit.list(limit=100, after=after):
        seen += list_approvals(page)
        after = page[-1].id
    assert seen == [f"a{number}" for number in reversed(range(450))]


async def test_entries_are_found_by_subject_action_and_time(audit: Audit, clock: FakeClock) -> None:
    began = clock.now
    await fill(audit, clock, 9)
    await audit.append("denied", None, {"method": "POST", "path": "/runs", "code": "unauthenticated", "left": None})
    assert list_approvals(await audit.list(subject="bob")) == ["a6", "a3", "a0"]
    [denied] = await audit.list(action="denied")
    assert denied.details == {"method": "POST", "path": "/runs", "code": "unauthenticated"}
    assert (denied.subject, denied.owner, denied.at) == ("nobody", "", clock.now)
    assert list_approvals(await audit.list(since=began + 2, until=began + 3)) == ["a2", "a1"]
    assert list_approvals(await audit.list(subject="bob", limit=1, after=denied.id)) == ["a6"]
    [decided] = await audit.list(subject="ann", limit=1)
    assert (decided.owner, decided.method, decided.action) == ("acme", "key", "decided")


async def test_an_entry_has_no_secrets(audit: Audit) -> None:
    secret = "sf_01k9x0_" + "a" * 52
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
    details = {"path": f"/runs/{token}?token=hidden&x=1", "code": "basic dXNlcjpwYXNz", secret: "x"}
    entry = await audit.append(f"GET {secret}", make_principal(f"Bearer {secret}"), details)
    text = f"{entry}{await audit.list()}"
    assert not any(part in text for part in (secret, token, "hidden", "dXNlcjpwYXNz", "c2lnbmF0dXJl"))
    assert entry.details["path"] == "/runs/[removed]"


async def test_an_entry_shows_what_is_invisible_and_stays_small(audit: Audit) -> None:
    details = {f"{number}": "x" * 10_000 for number in range(1000)}
    entry = await audit.append("x" * 10_000, make_principal("a\x1b[31m\u202e\ud800"), details)
    assert entry.subject == "a\\u001b[31m\\u202e\ufffd"
    assert len(repr(entry)) < 10_000
    assert await audit.list() == [entry]


async def test_entries_of_one_moment_keep_their_order(audit: Audit) -> None:
    for number in range(5):
        await audit.append(f"{number}", make_principal("ann"), {})
    assert [entry.action for entry in await audit.list()] == list("43210")


async def test_old_entries_are_pruned(audit: Audit, clock: FakeClock) -> None:
    await fill(audit, clock, 450)
    assert await audit.prune(older_than=40) == 409
    assert len(await audit.list(limit=1000)) == 41
    assert await audit.prune(older_than=40) == 0
    with pytest.raises(InvalidInput):
        await audit.prune(older_than=-1)


async def test_the_log_works_on_a_server(postgres_tables_url: str) -> None:
    async with open_store(postgres_tables_url) as store:
        audit = Audit(store)
        entries = [await audit.append(f"{number}", make_principal("ann"), {}) for number in range(3)]
        assert await audit.list(limit=2, after=None) == entries[:0:-1]
        assert await audit.prune(older_than=0) == 3
