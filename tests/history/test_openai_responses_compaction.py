"""Compaction by the Responses API, over real HTTP and around sessions of both kinds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast.base.errors import HistoryMoved, InvalidInput, NotFound, StoreUnavailable
from holdfast.history.contract import SessionABC, SessionSettings
from holdfast.history.conversations import OpenAIConversationsSession
from holdfast.history.encrypted import EncryptedSession
from holdfast.history.openai_api import Outcome, RequestFailed
from holdfast.history.replacement import RestoreFailed
from holdfast.history.responses_compaction import (
    OpenAIResponsesCompactionArgs,
    OpenAIResponsesCompactionAwareSession,
    OpenAIResponsesCompactionSession,
    is_openai_responses_compaction_aware_session,
)
from holdfast.history.session import StoredSession
from holdfast.store.memory import MemoryBackend
from holdfast.testing.virtual_time import run_in_virtual_time
from openai_server import Fault, OpenAIServer

Item = dict[str, Any]


class ForeignSession(SessionABC):
    """Somebody else's session: four methods, no transactions, and it can break at any of its steps."""

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self.session_id = "foreign"
        self.session_settings = settings
        self.items: list[Item] = []
        self.steps: list[str] = []
        self.before: Callable[[str, int], Awaitable[None]] | None = None
        self.after: Callable[[str, int], Awaitable[None]] | None = None

    async def get_items(self, limit: int | None = None) -> list[Item]:
        limit = limit if limit is not None else self.session_settings.limit if self.session_settings else None
        return [dict(item) for item in (self.items if limit is None else self.items[-limit:] if limit else [])]

    async def add_items(self, items: list[Item]) -> None:
        await self.step("add", lambda: self.items.extend(dict(item) for item in items))

    async def pop_item(self) -> Item | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        await self.step("clear", self.items.clear)

    async def step(self, name: str, act: Callable[[], None]) -> None:
        self.steps.append(name)
        count = self.steps.count(name)
        if self.before is not None:
            await self.before(name, count)
        act()
        if self.after is not None:
            await self.after(name, count)


class ReplacingSession(ForeignSession):
    """A session with ``replace_items`` and ``head`` only."""

    splice_items = None

    def __init__(self) -> None:
        super().__init__()
        self.stored = StoredSession("replacing", MemoryBackend())
        for name in ("get_items", "add_items", "pop_item", "clear_session", "head", "replace_items"):
            setattr(self, name, getattr(self.stored, name))


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer.running() as running:
        yield running


def stored(**options: Any) -> StoredSession:
    return StoredSession("chat", MemoryBackend(), **options)


def encrypted(underlying: Any) -> EncryptedSession:
    return EncryptedSession(underlying.session_id, underlying, "a secret of some length")


def encrypted_stored() -> EncryptedSession:
    return encrypted(stored())


def encrypted_foreign() -> EncryptedSession:
    return encrypted(ForeignSession())


UNDERLYING = [stored, ForeignSession, ReplacingSession, encrypted_stored, encrypted_foreign]


def compacting(server: OpenAIServer, underlying: Any, **options: Any) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession("chat", underlying, client=server.client(), **options)


def user(text: object) -> Item:
    return {"role": "user", "content": str(text)}


def answer(text: object) -> Item:
    return {"role": "assistant", "content": str(text), "type": "message"}


def call(name: str) -> Item:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str) -> Item:
    return {"type": "function_call_output", "call_id": name, "output": "done"}


def turns(count: int) -> list[Item]:
    return [item for number in range(count) for item in (user(f"q{number}"), answer(f"a{number}"))]


def summary_of(items: list[Item]) -> str:
    """What the compaction item in the history says it stands for."""
    (found,) = [item["encrypted_content"] for item in items if item.get("type") == "compaction"]
    return str(found)


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", UNDERLYING)
async def test_ten_items_that_are_not_the_users_are_compacted(server: OpenAIServer, make: Any) -> None:
    session = compacting(server, make())
    await session.add_items([*turns(9), user("more")])
    await session.run_compaction({"response_id": "resp_1"})
    assert server.requests == []
    await session.add_items([answer("a9")])
    await session.run_compaction({"response_id": "resp_2"})
    items = await session.get_items()
    assert summary_of(items) == "all of resp_2"
    assert "created_by" not in items[-1]


