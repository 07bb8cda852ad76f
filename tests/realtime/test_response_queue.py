"""The response queue against a server that may send anything in any order."""

from collections import deque
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from standfast.realtime.errors import ResponseRefused
from standfast.realtime.openai._protocol.response_queue import (
    COLLISION_CODE,
    NOT_ACTIVE_CODE,
    REQUEST_LABEL_KEY,
    REQUESTERS_KEY,
    RequestContext,
    ResponseQueue,
)


class Bench:
    """A queue with a simulated clock, the messages that it sent and its refusals."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[dict[str, Any]] = []
        self.refused: list[ResponseRefused] = []
        self.times: list[float] = []
        self.speech_started_at: float | None = None
        self.sent_during_speech: list[str] = []
        self.queue = ResponseQueue(RequestContext(self.record, self.refused.append, clock=lambda: self.now, timeout=10))

    def record(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.times.append(self.now)
        if (
            message["type"] == "response.create"
            and self.speech_started_at is not None
            and self.now - self.speech_started_at < 60
        ):
            self.sent_during_speech.append(message["response"]["metadata"][REQUESTERS_KEY])

    def start_speech(self) -> None:
        self.speech_started_at = self.now
        self.queue.start_user_turn()

    def stop_speech(self, *, server_responds: bool) -> None:
        self.speech_started_at = None
        self.queue.end_user_turn(server_responds=server_responds)

    def get_creates(self) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == "response.create"]

    def get_metadata(self, number: int = -1) -> dict[str, Any]:
        return self.get_creates()[number]["response"]["metadata"]

    def start_response(self, response_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.queue.handle_created({"id": response_id, "metadata": metadata})

    def end_response(self, response_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.queue.handle_done({"id": response_id, "metadata": metadata})

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.queue.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def make_collision(event_id: str) -> dict[str, Any]:
    return {"type": "invalid_request_error", "code": COLLISION_CODE, "event_id": event_id, "message": "busy"}


def make_cancel(response_id: str) -> dict[str, Any]:
    return {"type": "response.cancel", "event_id": f"standfast_cancel_{response_id}", "response_id": response_id}


def test_a_request_is_sent_at_once_when_nothing_is_active(bench: Bench) -> None:
    bench.queue.request("user")
    assert [message["event_id"] for message in bench.get_creates()] == ["standfast_response_1"]
    assert bench.get_metadata()[REQUESTERS_KEY] == "user"


def test_a_request_waits_for_the_end_of_the_active_response(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.queue.request("user")
    assert bench.get_creates() == []
    bench.end_response("r1")
    assert len(bench.get_creates()) == 1


def test_waiting_requests_are_merged(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.queue.request("tool:a")
    bench.queue.request("tool:b")
    bench.end_response("r1")
    assert len(bench.get_creates()) == 1
    assert bench.get_metadata()[REQUESTERS_KEY] == "tool:a tool:b"


def test_a_request_is_not_merged_with_a_sent_one(bench: Bench) -> None:
    bench.queue.request("user")
    bench.queue.request("user")
    bench.start_response("r1", bench.get_metadata())
    bench.end_response("r1", bench.get_metadata())
    assert len(bench.get_creates()) == 2


def test_requests_with_options_keep_their_order_and_are_not_merged(bench: Bench) -> None:
    bench.start_response("r0", None)
    bench.queue.request("raw", {"instructions": "one"})
    bench.queue.request("raw", {"instructions": "two"}, event_id="mine")
    bench.queue.request("user")
    for number in (1, 2, 3):
        bench.end_response(f"r{number - 1}")
        bench.start_response(f"r{number}", bench.get_metadata())
    assert [message["response"].get("instructions") for message in bench.get_creates()] == ["one", "two", None]
    assert bench.get_creates()[1]["event_id"] == "mine"


def test_after_a_collision_a_request_is_repeated_when_the_other_response_ends(bench: Bench) -> None:
    bench.queue.request("tool:a")
    bench.start_response("voice", {})
    assert bench.queue.handle_error(make_collision("standfast_response_1"))
    assert len(bench.get_creates()) == 1
    bench.end_response("voice", {})
    assert [message["event_id"] for message in bench.get_creates()] == [
        "standfast_response_1",
        "standfast_response_1_1",
    ]
    assert bench.refused == []


def test_labels_identify_the_response_to_a_request(bench: Bench) -> None:
    bench.queue.request("user")
    bench.start_response("r1", bench.get_metadata())
    bench.end_response("r1", bench.get_metadata())
    bench.queue.request("user")
    bench.start_response("voice", None)
    bench.end_response("voice", None)
    assert len(bench.get_creates()) == 2, "the request is still open"
    bench.start_response("r2", bench.get_metadata())
    bench.wait(100)
    assert len(bench.get_creates()) == 2
    assert bench.refused == []


def test_after_a_collision_with_an_unannounced_response_a_request_is_repeated_soon(bench: Bench) -> None:
    bench.queue.request("user")
    bench.queue.handle_error(make_collision("standfast_response_1"))
    assert len(bench.get_creates()) == 1
    bench.wait(0.3)
    assert len(bench.get_creates()) == 2


def test_a_request_that_is_never_answered_is_repeated_once_and_then_reported(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(9.9)
    assert len(bench.get_creates()) == 1
    bench.wait(0.2)
    assert len(bench.get_creates()) == 2
    bench.wait(10.1)
    assert [refusal.requesters for refusal in bench.refused] == [("user",)]
    assert isinstance(bench.refused[0].error, TimeoutError)
    bench.queue.request("next")
    assert len(bench.get_creates()) == 3, "the queue is not blocked"


def test_a_request_that_is_never_answered_blocks_the_next_one_for_a_few_seconds(bench: Bench) -> None:
    bench.queue.request("raw", {"instructions": "one"})
    bench.wait(1.0)
    bench.queue.request("user")
    for _ in range(2):
        assert bench.queue.deadline is not None
        bench.wait(bench.queue.deadline - bench.now)
    assert bench.get_metadata()[REQUESTERS_KEY] == "user"
    assert bench.now <= 106
    assert [refused.requesters for refused in bench.refused] == [("raw",)]
    bench.start_response("late", bench.get_metadata(0))
    assert bench.sent[-1]["type"] == "response.cancel"  # nobody waits for it any more


def test_a_request_that_waited_for_long_is_repeated_as_soon_as_another_one_waits(bench: Bench) -> None:
    bench.queue.request("raw", {"instructions": "one"})
    bench.wait(8.0)
    assert len(bench.get_creates()) == 1
    bench.queue.request("user")
    assert bench.queue.deadline == bench.now - 8.0 + 2.5
    bench.wait(0.0)
    assert [message["response"].get("instructions") for message in bench.get_creates()] == ["one", "one"]


def test_a_late_answer_to_the_first_attempt_completes_the_request(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(10.1)
    bench.start_response("r1", bench.get_metadata(0))
    assert bench.queue.handle_error(make_collision("standfast_response_1_1")), "the first attempt is active"
    bench.end_response("r1", bench.get_metadata(0))
    bench.wait(100)
    assert len(bench.get_creates()) == 2
    assert bench.refused == []


def test_no_request_is_sent_while_a_needless_repetition_is_pending(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(10.1)
    bench.start_response("r1", bench.get_metadata(0))
    assert not bench.queue.has_pending
    bench.queue.request("next")
    bench.end_response("r1", bench.get_metadata(0))
    assert len(bench.get_creates()) == 2
    assert bench.queue.handle_error(make_collision("standfast_response_1_1"))
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == [
        "user",
        "user",
        "next",
    ]
    assert bench.refused == []


def test_a_lost_repetition_blocks_others_for_a_few_seconds(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(10)
    bench.start_response("r1", bench.get_metadata(0))
    bench.end_response("r1", bench.get_metadata(0))
    bench.queue.request("next")
    bench.wait(2.4)
    assert len(bench.get_creates()) == 2
    bench.wait(0.2)
    assert bench.get_metadata()[REQUESTERS_KEY] == "next"
    assert bench.refused == []
    assert bench.queue.handle_error(make_collision("standfast_response_1_1")), "it needs no report"


def test_a_second_response_to_one_request_is_cancelled(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(10)
    bench.start_response("r1", bench.get_metadata(0))
    bench.end_response("r1", bench.get_metadata(0))
    assert bench.queue.handle_created({"id": "r2", "metadata": bench.get_metadata(1)}), "it must not be played"
    assert bench.sent[-1] == make_cancel("r2")
    bench.queue.request("next")
    assert len(bench.get_creates()) == 2
    bench.end_response("r2", bench.get_metadata(1))
    assert bench.get_metadata()[REQUESTERS_KEY] == "next"
    assert bench.refused == []


def test_a_response_to_an_abandoned_request_is_cancelled(bench: Bench) -> None:
    bench.queue.request("raw", event_id="mine")
    bench.wait(10)
    bench.wait(10)
    assert len(bench.refused) == 1
    assert bench.queue.handle_created({"id": "r1", "metadata": bench.get_metadata(0)})
    assert bench.sent[-1] == make_cancel("r1")
    bench.end_response("r1", bench.get_metadata(0))
    bench.queue.request("raw", event_id="mine")
    assert not bench.queue.handle_created({"id": "r2", "metadata": bench.get_metadata()}), "it was requested again"


def test_a_late_answer_completes_a_request_that_waits_for_its_repetition(bench: Bench) -> None:
    bench.queue.request("tool:a", after_item_id="a")
    bench.start_speech()
    bench.wait(10)
    assert not bench.queue.handle_created({"id": "r1", "metadata": bench.get_metadata(0)})
    bench.end_response("r1", bench.get_metadata(0))
    bench.stop_speech(server_responds=False)
    bench.wait(60)
    assert len(bench.get_creates()) == 1
    assert (bench.queue.has_pending, bench.refused) == (False, [])


def test_a_late_answer_after_its_own_collision_completes_the_request(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(10)
    bench.queue.handle_error(make_collision("standfast_response_1_1"))
    bench.queue.request("next")
    bench.start_response("r1", bench.get_metadata(0))
    bench.wait(1)
    assert len(bench.get_creates()) == 2
    bench.end_response("r1", bench.get_metadata(0))
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == [
        "user",
        "user",
        "next",
    ]


def test_a_request_is_merged_with_one_that_collided(bench: Bench) -> None:
    bench.queue.request("tool:a")
    bench.start_response("voice", {})
    bench.queue.handle_error(make_collision("standfast_response_1"))
    bench.queue.request("tool:b")
    bench.end_response("voice", {})
    assert bench.get_metadata()[REQUESTERS_KEY] == "tool:a tool:b"


def test_a_rejected_request_is_reported_and_unblocks_the_queue(bench: Bench) -> None:
    bench.queue.request("raw", {"voice": "?"})
    bench.queue.request("user")
    assert bench.queue.handle_error(
        {"code": "invalid_value", "event_id": "standfast_response_1", "message": "no such voice"}
    )
    assert [refusal.requesters for refusal in bench.refused] == [("raw",)]
    assert len(bench.get_creates()) == 2


def test_an_unrelated_error_is_not_handled(bench: Bench) -> None:
    bench.queue.request("user")
    assert not bench.queue.handle_error({"code": "invalid_value", "event_id": "other", "message": "?"})
    assert not bench.queue.handle_error({"code": "server_error", "message": "?"})


def test_a_response_that_ends_without_a_start_unblocks_the_queue(bench: Bench) -> None:
    bench.queue.request("user")
    bench.end_response("r1", bench.get_metadata())
    assert (bench.queue.has_pending, bench.queue.active_response_id) == (False, None)


def test_cancel_is_sent_once_and_names_the_response(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.queue.cancel()
    bench.queue.cancel("r1")
    assert [(message["type"], message["response_id"]) for message in bench.sent] == [("response.cancel", "r1")]


def test_cancel_without_an_active_response_sends_nothing(bench: Bench) -> None:
    bench.queue.cancel()
    bench.start_response("r2", None)
    bench.queue.cancel("r1")
    assert bench.sent == []


def test_cancel_applies_to_a_requested_response_that_has_not_started(bench: Bench) -> None:
    bench.queue.request("user")
    bench.queue.cancel()
    assert bench.sent[-1]["type"] == "response.cancel"


def test_a_request_is_not_merged_with_one_that_the_server_may_have_received(bench: Bench) -> None:
    bench.queue.request("tool:1", after_item_id="1")
    bench.start_speech()
    bench.wait(10)
    bench.queue.request("user")
    bench.start_response("r1", bench.get_metadata(0))
    bench.end_response("r1", bench.get_metadata(0))
    bench.wait(60)
    assert "user" in [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()]


def test_cancelling_a_response_of_a_previous_connection_completes_no_request(bench: Bench) -> None:
    bench.queue.cancel("before", force=True)
    bench.queue.request("user")
    assert bench.queue.handle_error({"code": NOT_ACTIVE_CODE, "event_id": "standfast_cancel_before", "message": "none"})
    bench.queue.request("tool:1", {})
    assert len(bench.get_creates()) == 1
    assert bench.queue.handle_error(make_collision(bench.get_creates()[0]["event_id"]))
    bench.wait(1)
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == ["user", "user"]


def test_cancelling_an_inactive_response_unblocks_the_queue(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.queue.request("user")
    bench.queue.cancel()
    assert bench.queue.handle_error(
        {"code": NOT_ACTIVE_CODE, "event_id": bench.sent[-1]["event_id"], "message": "none"}
    )
    assert len(bench.get_creates()) == 1


def test_a_request_that_was_cancelled_after_sending_is_not_repeated(bench: Bench) -> None:
    bench.queue.request("user")
    bench.queue.cancel()
    bench.start_response("voice")
    bench.queue.handle_error(make_collision("standfast_response_1"))
    bench.end_response("voice")
    assert len(bench.get_creates()) == 1
    assert [refusal.requesters for refusal in bench.refused] == [("user",)]


def test_cancelling_a_response_by_id_does_not_affect_other_requests(bench: Bench) -> None:
    bench.queue.request("user")
    bench.start_response("r1", bench.get_metadata())
    bench.end_response("r1", bench.get_metadata())
    bench.queue.request("tool:a")
    bench.start_response("voice", None)
    bench.queue.cancel("voice", force=True)
    bench.queue.handle_error(make_collision("standfast_response_2"))
    bench.end_response("voice", None)
    assert [message["event_id"] for message in bench.get_creates()] == [
        "standfast_response_1",
        "standfast_response_2",
        "standfast_response_2_1",
    ]
    assert bench.refused == []


def test_a_response_without_an_end_does_not_block_for_ever(bench: Bench) -> None:
    bench.start_response("r1")
    bench.queue.request("user")
    bench.wait(4.9)
    assert bench.get_creates() == []
    bench.wait(0.2)
    assert len(bench.get_creates()) == 1
    bench.start_response("r2", bench.get_metadata())
    bench.end_response("r2", bench.get_metadata())
    assert (bench.queue.has_pending, bench.queue.active_response_id) == (False, None)


def test_a_premature_request_costs_one_collision(bench: Bench) -> None:
    bench.start_response("r1")
    bench.queue.request("user")
    bench.wait(5)
    assert bench.queue.handle_error(make_collision(bench.get_creates()[0]["event_id"]))
    assert bench.queue.active_response_id == "r1"
    bench.wait(5)
    assert len(bench.get_creates()) == 1
    bench.end_response("r1")
    assert len(bench.get_creates()) == 2


def test_a_lost_connection_refuses_all_pending_requests(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.queue.request("user")
    bench.queue.request("raw", {})
    assert bench.queue.handle_connection_lost() == "r1"
    assert [refusal.requesters for refusal in bench.refused] == [("user",), ("raw",)]
    assert (bench.queue.has_pending, bench.queue.active_response_id) == (False, None)


def test_a_follow_up_waits_until_the_user_has_stopped(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.request("tool:b", after_item_id="b")
    bench.wait(30)
    assert bench.get_creates() == []
    bench.stop_speech(server_responds=False)
    assert [bench.get_metadata()[REQUESTERS_KEY]] == ["tool:a tool:b"]


def test_a_response_of_the_server_covers_confirmed_items(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.confirm_item("a")
    bench.stop_speech(server_responds=True)
    bench.wait(1)
    bench.start_response("own", None)
    bench.end_response("own", None)
    bench.wait(100)
    assert bench.get_creates() == []
    assert (bench.queue.has_pending, bench.queue.deadline, bench.refused) == (False, None, [])


def test_a_response_of_the_server_does_not_cover_later_items(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.stop_speech(server_responds=True)
    bench.start_response("own", None)
    bench.queue.confirm_item("a")
    assert bench.get_creates() == []
    bench.end_response("own", None)
    assert bench.get_metadata()[REQUESTERS_KEY] == "tool:a"


def test_a_follow_up_waits_for_the_expected_response_of_the_server(bench: Bench) -> None:
    bench.start_speech()
    bench.stop_speech(server_responds=True)
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.confirm_item("a")
    assert bench.get_creates() == []
    bench.start_response("own", None)
    bench.end_response("own", None)
    bench.wait(100)
    assert bench.get_creates() == []


def test_a_follow_up_is_requested_if_the_server_does_not_respond(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.stop_speech(server_responds=True)
    bench.wait(1.9)
    assert bench.get_creates() == []
    bench.wait(0.2)
    assert bench.get_metadata()[REQUESTERS_KEY] == "tool:a"


def test_the_response_of_the_server_may_wait_for_the_active_one(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.confirm_item("a")
    bench.stop_speech(server_responds=True)
    bench.wait(20)
    bench.end_response("r1", None)
    assert bench.get_creates() == []
    bench.wait(1)
    bench.start_response("own", None)
    bench.end_response("own", None)
    bench.wait(100)
    assert bench.get_creates() == []


def test_a_follow_up_waits_briefly_after_the_end_of_the_active_response(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.stop_speech(server_responds=True)
    bench.end_response("r1", None)
    bench.wait(2)
    assert bench.get_metadata()[REQUESTERS_KEY] == "tool:a"


def test_a_response_of_the_server_covers_a_follow_up_that_collided(bench: Bench) -> None:
    bench.queue.request("tool:a", after_item_id="a")
    bench.start_speech()
    bench.queue.confirm_item("a")
    bench.queue.handle_error(make_collision("standfast_response_1"))
    bench.stop_speech(server_responds=True)
    bench.start_response("own", {})
    bench.end_response("own", {})
    bench.wait(100)
    assert len(bench.get_creates()) == 1
    assert (bench.queue.has_pending, bench.refused) == (False, [])


def test_a_request_of_the_program_is_sent_at_once_with_merged_follow_ups(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.request("user")
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == ["tool:a user"]


def test_a_request_with_options_precedes_a_follow_up_and_does_not_cover_it(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.confirm_item("a")
    bench.queue.request("raw", {"instructions": "x"})
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == ["raw"]
    bench.start_response("r1", bench.get_metadata())
    bench.end_response("r1", bench.get_metadata())
    assert len(bench.get_creates()) == 1
    bench.stop_speech(server_responds=False)
    assert bench.get_metadata()[REQUESTERS_KEY] == "tool:a"


def test_a_request_with_options_follows_the_response_of_the_server(bench: Bench) -> None:
    bench.start_response("r1", None)
    bench.start_speech()
    bench.queue.request("raw", {"instructions": "x"})
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.confirm_item("a")
    bench.stop_speech(server_responds=True)
    bench.start_response("own", None)
    bench.end_response("own", None)
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == ["raw"]
    assert bench.queue.has_pending
    bench.start_response("r2", bench.get_metadata())
    bench.end_response("r2", bench.get_metadata())
    assert not bench.queue.has_pending


def test_a_response_does_not_end_the_turn_of_the_user(bench: Bench) -> None:
    bench.start_speech()
    bench.start_response("own", None)
    bench.end_response("own", None)
    bench.queue.request("tool:a", after_item_id="a")
    bench.wait(3)
    assert bench.get_creates() == []


def test_a_turn_without_a_reported_end_expires(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    assert bench.queue.deadline == bench.now + 60
    bench.wait(59)
    assert bench.get_creates() == []
    bench.wait(1)
    assert len(bench.get_creates()) == 1


def test_an_end_of_speech_without_a_start_is_ignored(bench: Bench) -> None:
    bench.stop_speech(server_responds=True)
    bench.queue.request("tool:a", after_item_id="a")
    assert len(bench.get_creates()) == 1


def test_a_lost_connection_resets_the_turn_of_the_user(bench: Bench) -> None:
    bench.start_speech()
    bench.queue.request("tool:a", after_item_id="a")
    bench.queue.handle_connection_lost()
    assert [refusal.requesters for refusal in bench.refused] == [("tool:a",)]
    bench.queue.request("tool:b", after_item_id="b")
    assert len(bench.get_creates()) == 1


class ResponseQueueMachine(RuleBasedStateMachine):
    """A server that answers in order but at any time, starts responses itself, loses messages and may or may not return
    labels, and a user who starts and stops speaking. Owners are numbers, or ids of items that a request follows. Each
    must end answered or refused: by a requested response or, for an item, by a response of the server that started
    when the server had the item."""

    @initialize(labels=st.booleans())
    def set_up(self, labels: bool) -> None:
        self.bench, self.labels = Bench(), labels
        self.read = 0
        self.inbox: deque[dict[str, Any]] = deque()
        self.active: tuple[str, dict[str, Any] | None] | None = None
        self.count = 0
        self.owner_count = 0
        self.answered: set[str] = set()
        self.seen: set[tuple[str, str]] = set()
        self.items: set[str] = set()
        self.followed: set[str] = set()
        self.talking = False

    def deliver_later(self, **message: Any) -> None:
        self.inbox.append(message)

    @rule(options=st.booleans())
    def request(self, options: bool) -> None:
        self.owner_count += 1
        self.bench.queue.request(str(self.owner_count), {"instructions": "x"} if options else None)

    @rule()
    def follow(self) -> None:
        """A request that follows an item, such as a tool output."""
        item = f"item{len(self.followed)}"
        self.followed.add(item)
        self.bench.record({"type": "item", "item": item})
        self.bench.queue.request(item, after_item_id=item)

    @rule()
    @precondition(lambda self: not self.talking)
    def user_speaks(self) -> None:
        self.talking = True
        self.deliver_later(on="speaks")

    @rule(responds=st.booleans(), at_once=st.booleans())
    @precondition(lambda self: self.talking)
    def user_stops(self, responds: bool, at_once: bool) -> None:
        self.talking = False
        self.deliver_later(on="stopped", server_responds=responds)
        if responds and at_once and self.active is None:
            self.start_server_response(None)

    @rule(force=st.booleans())
    def cancel(self, force: bool) -> None:
        self.bench.queue.cancel(force=force)

    @rule(loses=st.sampled_from([False, False, False, True]))
    def serve(self, loses: bool) -> None:
        """The server handles the next message of the client."""
        if self.read == len(self.bench.sent):
            return
        message = self.bench.sent[self.read]
        self.read += 1
        if loses:
            return
        if message["type"] == "item":
            self.items.add(message["item"])
            self.deliver_later(on="item", item=message["item"])
        elif message["type"] == "response.cancel":
            if self.active is None or message.get("response_id") not in (None, self.active[0]):
                self.deliver_later(
                    on="error", error={"code": NOT_ACTIVE_CODE, "event_id": message["event_id"], "message": ""}
                )
            else:
                self.end()
        elif self.active is not None:
            self.deliver_later(on="error", error=make_collision(message["event_id"]))
        else:
            self.start_server_response(message["response"]["metadata"])

    def start_server_response(self, metadata: dict[str, Any] | None) -> None:
        self.count += 1
        self.active = (f"r{self.count}", metadata)
        if metadata is not None:
            self.answered |= set(metadata[REQUESTERS_KEY].split())
        else:
            self.answered |= self.items
        self.deliver_later(on="created", response=self.build_response())

    def build_response(self) -> dict[str, Any]:
        response_id, metadata = self.active
        return {"id": response_id, "metadata": metadata} if self.labels else {"id": response_id}

    @rule()
    @precondition(lambda self: self.active is None)
    def respond_to_speech(self) -> None:
        """Voice activity starts a response."""
        self.start_server_response(None)

    @rule()
    @precondition(lambda self: self.active is not None)
    def end(self) -> None:
        self.deliver_later(on="done", response=self.build_response())
        self.active = None

    @rule(loses=st.sampled_from([False, False, False, False, True]))
    def deliver(self, loses: bool) -> None:
        """The client handles the next message of the server, unless it is lost."""
        if not self.inbox:
            return
        message = self.inbox.popleft()
        if loses and message["on"] != "error":
            return
        queue = self.bench.queue
        match message["on"]:
            case "created":
                unwanted = self.mark_served(message["response"])
                queue.handle_created(message["response"])
                cancelled = self.bench.sent[-1:] == [make_cancel(message["response"]["id"])]
                assert cancelled or not unwanted, "a second response for one request"
            case "done":
                self.mark_served(message["response"])
                queue.handle_done(message["response"])
            case "item":
                queue.confirm_item(message["item"])
            case "speaks":
                self.bench.start_speech()
            case "stopped":
                self.bench.stop_speech(server_responds=message["server_responds"])
            case _:
                queue.handle_error(message["error"])

    def mark_served(self, response: dict[str, Any]) -> bool:
        """Return True if an owner of the response already had another response or a refusal."""
        if not (metadata := response.get("metadata")):
            return False
        refused = {owner for refusal in self.bench.refused for owner in refusal.requesters}
        served = set(metadata[REQUESTERS_KEY].split()) & (
            refused | {owner for name, owner in self.seen if name != response["id"]}
        )
        self.seen |= {(response["id"], owner) for owner in metadata[REQUESTERS_KEY].split()}
        return bool(served)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.bench.wait(seconds)

    @invariant()
    def never_two_requests_at_once(self) -> None:
        if not hasattr(self, "bench") or not self.labels:
            return
        unread = [
            when
            for when, message in list(zip(self.bench.times, self.bench.sent, strict=True))[self.read :]
            if message["type"] == "response.create"
        ]
        for before, after in pairwise(unread):
            assert after - before >= 2.5, "a second request before the first was abandoned"

    @invariant()
    def follow_ups_do_not_interrupt_the_user(self) -> None:
        for owners in self.bench.sent_during_speech if hasattr(self, "bench") else ():
            assert not set(owners.split()) <= self.followed

    def teardown(self) -> None:
        """Once the server behaves, every owner is answered or refused and the queue is idle."""
        if not hasattr(self, "bench"):
            return
        for _ in range(2000):
            while self.read < len(self.bench.sent):
                self.serve(False)
            if self.active is not None:
                self.end()
            while self.inbox:
                self.deliver(False)
            if not self.bench.queue.has_pending and self.read == len(self.bench.sent):
                break
            self.bench.wait(1.0)
        assert not self.bench.queue.has_pending
        refused = {owner for refusal in self.bench.refused for owner in refusal.requesters}
        owners = {str(number + 1) for number in range(self.owner_count)} | self.followed
        if self.labels:
            assert owners == self.answered | refused


TestResponseQueueMachine = ResponseQueueMachine.TestCase
TestResponseQueueMachine.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


@pytest.mark.soak
class TestResponseQueueMachineSoak(ResponseQueueMachine.TestCase):
    settings = settings(max_examples=1000, stateful_step_count=60, deadline=None)


def test_the_label_names_the_request(bench: Bench) -> None:
    bench.queue.request("user", {"metadata": {"mine": "1"}})
    assert bench.get_metadata() == {REQUEST_LABEL_KEY: "standfast_response_1", REQUESTERS_KEY: "user", "mine": "1"}


def test_an_error_about_an_earlier_attempt_does_not_affect_the_later_one(bench: Bench) -> None:
    bench.queue.request("user")
    bench.wait(10)
    assert len(bench.get_creates()) == 2
    bench.queue.request("raw", {"instructions": "x"})
    assert bench.queue.handle_error(make_collision("standfast_response_1")), "it needs no report"
    assert len(bench.get_creates()) == 2
    bench.start_response("r1", bench.get_metadata())
    bench.end_response("r1", bench.get_metadata())
    assert [message["response"]["metadata"][REQUESTERS_KEY] for message in bench.get_creates()] == [
        "user",
        "user",
        "raw",
    ]


def test_without_metadata_a_collision_corrects_the_match(bench: Bench) -> None:
    bench.queue.request("user")
    bench.queue.handle_created({"id": "voice"})
    assert bench.queue.handle_error(make_collision("standfast_response_1")), (
        "the response that started was not the answer"
    )
    bench.queue.handle_done({"id": "voice"})
    assert len(bench.get_creates()) == 2
    bench.queue.handle_created({"id": "answer"})
    bench.queue.handle_done({"id": "answer"})
    assert (bench.queue.has_pending, bench.queue.active_response_id) == (False, None)
