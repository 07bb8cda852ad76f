"""OpenAIConversationsSession, over real HTTP."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
from typing import Any, get_args

import openai
import pytest
from openai.types.responses import response_input_item_param
from typing_extensions import get_type_hints

from factories.history import user_messages
from openai_server import Fault, OpenAIServer, Request
from standfast.base.errors import InvalidInput, InvalidItem, NotFound, StoreUnavailable
from standfast.history.openai.client import OpenAIRequestFailed, RequestOutcome
from standfast.history.openai.conversation_client import SERVER_ASSIGNED_ID_TYPES, BatchIncomplete
from standfast.history.openai.conversations import OpenAIConversationsSession
from standfast.history.session import SessionSettings
from standfast.testing.virtual_time import run_in_virtual_time

DROPPED = Fault()
LOST_RESPONSE = Fault(applied=True)
BROKEN = Fault(status=500)
BROKEN_LATE = Fault(status=500, applied=True)
GARBLED = Fault(body="<html>", applied=True)
BUSY = Fault(status=429)
REFUSED = Fault(status=400)


def get_texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


def make_session(server: OpenAIServer, **options: Any) -> OpenAIConversationsSession:
    retries = options.pop("max_retries", 0)
    return OpenAIConversationsSession(openai_client=server.client(max_retries=retries), **options)


async def make_filled_session(server: OpenAIServer, *contents: object, **options: Any) -> OpenAIConversationsSession:
    session = make_session(server, **options)
    await session.add_items(user_messages(*contents))
    return session


# --- reading and writing --------------------------------------------------------------------------


async def test_there_is_no_conversation_before_the_first_read_or_write(server: OpenAIServer) -> None:
    session = make_session(server)
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([])
    with pytest.raises(InvalidInput, match="no conversation yet"):
        _ = session.session_id
    with pytest.raises(ValueError):
        _ = session.session_id
    assert server.requests == []
    assert await session.get_items(limit=0) == []
    assert session.session_id
    assert server.log() == ["POST /conversations"]


async def test_the_first_write_creates_the_conversation_and_the_session_id(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "a", "b")
    assert list(server.conversations) == [session.session_id]
    assert get_texts(await session.get_items()) == ["a", "b"]


async def test_concurrent_first_writers_create_one_conversation(server: OpenAIServer) -> None:
    session = make_session(server)
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(session.add_items(user_messages(f"{number}a", f"{number}b")))
    assert server.log().count("POST /conversations") == 1
    found = get_texts(await session.get_items())
    assert sorted(found) == sorted(f"{number}{half}" for number in range(8) for half in "ab")
    assert all(found[at][0] == found[at + 1][0] for at in range(0, 16, 2))


async def test_a_cancelled_first_writer_leaves_one_conversation_for_the_next(server: OpenAIServer) -> None:
    hold = asyncio.Event()
    server.fail_next(Fault(hold=hold, plain=True))
    session = make_session(server)
    first = asyncio.create_task(session.add_items(user_messages("first")))
    await server.asked(1)
    second = asyncio.create_task(session.add_items(user_messages("second")))
    first.cancel()
    hold.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert len(server.conversations) == 1
    assert get_texts(server.only) == ["second"]


async def test_an_existing_conversation_is_continued(server: OpenAIServer) -> None:
    first = await make_filled_session(server, "a")
    second = make_session(server, conversation_id=first.session_id)
    await second.add_items(user_messages("b"))
    assert get_texts(await first.get_items()) == ["a", "b"]


@pytest.mark.parametrize(("limit", "expected"), [(0, []), (1, ["d"]), (3, ["b", "c", "d"]), (9, ["a", "b", "c", "d"])])
async def test_a_limit_gives_the_latest_items_oldest_first(
    server: OpenAIServer, limit: int, expected: list[str]
) -> None:
    session = await make_filled_session(server, *"abcd")
    assert get_texts(await session.get_items(limit)) == expected
    limited = make_session(server, conversation_id=session.session_id, session_settings={"limit": limit})
    assert get_texts(await limited.get_items()) == expected


async def test_an_explicit_limit_overrides_the_settings(server: OpenAIServer) -> None:
    session = await make_filled_session(server, *"abcd", session_settings=SessionSettings(limit=1))
    assert get_texts(await session.get_items()) == ["d"]
    assert get_texts(await session.get_items(3)) == ["b", "c", "d"]
    assert await session.get_items(0) == []


@pytest.mark.parametrize("limit", [-1, 1.5, True, "3"])
async def test_an_invalid_limit_is_refused_without_a_request(server: OpenAIServer, limit: Any) -> None:
    session = await make_filled_session(server, "a")
    before = len(server.requests)
    with pytest.raises(InvalidInput):
        await session.get_items(limit)
    assert len(server.requests) == before


@pytest.mark.parametrize("count", [99, 100, 101, 250])
async def test_histories_longer_than_a_page_are_read_completely(server: OpenAIServer, count: int) -> None:
    session = await make_filled_session(server, *range(count))
    everything = [str(number) for number in range(count)]
    assert get_texts(await session.get_items()) == everything
    assert get_texts(await session.get_items(count - 1)) == everything[1:]
    assert get_texts(await session.get_items(150)) == everything[-150:]


async def test_a_long_batch_is_sent_in_chunks_of_twenty_in_order(server: OpenAIServer) -> None:
    session = await make_filled_session(server, *range(45))
    assert [len(request.body["items"]) for request in server.requests if request.path.endswith("items")] == [20, 20, 5]
    assert get_texts(await session.get_items()) == [str(number) for number in range(45)]


async def test_pop_removes_the_latest_item(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "a", "b")
    assert [get_texts([item]) for item in [await session.pop_item(), await session.pop_item()] if item] == [
        ["b"],
        ["a"],
    ]
    assert await session.pop_item() is None
    await session.add_items(user_messages("c"))
    assert get_texts(await session.get_items()) == ["c"]


async def test_concurrent_pops_of_two_objects_take_different_items(server: OpenAIServer) -> None:
    session = await make_filled_session(server, *range(6))
    others = [make_session(server, conversation_id=session.session_id) for _ in range(3)]
    popped = await asyncio.gather(*(one.pop_item() for one in [*others, *others]))
    assert sorted(get_texts([item for item in popped if item])) == [str(number) for number in range(6)]


async def test_clear_deletes_the_conversation_and_its_id(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "a")
    old = session.session_id
    await session.clear_session()
    assert server.conversations == {}
    with pytest.raises(InvalidInput):
        _ = session.session_id
    await session.add_items(user_messages("b"))
    assert session.session_id != old
    assert get_texts(await session.get_items()) == ["b"]


async def test_a_conversation_that_does_not_exist_is_not_found(server: OpenAIServer) -> None:
    session = make_session(server, conversation_id="conv_none")
    for attempt in (session.get_items, session.pop_item, lambda: session.add_items(user_messages("a"))):
        with pytest.raises(NotFound, match="conv_none") as caught:
            await attempt()
        assert caught.value.what == "conversation"
    await session.clear_session()


# --- items ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["text", [1], [{"role": "user", "content": float("nan")}], [{}], [{"type": 3}], None])
async def test_invalid_items_are_refused_before_any_request(server: OpenAIServer, bad: Any) -> None:
    with pytest.raises(InvalidItem):
        await make_session(server).add_items(bad)
    assert server.requests == []


def test_ids_are_dropped_where_the_schema_does_not_require_them() -> None:
    optional, required = set(), set()
    for shape in get_args(response_input_item_param.ResponseInputItemParam):
        hints = get_type_hints(shape, include_extras=True)
        kind = next(name for name in get_args(get_args(hints["type"])[0]) or get_args(hints["type"]))
        (required if "Required" in str(hints.get("id"))[:16] else optional).add(kind)
    # An assistant's message has an id in its schema, but is a message also without one.
    assert optional - {"item_reference"} == SERVER_ASSIGNED_ID_TYPES
    assert required & SERVER_ASSIGNED_ID_TYPES == {"message"}


async def test_ids_are_sent_only_where_the_schema_requires_them(server: OpenAIServer) -> None:
    session = make_session(server)
    given: list[dict[str, Any]] = [
        {"id": "m1", "role": "user", "content": "hi"},
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"id": "o_1", "type": "function_call_output", "call_id": "c1", "output": "1"},
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"id": None, "type": "reasoning", "summary": [], "encrypted_content": "secret"},
        {"id": "new_1", "type": "of_the_future", "thing": {"deep": [1, None]}},
    ]
    await session.add_items(given)
    sent = server.requests[-1].body["items"]
    assert [item.get("id") for item in sent] == [None, "rs_1", None, None, "ws_1", None, "new_1"]
    assert given[0]["id"] == "m1"
    stored = await session.get_items()
    assert stored[6]["thing"] == {"deep": [1, None]}
    assert "created_by" not in stored[3]
    await session.add_items(stored)
    assert len(await session.get_items()) == 14


async def test_a_reasoning_item_without_content_is_dropped(server: OpenAIServer) -> None:
    session = make_session(server)
    await session.add_items([{"type": "reasoning", "summary": []}])
    assert server.requests == []
    await session.add_items([{"type": "reasoning", "summary": []}, *user_messages("a")])
    assert get_texts(await session.get_items()) == ["a"]


async def test_images_are_returned_completely(server: OpenAIServer) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    session = make_session(server)
    await session.add_items([{"role": "user", "content": [picture]}])
    assert (await session.get_items())[0]["content"] == [picture]


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [DROPPED, BROKEN, BUSY, REFUSED], ids=["dropped", "500", "429", "400"])
@pytest.mark.parametrize("failing", range(5))
async def test_a_batch_that_fails_at_any_request_leaves_the_history_as_it_was(
    server: OpenAIServer, fault: Fault, failing: int
) -> None:
    await (first := await make_filled_session(server, "old")).get_items()
    session = make_session(server, conversation_id=first.session_id)
    server.fail_next(*[None] * failing, fault)  # the request for the latest item, then four chunks
    with pytest.raises(StoreUnavailable) as caught:
        await session.add_items(user_messages(*range(65)))
    assert isinstance(caught.value, OpenAIRequestFailed)
    assert caught.value.outcome is RequestOutcome.NO_EFFECT
    assert get_texts(server.only) == ["old"]
    await session.add_items(user_messages("new"))
    assert get_texts(await session.get_items()) == ["old", "new"]


@pytest.mark.parametrize("fault", [LOST_RESPONSE, BROKEN_LATE, GARBLED], ids=["dropped", "500", "garbled"])
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
async def test_a_chunk_with_a_lost_response_is_found_and_not_sent_again(
    server: OpenAIServer, fault: Fault, failing: int
) -> None:
    session = make_session(server)
    server.fail_next(*[None] * failing, fault)
    await session.add_items(user_messages(*["same"] * 65))
    assert get_texts(server.only) == ["same"] * 65
    await session.add_items(user_messages("next"))
    assert len(server.only) == 66


@pytest.mark.parametrize("fault", [DROPPED, BROKEN, BUSY, LOST_RESPONSE, BROKEN_LATE])
@pytest.mark.parametrize("failing", range(4))
async def test_a_transient_fault_is_retried_without_duplicates(
    server: OpenAIServer, fault: Fault, failing: int
) -> None:
    session = make_session(server, max_retries=1)
    server.fail_next(*[None] * failing, fault)
    await session.add_items(user_messages(*range(45)))
    assert get_texts(await session.get_items()) == [str(number) for number in range(45)]


async def test_a_batch_that_cannot_be_removed_names_the_remaining_items(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "old")
    deletes = 0

    def third_delete_and_later(request: Request) -> Fault | None:
        nonlocal deletes
        deletes += request.method == "DELETE"
        if request.method == "DELETE" and deletes > 2:
            return BROKEN
        return REFUSED if request.method == "POST" and "20" in str(request.body) else None

    server.fault_for = third_delete_and_later
    with pytest.raises(BatchIncomplete) as caught:
        await session.add_items(user_messages(*range(30)))
    assert isinstance(caught.value, StoreUnavailable)
    assert isinstance(caught.value.__cause__, OpenAIRequestFailed)
    remained = [item for item in server.only if item["id"] in caught.value.remaining_ids]
    assert get_texts(server.only) == ["old", *map(str, range(18))]
    assert tuple(item["id"] for item in remained) == caught.value.remaining_ids
    assert get_texts(remained) == [str(number) for number in range(18)]
    assert caught.value.uncertain_count == 0
    assert all(name in str(caught.value) for name in caught.value.remaining_ids)


async def test_after_a_server_failure_the_uncertain_items_are_counted(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "old")
    gone = False

    def from_the_second_chunk_on(request: Request) -> Fault | None:
        nonlocal gone
        if "20" in str(request.body):
            gone = True
            return LOST_RESPONSE
        return DROPPED if gone else None

    server.fault_for = from_the_second_chunk_on
    with pytest.raises(BatchIncomplete) as caught:
        await session.add_items(user_messages(*range(30)))
    assert len(caught.value.remaining_ids) == 20
    assert caught.value.uncertain_count == 10
    assert len(server.only) == 31
    server.fault_for = lambda request: None
    await session.add_items(user_messages("new"))
    assert get_texts(await session.get_items(1)) == ["new"]


async def test_items_of_other_clients_are_not_mistaken_for_the_batch(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "old")
    other = make_session(server, conversation_id=session.session_id)
    await other.add_items(user_messages("theirs"))
    server.fail_next(DROPPED)
    with pytest.raises(BatchIncomplete) as caught:
        await session.add_items(user_messages("mine"))
    assert (caught.value.remaining_ids, caught.value.uncertain_count) == ((), 1)
    server.fail_next(None, LOST_RESPONSE)
    await session.add_items(user_messages("mine"))
    assert get_texts(server.only) == ["old", "theirs", "mine"]


async def test_a_request_that_times_out_has_an_unknown_outcome(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "first")
    # Only now, so that no other request can time out on a slow machine.
    session._api.provided = server.client(timeout=openai.Timeout(60, read=0.2), max_retries=2)
    server.requests.clear()
    server.fail_next(Fault(hold=asyncio.Event(), plain=True))
    with pytest.raises(BatchIncomplete) as caught:
        await session.add_items(user_messages("slow"))
    assert caught.value.uncertain_count == 1
    assert [str(request) for request in server.requests].count("POST /conversations/conv_1/items") == 1


async def test_a_request_to_an_unreachable_server_has_no_effect() -> None:
    async with OpenAIServer.running() as server:
        session = await make_filled_session(server, "a")
        url = server.url
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="test", max_retries=0) as client:
        session = OpenAIConversationsSession(openai_client=client)
        with pytest.raises(OpenAIRequestFailed, match="nothing was changed") as caught:
            await session.add_items(user_messages("b"))
        assert caught.value.outcome is RequestOutcome.NO_EFFECT


@pytest.mark.parametrize(
    ("fault", "remains"),
    [(DROPPED, True), (BROKEN, True), (BUSY, True), (LOST_RESPONSE, False), (BROKEN_LATE, False)],
)
async def test_a_pop_whose_request_fails_is_executed_at_most_once(
    server: OpenAIServer, fault: Fault, remains: bool
) -> None:
    session = await make_filled_session(server, "a", "b")
    server.fail_next(None, fault)
    if remains:
        with pytest.raises(OpenAIRequestFailed) as caught:
            await session.pop_item()
        assert caught.value.outcome is RequestOutcome.NO_EFFECT
        assert get_texts(server.only) == ["a", "b"]
    else:
        assert get_texts([await session.pop_item() or {}]) == ["b"]
        assert get_texts(server.only) == ["a"]
    server.fail_next(BROKEN)
    with pytest.raises(OpenAIRequestFailed):
        await session.pop_item()


@pytest.mark.parametrize("fault", [DROPPED, BROKEN, BROKEN_LATE, LOST_RESPONSE])
async def test_a_clear_that_fails_can_be_repeated(server: OpenAIServer, fault: Fault) -> None:
    session = await make_filled_session(server, "a")
    server.fail_next(fault)
    with pytest.raises(OpenAIRequestFailed) as caught:
        await session.clear_session()
    assert caught.value.outcome is RequestOutcome.UNKNOWN
    await session.clear_session()
    assert server.conversations == {}
    await session.add_items(user_messages("b"))
    assert get_texts(await session.get_items()) == ["b"]


async def test_a_failed_read_raises_and_the_next_one_succeeds(server: OpenAIServer) -> None:
    session = await make_filled_session(server, *range(250))
    for fault, failing in itertools.product([DROPPED, BROKEN, BUSY, GARBLED], range(3)):
        server.fail_next(*[None] * failing, fault)
        with pytest.raises(OpenAIRequestFailed) as caught:
            await session.get_items()
        assert caught.value.outcome is RequestOutcome.NO_EFFECT
        assert len(await session.get_items()) == 250


async def test_a_conversation_that_cannot_be_created_is_created_by_the_next_write(server: OpenAIServer) -> None:
    session = make_session(server)
    for fault in (DROPPED, BROKEN, GARBLED):
        server.fail_next(fault)
        with pytest.raises(OpenAIRequestFailed):
            await session.add_items(user_messages("a"))
        with pytest.raises(InvalidInput):
            _ = session.session_id
    await session.add_items(user_messages("a"))
    assert get_texts(await session.get_items()) == ["a"]


# --- cancellation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", range(4))
async def test_a_batch_cancelled_at_any_request_is_written_completely_or_not_at_all(
    server: OpenAIServer, chunk: int
) -> None:
    session = await make_filled_session(server, "old")
    start, hold = len(server.requests), asyncio.Event()
    server.fail_next(*[None] * chunk, Fault(hold=hold, plain=True))
    writing = asyncio.create_task(session.add_items(user_messages(*range(65))))
    await server.asked(start + chunk + 1)
    writing.cancel()
    asyncio.get_running_loop().call_later(0.01, hold.set)
    with pytest.raises(asyncio.CancelledError):
        await writing
    complete = chunk == 3  # the response to the last request is awaited
    assert get_texts(server.only) == ["old", *(map(str, range(65)) if complete else ())]
    await session.add_items(user_messages("new"))
    assert get_texts(await session.get_items(1)) == ["new"]


async def test_repeated_cancellation_does_not_stop_the_rollback(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "old")
    start, hold = len(server.requests), asyncio.Event()
    server.fail_next(None, Fault(hold=hold, plain=True))
    writing = asyncio.create_task(session.add_items(user_messages(*range(65))))
    await server.asked(start + 2)
    hold.set()
    while not writing.done():
        writing.cancel()
        await asyncio.sleep(0)
    assert writing.cancelled()
    assert get_texts(server.only) == ["old"]


async def test_a_cancelled_batch_that_cannot_be_removed_is_the_cause_of_the_error(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "old")
    start, hold = len(server.requests), asyncio.Event()
    server.fault_for = lambda request: BROKEN if request.method == "DELETE" else None
    server.fail_next(None, Fault(hold=hold, plain=True))
    writing = asyncio.create_task(session.add_items(user_messages(*range(65))))
    await server.asked(start + 2)
    writing.cancel()
    asyncio.get_running_loop().call_soon(hold.set)
    with pytest.raises(asyncio.CancelledError) as caught:
        await writing
    assert isinstance(caught.value.__cause__, BatchIncomplete)
    assert len(caught.value.__cause__.remaining_ids) == 40


@pytest.mark.parametrize("seconds", [None, 1], ids=["never", "late"])
def test_a_cancelled_batch_without_a_response_is_removed_and_reports_uncertain_items(
    seconds: float | None,
) -> None:
    server = OpenAIServer()

    async def cancel() -> BaseException | None:
        session = OpenAIConversationsSession(openai_client=server.near_client())
        await session.add_items(user_messages("old"))
        start, answering = len(server.requests), asyncio.Event()
        server.fail_next(None, Fault(hold=answering, applied=True))
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, answering.set)
        writing = asyncio.create_task(session.add_items(user_messages(*range(45))))
        await server.asked(start + 2)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await writing
        return caught.value.__cause__

    cause = run_in_virtual_time(cancel())
    assert get_texts(server.only) == ["old"]
    if seconds is None:
        assert isinstance(cause, BatchIncomplete)
        assert (cause.remaining_ids, cause.uncertain_count) == ((), 20)


async def test_calls_that_wait_for_the_lock_can_be_cancelled(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "old")
    start, hold = len(server.requests), asyncio.Event()
    server.fail_next(Fault(hold=hold, plain=True))
    first = asyncio.create_task(session.add_items(user_messages("first")))
    await server.asked(start + 1)
    waiting = [
        asyncio.create_task(work)
        for work in (session.add_items(user_messages("x")), session.pop_item(), session.get_items())
    ]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    hold.set()
    await first
    await asyncio.gather(*waiting, return_exceptions=True)
    assert all(task.cancelled() for task in waiting)
    assert get_texts(server.only) == ["old", "first"]


async def test_a_clear_or_pop_cancelled_during_its_request_is_completed(server: OpenAIServer) -> None:
    session = await make_filled_session(server, "a", "b")
    for change in (session.pop_item, session.clear_session):
        start, hold = len(server.requests), asyncio.Event()
        last = 2 if change == session.pop_item else 1
        server.fail_next(*[None] * (last - 1), Fault(hold=hold, plain=True))
        task = asyncio.create_task(change())
        await server.asked(start + last)
        task.cancel()
        asyncio.get_running_loop().call_soon(hold.set)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    assert server.conversations == {}
    await session.add_items(user_messages("c"))
    assert get_texts(await session.get_items()) == ["c"]


async def test_readers_of_the_same_object_never_see_part_of_a_batch(server: OpenAIServer) -> None:
    session = make_session(server)
    seen: set[int] = set()

    async def watch() -> None:
        while len(seen) < 2:
            seen.add(len(await session.get_items()))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        await asyncio.sleep(0)
        await session.add_items(user_messages(*range(65)))
    assert seen == {0, 65}


# --- clients --------------------------------------------------------------------------------------


async def test_only_a_client_that_the_session_created_is_closed(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = server.client()
    await OpenAIConversationsSession(openai_client=given).aclose()
    assert not given.is_closed()

    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    session = OpenAIConversationsSession()
    await session.aclose()
    await session.add_items(user_messages("a"))
    ours = session._api.get()
    await session.aclose()
    assert ours.is_closed()
    assert get_texts(await session.get_items()) == ["a"]
    await session.aclose()


async def test_a_client_without_a_key_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY"):
        await OpenAIConversationsSession().add_items(user_messages("a"))


def test_openai_is_imported_only_for_a_request() -> None:
    code = """
import asyncio, sys
from standfast.history.openai.conversations import OpenAIConversationsSession
from standfast.history.openai.compaction import OpenAIResponsesCompactionSession
session = OpenAIConversationsSession()
assert asyncio.run(session.pop_item()) is None
assert not {"openai", "httpx", "httpx2"} & set(sys.modules), "imported too early"
sys.modules["openai"] = None
try:
    asyncio.run(session.add_items([{"role": "user", "content": "hi"}]))
except Exception as error:
    print(type(error).__name__, error.code, error.extra)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": "src"}
    )
    assert done.stdout.strip() == "MissingExtra missing-extra openai", done.stderr