async def test_compacted_items_do_not_count_towards_the_next_compaction(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items([*turns(9), {"type": "compaction", "encrypted_content": "x"}])
    await session.run_compaction()
    assert server.requests == []


async def test_the_trigger_sees_the_whole_history_and_decides(server: OpenAIServer) -> None:
    seen: list[dict[str, Any]] = []

    def trigger(context: dict[str, Any]) -> bool:
        seen.append(context)
        return len(seen) == 2

    session = compacting(server, stored(settings={"limit": 1}), should_trigger_compaction=trigger)
    await session.add_items(turns(2))
    await session.run_compaction({"response_id": "resp_1"})
    assert server.requests == []
    await session.run_compaction({"response_id": "resp_1"})
    assert len(server.requests) == 1
    assert seen[0] == {
        "response_id": "resp_1",
        "compaction_mode": "input",
        "compaction_candidate_items": [answer("a0"), answer("a1")],
        "session_items": turns(2),
    }


async def test_force_does_not_ask_the_trigger_and_nothing_is_compacted_to_nothing(server: OpenAIServer) -> None:
    session = compacting(server, stored(), should_trigger_compaction=lambda context: False)
    await session.run_compaction({"force": True})
    assert server.requests == []
    await session.add_items(turns(1))
    await session.run_compaction({"force": True})
    assert summary_of(await session.get_items()) == "all of 2"


# --- how ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        ({}, "input"),
        ({"response_id": "resp_1"}, "previous_response_id"),
        ({"response_id": "resp_1", "store": True}, "previous_response_id"),
        ({"response_id": "resp_1", "store": False}, "input"),
        ({"response_id": "resp_1", "store": False, "compaction_mode": "previous_response_id"}, "previous_response_id"),
        ({"response_id": "resp_1", "compaction_mode": "input"}, "input"),
    ],
)
async def test_the_mode_follows_the_owner_of_the_state(
    server: OpenAIServer, args: OpenAIResponsesCompactionArgs, asked: str
) -> None:
    session = compacting(server, stored(), model="gpt-5.2")
    await session.add_items(turns(2))
    await session.run_compaction({**args, "force": True})
    (request,) = server.requests
    expected = "resp_1" if asked == "previous_response_id" else turns(2)
    assert request.body == {"model": "gpt-5.2", asked: expected}


async def test_a_response_id_is_remembered_until_the_history_moves(server: OpenAIServer) -> None:
    session = compacting(server, stored(), should_trigger_compaction=lambda context: False)
    await session.add_items(turns(2))
    await session.run_compaction({"response_id": "resp_1"})
    await session.run_compaction({"force": True})
    assert server.requests[-1].body["previous_response_id"] == "resp_1"
    await session.add_items(turns(1))
    await session.run_compaction({"response_id": "resp_2"})
    await session.pop_item()
    await session.run_compaction({"force": True})
    assert "input" in server.requests[-1].body
    await session.add_items(turns(1))
    with pytest.raises(InvalidInput, match="response_id"):
        await session.run_compaction({"force": True, "compaction_mode": "previous_response_id"})


@pytest.mark.parametrize("mode", ["auto", "previous_response_id", "input"])
@pytest.mark.parametrize("make", [lambda: stored(settings={"limit": 5}), lambda: ForeignSession(SessionSettings(5))])
async def test_a_limit_never_hides_anything_from_the_compaction(server: OpenAIServer, make: Any, mode: Any) -> None:
    session = compacting(server, make(), compaction_mode=mode)
    await session.add_items(turns(50))
    assert len(await session.get_items()) == 5
    await session.run_compaction({"response_id": "resp_1"})
    assert server.requests[0].body["input"] == turns(50)
    everything = await session.get_items(1000)
    assert summary_of(everything) == "all of 100"
    assert len(everything) == 51


