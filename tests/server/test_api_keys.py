"""API keys: who has one is its owner with its role, until it expires or is revoked."""

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import InvalidInput, NotFound, Store, open_store
from standfast.server import ApiKeys, Audit, LoopbackToken, Role, Unauthenticated
from standfast.server.auth.keys import CACHE_SECONDS, USE_INTERVAL
from standfast.server.auth.principals import KeyRevoked, TokenExpired
from standfast.store.memory import MemoryBackend
from standfast.testing import FakeClock


@dataclasses.dataclass
class CountingBackend:
    """Counts the reads and commits of a backend."""

    backend: MemoryBackend
    reads: int = 0
    commits: int = 0

    async def get_document(self, kind, key):
        self.reads += 1
        return await self.backend.get_document(kind, key)

    async def commit(self, *ops):
        self.commits += 1
        return await self.backend.commit(*ops)

    def __getattr__(self, name):
        return getattr(self.backend, name)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> CountingBackend:
    return CountingBackend(MemoryBackend(clock=clock))


@pytest.fixture
def store(backend: CountingBackend) -> Store:
    return Store(backend)


@pytest.fixture
def keys(store: Store, clock: FakeClock) -> ApiKeys:
    return ApiKeys(store, clock=clock)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_a_key_stands_for_its_owner_and_role(keys: ApiKeys) -> None:
    made = await keys.create("laptop", role="approver", owner="ann")
    principal = await keys.authenticate(bearer(made.secret))
    assert principal is not None
    assert (principal.subject, principal.role, principal.owner, principal.method) == (
        f"key:{made.key.id}",
        Role.APPROVER,
        "ann",
        "key",
    )


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic abc"}, bearer("abc"), {"authorization": "Bearer"}])
async def test_other_credentials_are_left_to_other_authenticators(keys: ApiKeys, headers: dict[str, str]) -> None:
    assert await keys.authenticate(headers) is None


@pytest.mark.parametrize("role", list(Role))
async def test_every_role_can_have_a_key(keys: ApiKeys, role: Role) -> None:
    made = await keys.create("k", role=role, owner="ann")
    principal = await keys.authenticate(bearer(made.secret))
    assert principal is not None
    assert principal.role is role


async def test_a_wrong_secret_is_refused(keys: ApiKeys) -> None:
    one, other = [(await keys.create("k", role="admin", owner="ann")).secret for _ in range(2)]
    head, _, tail = one.rpartition("_")
    wrong = [
        f"{head}_{other.rpartition('_')[2]}",
        f"{head}_{'a' if tail[0] != 'a' else 'b'}{tail[1:]}",
        f"{head}_",
        f"{one}a",
        one.upper().replace("SF_", "sf_", 1),
        "sf_nosuchkey_" + tail,
        "sf_",
        "sf_'; DROP TABLE x; --_" + tail,
        "sf_" + "a" * 20_000,
    ]
    for secret in wrong:
        with pytest.raises(Unauthenticated) as refused:
            await keys.authenticate(bearer(secret))
        assert refused.value.code == "unauthenticated"
        assert tail not in str(refused.value)


@given(text=st.text(max_size=80), prefix=st.sampled_from(["", "sf_", "sf_a_", "Bearer ", "Bearer sf_"]))
async def test_any_other_text_is_refused_or_left_to_other_authenticators(text: str, prefix: str) -> None:
    keys, token = ApiKeys(Store(MemoryBackend())), LoopbackToken()
    headers = {"authorization": f"Bearer {prefix}{text}", "cookie": f"{token.cookie_name}={text}"}
    assert await token.authenticate(headers) is None
    with contextlib.suppress(Unauthenticated):
        assert await keys.authenticate(headers) is None


async def test_a_key_ends_when_it_expires(keys: ApiKeys, clock: FakeClock) -> None:
    made = await keys.create("k", role="user", owner="ann", expires=clock.now + 10)
    clock.advance(9.9)
    assert await keys.authenticate(bearer(made.secret)) is not None
    clock.advance(0.1)
    with pytest.raises(TokenExpired) as expired:
        await keys.authenticate(bearer(made.secret))
    assert expired.value.code == "token-expired"


async def test_a_revoked_key_ends_at_once_here_and_within_seconds_elsewhere(
    keys: ApiKeys, store: Store, clock: FakeClock
) -> None:
    elsewhere = ApiKeys(store, clock=clock)
    made = await keys.create("k", role="user", owner="ann")
    for one in (keys, elsewhere):
        assert await one.authenticate(bearer(made.secret)) is not None
    revoked = await keys.revoke(made.key.id, by="boss")
    assert (revoked.revoked_at, revoked.revoked_by) == (clock.now, "boss")
    with pytest.raises(KeyRevoked):
        await keys.authenticate(bearer(made.secret))
    clock.advance(CACHE_SECONDS)
    with pytest.raises(KeyRevoked) as refused:
        await elsewhere.authenticate(bearer(made.secret))
    assert refused.value.code == "key-revoked"