async def test_a_history_of_which_only_a_window_was_read_is_sent_itself(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items(turns(10))
    await session.get_items(20)
    await session.get_items(4)
    await session.run_compaction({"response_id": "resp_1"})
    assert len(server.requests[0].body["input"]) == 20
    await session.add_items(turns(10))
    await session.get_items()
    await session.run_compaction({"response_id": "resp_2"})
    assert server.requests[1].body["previous_response_id"] == "resp_2"


async def test_what_is_sent_has_every_call_with_its_output(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    orphan, pair = [user("a"), call("lost")], [user("b"), call("c1"), output("c1"), answer("ok")]
    await session.add_items([*orphan, *pair])
    await session.run_compaction({"force": True})
    assert server.requests[0].body["input"] == [user("a"), *pair]


# --- while calls are open -------------------------------------------------------------------------


@pytest.mark.parametrize("args", [{}, {"response_id": "resp_1"}])
async def test_it_waits_for_the_outputs_of_the_last_response_and_then_needs_no_trigger(
    server: OpenAIServer, args: OpenAIResponsesCompactionArgs
) -> None:
    verdicts = iter([True])
    session = compacting(server, stored(), should_trigger_compaction=lambda context: next(verdicts, False))
    await session.add_items([*turns(1), user("go"), call("c1"), call("c2")])
    await session.run_compaction(args)
    await session.add_items([output("c1")])
    await session.run_compaction(args)
    assert server.requests == []
    assert len(await session.get_items()) == 6
    await session.add_items([output("c2"), answer("done")])
    await session.run_compaction(args)
    assert summary_of(await session.get_items()) == f"all of {args.get('response_id', 8)}"


async def test_outputs_that_the_response_chain_has_not_seen_put_it_off(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items([user("go"), call("c1"), output("c1")])
    await session.run_compaction({"response_id": "resp_1", "force": True})
    assert server.requests == []
    await session.add_items([answer("done")])
    await session.run_compaction({"response_id": "resp_2"})
    assert summary_of(await session.get_items()) == "all of resp_2"


async def test_input_that_the_response_chain_has_not_seen_stays_behind_the_compacted_items(
    server: OpenAIServer,
) -> None:
    for make in UNDERLYING:
        session = compacting(server, make())
        await session.add_items([*turns(2), user("unanswered")])
        await session.run_compaction({"response_id": "resp_1", "force": True})
        items = await session.get_items()
        assert [item.get("type", "message") for item in items] == ["compaction", "message"]
        assert items[-1] == user("unanswered")


async def test_a_cleared_history_is_not_due_any_more(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items([user("go"), call("c1")])
    await session.run_compaction({"force": True})
    await session.clear_session()
    await session.add_items(turns(1))
    await session.run_compaction()
    assert server.requests == []


# --- replacing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [stored, encrypted_stored])
async def test_the_replaced_items_stay_readable_and_can_be_restored(server: OpenAIServer, make: Any) -> None:
    underlying = make()
    session = compacting(server, underlying)
    await session.add_items(turns(10))
    before = await underlying.head()
    await session.run_compaction()
    assert (await underlying.head()).version == before.version + 1
    (generation,) = await underlying.generations()
    assert await underlying.get_items(generation=generation.number) == turns(10)
    await session.add_items(turns(1))
    await underlying.restore(generation.number)
    assert await session.get_items() == turns(11)[:20] + turns(1)


@pytest.mark.parametrize("make", UNDERLYING)
async def test_what_is_added_meanwhile_is_kept(server: OpenAIServer, make: Any) -> None:
    hold = asyncio.Event()
    underlying = make()
    session = compacting(server, underlying)
    await session.add_items(turns(10))
    server.fail_next(Fault(hold=hold, plain=True))
    running = asyncio.create_task(session.run_compaction())
    await server.asked(1)
    await session.add_items([user("late")])
    await underlying.add_items([answer("later")])
    hold.set()
    await running
    items = await session.get_items()
    assert items[-2:] == [user("late"), answer("later")]
    assert [item.get("role") for item in items] == ["user"] * 10 + [None, "user", "assistant"]


@pytest.mark.parametrize("make", UNDERLYING)
async def test_a_history_that_moved_otherwise_is_left_alone(server: OpenAIServer, make: Any) -> None:
    for change in ("pop_item", "clear_session"):
        hold = asyncio.Event()
        underlying = make()
        session = compacting(server, underlying)
        await session.add_items(turns(10))
        server.fail_next(Fault(hold=hold, plain=True))
        running = asyncio.create_task(session.run_compaction())
        await server.asked(len(server.requests) + 1)
        await getattr(session, change)()
        left = await session.get_items()
        hold.set()
        with pytest.raises(HistoryMoved):
            await running
        assert await session.get_items() == left
        assert len(session.take_compactions()) == 1


async def test_two_compactions_at_once_are_one(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items(turns(10))
    await asyncio.gather(session.run_compaction(), session.run_compaction())
    assert len(server.requests) == 1


async def test_an_unreadable_record_is_not_in_the_way_and_not_destroyed(server: OpenAIServer) -> None:
    hold = asyncio.Event()
    backend = MemoryBackend()
    underlying = StoredSession("chat", backend)
    session = compacting(server, underlying)
    await session.add_items(turns(6))
    broken = sorted(backend.tables.tapes)[3]
    backend.tables.tapes[broken] = b"{broken"
    readable = await session.get_items()
    assert len(readable) == 11
    server.fail_next(Fault(hold=hold, plain=True))
    running = asyncio.create_task(session.run_compaction({"response_id": "resp_1", "force": True}))
    await server.asked(1)
    await session.add_items([user("late")])
    hold.set()
    await running
    assert server.requests[0].body["input"] == readable
    items = await session.get_items()
    assert summary_of(items) == "all of 11"
    assert items[-1] == user("late")
    assert await underlying.get_items(generation=0) == [*readable, user("late")]
    assert backend.tables.tapes[broken] == b"{broken"


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", UNDERLYING)
@pytest.mark.parametrize(
    "fault", [Fault(), Fault(status=500), Fault(status=429), Fault(status=400), Fault(body="<html>"), Fault(body="{}")]
)
async def test_a_failed_request_leaves_the_history_as_it_was(server: OpenAIServer, make: Any, fault: Fault) -> None:
    session = compacting(server, make())
    await session.add_items(turns(10))
    server.fail_next(fault)
    with pytest.raises(StoreUnavailable) as caught:
        await session.run_compaction()
    assert isinstance(caught.value, RequestFailed)
    assert caught.value.outcome is Outcome.NOTHING
    assert await session.get_items() == turns(10)
    await session.run_compaction()
    assert summary_of(await session.get_items()) == "all of 20"


async def test_an_empty_compaction_does_not_erase_the_history(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items(turns(10))
    server.compact = lambda body: []
    with pytest.raises(RequestFailed):
        await session.run_compaction()
    assert await session.get_items() == turns(10)
    assert len(session.take_compactions()) == 1


async def test_a_response_the_server_does_not_know_is_not_found(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items(turns(10))
    with pytest.raises(NotFound, match="resp_gone"):
        await session.run_compaction({"response_id": "resp_gone"})
    assert await session.get_items() == turns(10)


@pytest.mark.parametrize("make", UNDERLYING)
async def test_cancelling_the_request_leaves_the_history_as_it_was(server: OpenAIServer, make: Any) -> None:
    session = compacting(server, make())
    await session.add_items(turns(10))
    server.fail_next(Fault(hold=asyncio.Event()))
    running = asyncio.create_task(session.run_compaction())
    await server.asked(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await session.get_items() == turns(10)
    await session.run_compaction()
    assert summary_of(await session.get_items()) == "all of 20"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["clear", "add"])
@pytest.mark.parametrize("restore_fails", [False, True])
async def test_a_foreign_session_gets_its_items_back_when_replacing_fails(
    server: OpenAIServer, step: str, when: str, restore_fails: bool
) -> None:
    underlying = ForeignSession()
    session = compacting(server, underlying)
    await session.add_items(turns(10))
    underlying.steps.clear()

    async def fail(name: str, count: int) -> None:
        if name == step and (count == 1 or (restore_fails and count == 2)):
            raise OSError("the disk is full")

    setattr(underlying, when, fail)
    with pytest.raises(OSError, match="disk"):
        await session.run_compaction()
    assert underlying.items == turns(10)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["clear", "add"])
async def test_a_foreign_session_gets_its_items_back_when_replacing_is_cancelled(
    server: OpenAIServer, step: str, when: str
) -> None:
    underlying = ForeignSession()
    session = compacting(server, underlying)
    await session.add_items(turns(10))
    underlying.steps.clear()
    reached = asyncio.Event()

    async def hang(name: str, count: int) -> None:
        if name == step and count == 1:
            reached.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    setattr(underlying, when, hang)
    running = asyncio.create_task(session.run_compaction())
    await reached.wait()
    for _ in range(5):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert underlying.items == turns(10)
    await session.add_items([user("on")])
    assert await session.get_items() == [*turns(10), user("on")]


async def test_a_cancellation_while_items_are_given_back_does_not_stop_that(server: OpenAIServer) -> None:
    underlying = ForeignSession()
    session = compacting(server, underlying)
    await session.add_items(turns(10))
    underlying.steps.clear()
    restoring, go = asyncio.Event(), asyncio.Event()

    async def fail_then_wait(name: str, count: int) -> None:
        if name == "add" and count == 1:
            raise OSError("the disk is full")
        if name == "add":
            restoring.set()
            await go.wait()

    underlying.before = fail_then_wait
    running = asyncio.create_task(session.run_compaction())
    await restoring.wait()
    for _ in range(5):
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert underlying.items == turns(10)


@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
def test_items_that_cannot_be_given_back_are_in_the_error(cancelled: bool) -> None:
    failed = asyncio.Event()
    underlying = ForeignSession()

    async def fail(name: str, count: int) -> None:
        if name == "add":
            failed.set()
            raise OSError("the disk is full")

    async def compact() -> BaseException | None:
        session = OpenAIResponsesCompactionSession("chat", underlying, client=OpenAIServer().near_client())
        await session.add_items(turns(10))
        underlying.before = fail
        running = asyncio.create_task(session.run_compaction())
        await failed.wait()
        if cancelled:
            running.cancel()
        await asyncio.wait({running})
        if not cancelled:
            return running.exception()
        with pytest.raises(asyncio.CancelledError) as caught:
            await running
        return caught.value.__cause__

    error = run_in_virtual_time(compact())
    assert isinstance(error, RestoreFailed)
    assert error.items == turns(10)
    if not cancelled:
        assert isinstance(error.__cause__, OSError)


# --- costs, settings, refusals --------------------------------------------------------------------


async def test_every_compaction_is_accounted_for_once(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    await session.add_items(turns(10))
    await session.run_compaction()
    (compaction,) = session.take_compactions()
    assert compaction.usage["total_tokens"] == 77
    assert compaction.usage["input_tokens_details"] == {"cached_tokens": 0}
    assert (compaction.model, compaction.mode) == ("gpt-4.1", "input")
    assert session.take_compactions() == []


async def test_the_settings_are_those_of_the_underlying_session(server: OpenAIServer) -> None:
    underlying = stored(settings={"limit": 2})
    session = compacting(server, underlying)
    assert session.session_settings is underlying.session_settings
    session.session_settings = SessionSettings(limit=1)
    await session.add_items(turns(2))
    assert await session.get_items() == [answer("a1")]
    assert await session.get_items(0) == []
    assert await session.pop_item() == answer("a1")
    await session.clear_session()
    assert await underlying.get_items() == []


def test_a_conversation_cannot_be_wrapped() -> None:
    conversation = OpenAIConversationsSession(conversation_id="conv_1")
    for refused in (OpenAIConversationsSession(), conversation, encrypted(conversation)):
        with pytest.raises(ValueError, match="server keeps its history"):
            OpenAIResponsesCompactionSession("chat", refused)


@pytest.mark.parametrize(
    "model", ["claude-opus-4", "gemini-2.5-pro", "litellm/gpt-4", "llama3", "mistral", "", None, 4]
)
def test_models_of_others_are_refused(model: Any) -> None:
    with pytest.raises(ValueError):
        OpenAIResponsesCompactionSession("chat", stored(), model=model)


@pytest.mark.parametrize(
    "model", ["gpt-4.1", "gpt-5.2-mini", "o3", "o4-mini", "ft:gpt-4.1:me::x", "openai/gpt-5", "chatgpt-4o-latest"]
)
def test_models_of_openai_are_taken(model: str) -> None:
    assert OpenAIResponsesCompactionSession("chat", stored(), model=model).model == model


@pytest.mark.parametrize(
    "args", [{"mode": "auto"}, {"compaction_mode": "sometimes"}, {"response_id": 5}], ids=["key", "mode", "id"]
)
async def test_senseless_arguments_are_refused(server: OpenAIServer, args: Any) -> None:
    session = compacting(server, stored())
    await session.add_items(turns(10))
    with pytest.raises(InvalidInput):
        await session.run_compaction(args)
    assert server.requests == []
    with pytest.raises(InvalidInput):
        compacting(server, stored(), compaction_mode="sometimes")


async def test_sessions_that_want_to_be_told_are_recognised(server: OpenAIServer) -> None:
    session = compacting(server, stored())
    assert is_openai_responses_compaction_aware_session(session)
    assert isinstance(session, OpenAIResponsesCompactionAwareSession)
    for other in (None, stored(), ForeignSession(), OpenAIConversationsSession()):
        assert not is_openai_responses_compaction_aware_session(other)


async def test_a_given_client_is_left_open_and_our_own_is_closed(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = compacting(server, stored())
    await session.aclose()
    assert not session.client.is_closed()
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    session = OpenAIResponsesCompactionSession("chat", stored())
    await session.add_items(turns(10))
    await session.run_compaction()
    ours = session.client
    await session.aclose()
    assert ours.is_closed()
    assert summary_of(await session.get_items()) == "all of 20"