async def test_revoking_twice_keeps_the_first_revocation(keys: ApiKeys, clock: FakeClock) -> None:
    made = await keys.create("k", role="user", owner="ann")
    first = await keys.revoke(made.key.id, by="a")
    clock.advance(5)
    assert await keys.revoke(made.key.id, by="b") == first
    with pytest.raises(NotFound):
        await keys.revoke("nosuchkey")


async def test_the_store_never_has_a_secret(store: Store, keys: ApiKeys, backend: CountingBackend) -> None:
    made = await keys.create("k", role="user", owner="ann")
    await keys.authenticate(bearer(made.secret))
    await keys.revoke(made.key.id)
    random_part = made.secret.rpartition("_")[2]
    stored = [one.data.decode() for one in backend.backend.tables.documents.values()]
    assert len(stored) == 4  # the key, its use, and two entries of the audit log
    assert not any(random_part in data for data in stored)
    assert random_part not in f"{made!r} {await keys.list()!r}"


async def test_keys_are_listed_in_the_order_of_their_creation(keys: ApiKeys, clock: FakeClock) -> None:
    made = [await keys.create(name, role="user", owner="ann") for name in ("a", "b", "c")]
    clock.advance(3)
    await keys.authenticate(bearer(made[1].secret))
    listed = await keys.list()
    assert {key.name for key in listed} == {"a", "b", "c"}
    assert [key.id for key in listed] == sorted(key.id for key in listed)
    assert {key.name: key.last_used_at for key in listed} == {"a": None, "b": clock.now, "c": None}


async def test_more_keys_than_a_page_are_listed(keys: ApiKeys) -> None:
    for number in range(501):
        await keys.create(f"k{number}", role="user", owner="ann")
    assert len(await keys.list()) == 501


async def test_a_use_is_noted_once_a_minute_by_all_processes_together(
    keys: ApiKeys, store: Store, backend: CountingBackend, clock: FakeClock
) -> None:
    processes = [keys, ApiKeys(store, clock=clock)]
    made = await keys.create("k", role="user", owner="ann")
    began = backend.commits
    for minute in range(3):
        for _ in range(5):
            for process in processes:
                await process.authenticate(bearer(made.secret))
            clock.advance(USE_INTERVAL / 5)
        assert backend.commits - began == minute + 1


async def test_requests_with_one_key_are_answered_from_memory_for_some_seconds(
    keys: ApiKeys, backend: CountingBackend
) -> None:
    made = await keys.create("k", role="user", owner="ann")
    await keys.authenticate(bearer(made.secret))
    before = backend.reads
    for _ in range(50):
        await keys.authenticate(bearer(made.secret))
    assert backend.reads == before


async def test_a_use_that_cannot_be_noted_does_not_refuse_the_request(clock: FakeClock) -> None:
    backend = MemoryBackend(clock=clock)
    keys = ApiKeys(Store(backend), clock=clock)
    made = await keys.create("k", role="user", owner="ann")
    await keys.find(made.key.id)
    await backend.close()
    assert await keys.authenticate(bearer(made.secret)) is not None


async def test_changes_of_keys_are_audited(keys: ApiKeys, store: Store) -> None:
    made = await keys.create("k", role="user", owner="ann", by="oidc:boss")
    await keys.revoke(made.key.id, by="key:1")
    entries = await Audit(store).list()
    assert [(one.subject, one.action) for one in entries] == [("key:1", "key revoked"), ("oidc:boss", "key created")]
    assert entries[0].details == {"key_id": made.key.id, "name": "k", "role": "user", "owner": "ann"}


@pytest.mark.parametrize(
    "change",
    [{"name": ""}, {"role": "root"}, {"role": "2"}, {"owner": ""}, {"owner": "a\n"}, {"expires": 1.0}, {"by": ""}],
    ids=str,
)
async def test_invalid_keys_are_not_created(keys: ApiKeys, change: dict[str, object]) -> None:
    values = {"name": "k", "role": "user", "owner": "ann", **change}
    with pytest.raises(InvalidInput):
        await keys.create(**values)
    assert list(await keys.list()) == []


async def test_keys_work_in_a_file_between_two_stores(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with open_store(url) as one, open_store(url) as other:
        made = await ApiKeys(one).create("k", role="viewer", owner="ann")
        found = await asyncio.gather(*(ApiKeys(other).authenticate(bearer(made.secret)) for _ in range(5)))
        assert {principal.owner for principal in found if principal} == {"ann"}


async def test_keys_work_on_a_server(postgres_tables_url: str) -> None:
    async with open_store(postgres_tables_url) as store:
        keys = ApiKeys(store)
        made = await keys.create("k", role="viewer", owner="ann")
        assert await keys.authenticate(bearer(made.secret)) is not None
        await keys.revoke(made.key.id)
        with pytest.raises(KeyRevoked):
            await keys.authenticate(bearer(made.secret))
        [listed] = await keys.list()
        assert listed.last_used_at is not None
