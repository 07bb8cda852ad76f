"""The response gate against a server that may do anything in any order."""

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
    OWNERS_KEY,
    REQUEST_LABEL_KEY,
    RequestContext,
    ResponseQueue,
)


class Bench:
    """A gate, its clock, and what it said."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[dict[str, Any]] = []
        self.refused: list[ResponseRefused] = []
        self.times: list[float] = []
        self.speaks_since: float | None = None
        self.over_the_user: list[str] = []
        self.gate = ResponseQueue(RequestContext(self.say, self.refused.append, clock=lambda: self.now, timeout=10))

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)
        self.times.append(self.now)
        if message["type"] == "response.create" and self.speaks_since is not None and self.now - self.speaks_since < 60:
            self.over_the_user.append(message["response"]["metadata"][OWNERS_KEY])

    def user_speaks(self) -> None:
        self.speaks_since = self.now
        self.gate.start_user_turn()

    def user_stopped(self, *, answered: bool) -> None:
        self.speaks_since = None
        self.gate.end_user_turn(server_responds=answered)

    def creates(self) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == "response.create"]

    def label(self, number: int = -1) -> dict[str, Any]:
        return self.creates()[number]["response"]["metadata"]

    def begins(self, response_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.gate.handle_created({"id": response_id, "metadata": metadata})

    def ends(self, response_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.gate.handle_done({"id": response_id, "metadata": metadata})

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.gate.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def collision(event_id: str) -> dict[str, Any]:
    return {"type": "invalid_request_error", "code": COLLISION_CODE, "event_id": event_id, "message": "busy"}


def cancelling(response_id: str) -> dict[str, Any]:
    return {"type": "response.cancel", "event_id": f"hf_cancel_{response_id}", "response_id": response_id}


def test_a_request_is_sent_at_once_when_nothing_is_active(bench: Bench) -> None:
    bench.gate.request("user")
    assert [message["event_id"] for message in bench.creates()] == ["hf_response_1"]
    assert bench.label()[OWNERS_KEY] == "user"


def test_a_request_waits_for_the_end_of_the_active_response(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.request("user")
    assert bench.creates() == []
    bench.ends("r1")
    assert len(bench.creates()) == 1


def test_requests_that_wait_become_one(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.request("tool:a")
    bench.gate.request("tool:b")
    bench.ends("r1")
    assert len(bench.creates()) == 1
    assert bench.label()[OWNERS_KEY] == "tool:a tool:b"


def test_a_request_does_not_join_one_that_was_sent(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.request("user")
    bench.begins("r1", bench.label())
    bench.ends("r1", bench.label())
    assert len(bench.creates()) == 2


def test_requests_with_wishes_keep_their_order_and_are_not_merged(bench: Bench) -> None:
    bench.begins("r0", None)
    bench.gate.request("raw", {"instructions": "one"})
    bench.gate.request("raw", {"instructions": "two"}, event_id="mine")
    bench.gate.request("user")
    for number in (1, 2, 3):
        bench.ends(f"r{number - 1}")
        bench.begins(f"r{number}", bench.label())
    assert [message["response"].get("instructions") for message in bench.creates()] == ["one", "two", None]
    assert bench.creates()[1]["event_id"] == "mine"


def test_after_a_collision_the_request_is_repeated_when_the_winner_has_ended(bench: Bench) -> None:
    bench.gate.request("tool:a")
    bench.begins("voice", {})
    assert bench.gate.handle_error(collision("hf_response_1"))
    assert len(bench.creates()) == 1
    bench.ends("voice", {})
    assert [message["event_id"] for message in bench.creates()] == ["hf_response_1", "hf_response_1_1"]
    assert bench.refused == []


def test_a_server_that_gives_labels_back_is_never_misunderstood(bench: Bench) -> None:
    bench.gate.request("user")
    bench.begins("r1", bench.label())
    bench.ends("r1", bench.label())
    bench.gate.request("user")
    bench.begins("voice", None)
    bench.ends("voice", None)
    assert len(bench.creates()) == 2, "the request is still open"
    bench.begins("r2", bench.label())
    bench.wait(100)
    assert len(bench.creates()) == 2
    assert bench.refused == []


def test_after_a_collision_with_a_response_nobody_heard_of_it_is_tried_again_soon(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.handle_error(collision("hf_response_1"))
    assert len(bench.creates()) == 1
    bench.wait(0.3)
    assert len(bench.creates()) == 2


def test_a_request_that_is_never_answered_is_repeated_once_and_then_reported(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(9.9)
    assert len(bench.creates()) == 1
    bench.wait(0.2)
    assert len(bench.creates()) == 2
    bench.wait(10.1)
    assert [refusal.requesters for refusal in bench.refused] == [("user",)]
    assert isinstance(bench.refused[0].error, TimeoutError)
    bench.gate.request("next")
    assert len(bench.creates()) == 3, "the slot is free"


def test_a_late_answer_to_the_first_try_settles_the_second(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10.1)
    bench.begins("r1", bench.label(0))
    assert bench.gate.handle_error(collision("hf_response_1_1")), "its own first try is in the way"
    bench.ends("r1", bench.label(0))
    bench.wait(100)
    assert len(bench.creates()) == 2
    assert bench.refused == []


def test_nothing_else_is_asked_for_while_a_repetition_of_what_was_answered_is_on_its_way(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10.1)
    bench.begins("r1", bench.label(0))
    assert not bench.gate.has_pending
    bench.gate.request("next")
    bench.ends("r1", bench.label(0))
    assert len(bench.creates()) == 2
    assert bench.gate.handle_error(collision("hf_response_1_1"))
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["user", "user", "next"]
    assert bench.refused == []


def test_a_repetition_that_was_lost_does_not_keep_others_waiting_for_long(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10)
    bench.begins("r1", bench.label(0))
    bench.ends("r1", bench.label(0))
    bench.gate.request("next")
    bench.wait(9.9)
    assert len(bench.creates()) == 2
    bench.wait(0.1)
    assert bench.label()[OWNERS_KEY] == "next"
    assert bench.refused == []
    assert bench.gate.handle_error(collision("hf_response_1_1")), "it is no news"


def test_a_second_response_to_one_wish_is_cancelled(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10)
    bench.begins("r1", bench.label(0))
    bench.ends("r1", bench.label(0))
    assert bench.gate.handle_created({"id": "r2", "metadata": bench.label(1)}), "nobody is to hear it"
    assert bench.said[-1] == cancelling("r2")
    bench.gate.request("next")
    assert len(bench.creates()) == 2
    bench.ends("r2", bench.label(1))
    assert bench.label()[OWNERS_KEY] == "next"
    assert bench.refused == []


def test_a_response_to_what_was_given_up_is_cancelled(bench: Bench) -> None:
    bench.gate.request("raw", event_id="mine")
    bench.wait(10)
    bench.wait(10)
    assert len(bench.refused) == 1
    assert bench.gate.handle_created({"id": "r1", "metadata": bench.label(0)})
    assert bench.said[-1] == cancelling("r1")
    bench.ends("r1", bench.label(0))
    bench.gate.request("raw", event_id="mine")
    assert not bench.gate.handle_created({"id": "r2", "metadata": bench.label()}), "it was asked for anew"


def test_a_late_answer_serves_a_request_that_waits_to_be_repeated(bench: Bench) -> None:
    bench.gate.request("tool:a", after_item_id="a")
    bench.user_speaks()
    bench.wait(10)
    assert not bench.gate.handle_created({"id": "r1", "metadata": bench.label(0)})
    bench.ends("r1", bench.label(0))
    bench.user_stopped(answered=False)
    bench.wait(60)
    assert len(bench.creates()) == 1
    assert (bench.gate.has_pending, bench.refused) == (False, [])


def test_a_late_answer_that_comes_behind_its_own_collision_is_waited_for(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10)
    bench.gate.handle_error(collision("hf_response_1_1"))
    bench.gate.request("next")
    bench.begins("r1", bench.label(0))
    bench.wait(1)
    assert len(bench.creates()) == 2
    bench.ends("r1", bench.label(0))
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["user", "user", "next"]


def test_a_request_joins_one_that_the_server_has_refused_for_now(bench: Bench) -> None:
    bench.gate.request("tool:a")
    bench.begins("voice", {})
    bench.gate.handle_error(collision("hf_response_1"))
    bench.gate.request("tool:b")
    bench.ends("voice", {})
    assert bench.label()[OWNERS_KEY] == "tool:a tool:b"


def test_a_refused_request_is_reported_and_makes_room(bench: Bench) -> None:
    bench.gate.request("raw", {"voice": "?"})
    bench.gate.request("user")
    assert bench.gate.handle_error({"code": "invalid_value", "event_id": "hf_response_1", "message": "no such voice"})
    assert [refusal.requesters for refusal in bench.refused] == [("raw",)]
    assert len(bench.creates()) == 2


def test_an_error_about_something_else_is_left_to_others(bench: Bench) -> None:
    bench.gate.request("user")
    assert not bench.gate.handle_error({"code": "invalid_value", "event_id": "other", "message": "?"})
    assert not bench.gate.handle_error({"code": "server_error", "message": "?"})


def test_a_response_that_ends_without_having_begun_frees_the_slot(bench: Bench) -> None:
    bench.gate.request("user")
    bench.ends("r1", bench.label())
    assert (bench.gate.has_pending, bench.gate.active_response_id) == (False, None)


def test_cancel_is_sent_once_and_names_the_response(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.cancel()
    bench.gate.cancel("r1")
    assert [(message["type"], message["response_id"]) for message in bench.said] == [("response.cancel", "r1")]


def test_cancel_with_nothing_active_says_nothing(bench: Bench) -> None:
    bench.gate.cancel()
    bench.begins("r2", None)
    bench.gate.cancel("r1")
    assert bench.said == []


def test_cancel_reaches_a_response_that_was_asked_for_and_has_not_begun(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.cancel()
    assert bench.said[-1]["type"] == "response.cancel"


def test_a_request_joins_none_that_the_server_may_have_got_before(bench: Bench) -> None:
    bench.gate.request("tool:1", after_item_id="1")
    bench.user_speaks()
    bench.wait(10)
    bench.gate.request("user")
    bench.begins("r1", bench.label(0))
    bench.ends("r1", bench.label(0))
    bench.wait(60)
    assert "user" in [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()]


def test_cancelling_a_response_of_an_earlier_connection_answers_no_request(bench: Bench) -> None:
    bench.gate.cancel("before", force=True)
    bench.gate.request("user")
    assert bench.gate.handle_error({"code": NOT_ACTIVE_CODE, "event_id": "hf_cancel_before", "message": "none"})
    bench.gate.request("tool:1", {})
    assert len(bench.creates()) == 1
    assert bench.gate.handle_error(collision(bench.creates()[0]["event_id"]))
    bench.wait(1)
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["user", "user"]


def test_cancelling_what_is_not_active_is_harmless_and_frees_the_slot(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.request("user")
    bench.gate.cancel()
    assert bench.gate.handle_error({"code": NOT_ACTIVE_CODE, "event_id": bench.said[-1]["event_id"], "message": "none"})
    assert len(bench.creates()) == 1


def test_a_request_that_was_cancelled_on_its_way_is_not_repeated(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.cancel()
    bench.begins("voice")
    bench.gate.handle_error(collision("hf_response_1"))
    bench.ends("voice")
    assert len(bench.creates()) == 1
    assert [refusal.requesters for refusal in bench.refused] == [("user",)]


def test_cancelling_one_response_by_its_name_leaves_the_request_for_another_alone(bench: Bench) -> None:
    bench.gate.request("user")
    bench.begins("r1", bench.label())
    bench.ends("r1", bench.label())
    bench.gate.request("tool:a")
    bench.begins("voice", None)
    bench.gate.cancel("voice", force=True)
    bench.gate.handle_error(collision("hf_response_2"))
    bench.ends("voice", None)
    assert [message["event_id"] for message in bench.creates()] == ["hf_response_1", "hf_response_2", "hf_response_2_1"]
    assert bench.refused == []


def test_a_response_whose_end_never_comes_does_not_block_for_ever(bench: Bench) -> None:
    bench.begins("r1")
    bench.gate.request("user")
    bench.wait(29)
    assert bench.creates() == []
    bench.wait(2)
    assert len(bench.creates()) == 1
    bench.begins("r2", bench.label())
    bench.ends("r2", bench.label())
    assert (bench.gate.has_pending, bench.gate.active_response_id) == (False, None)


def test_asking_too_early_costs_one_collision(bench: Bench) -> None:
    bench.begins("r1")
    bench.gate.request("user")
    bench.wait(31)
    assert bench.gate.handle_error(collision(bench.creates()[0]["event_id"]))
    assert bench.gate.active_response_id == "r1"
    bench.wait(5)
    assert len(bench.creates()) == 1
    bench.ends("r1")
    assert len(bench.creates()) == 2


def test_everybody_who_waits_is_told_that_the_connection_is_gone(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.request("user")
    bench.gate.request("raw", {})
    assert bench.gate.handle_connection_lost() == "r1"
    assert [refusal.requesters for refusal in bench.refused] == [("user",), ("raw",)]
    assert (bench.gate.has_pending, bench.gate.active_response_id) == (False, None)


def test_a_follow_up_waits_until_the_user_has_stopped(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.request("tool:b", after_item_id="b")
    bench.wait(30)
    assert bench.creates() == []
    bench.user_stopped(answered=False)
    assert [bench.label()[OWNERS_KEY]] == ["tool:a tool:b"]


def test_the_servers_own_answer_to_the_user_answers_what_it_knows_of(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.confirm_item("a")
    bench.user_stopped(answered=True)
    bench.wait(1)
    bench.begins("own", None)
    bench.ends("own", None)
    bench.wait(100)
    assert bench.creates() == []
    assert (bench.gate.has_pending, bench.gate.deadline, bench.refused) == (False, None, [])


def test_the_servers_own_answer_does_not_answer_what_came_too_late_for_it(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.user_stopped(answered=True)
    bench.begins("own", None)
    bench.gate.confirm_item("a")
    assert bench.creates() == []
    bench.ends("own", None)
    assert bench.label()[OWNERS_KEY] == "tool:a"


def test_a_follow_up_to_a_turn_that_is_about_to_be_answered_waits_for_that(bench: Bench) -> None:
    bench.user_speaks()
    bench.user_stopped(answered=True)
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.confirm_item("a")
    assert bench.creates() == []
    bench.begins("own", None)
    bench.ends("own", None)
    bench.wait(100)
    assert bench.creates() == []


def test_if_the_servers_own_answer_does_not_come_the_follow_up_is_asked_for(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.user_stopped(answered=True)
    bench.wait(1.9)
    assert bench.creates() == []
    bench.wait(0.2)
    assert bench.label()[OWNERS_KEY] == "tool:a"


def test_the_servers_own_answer_may_have_to_wait_for_the_active_one(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.confirm_item("a")
    bench.user_stopped(answered=True)
    bench.wait(20)
    bench.ends("r1", None)
    assert bench.creates() == []
    bench.wait(1)
    bench.begins("own", None)
    bench.ends("own", None)
    bench.wait(100)
    assert bench.creates() == []


def test_the_end_of_the_active_one_does_not_keep_a_follow_up_for_long(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.user_stopped(answered=True)
    bench.ends("r1", None)
    bench.wait(2)
    assert bench.label()[OWNERS_KEY] == "tool:a"


def test_a_follow_up_that_collided_is_answered_by_the_servers_own_answer_as_well(bench: Bench) -> None:
    bench.gate.request("tool:a", after_item_id="a")
    bench.user_speaks()
    bench.gate.confirm_item("a")
    bench.gate.handle_error(collision("hf_response_1"))
    bench.user_stopped(answered=True)
    bench.begins("own", {})
    bench.ends("own", {})
    bench.wait(100)
    assert len(bench.creates()) == 1
    assert (bench.gate.has_pending, bench.refused) == (False, [])


def test_a_request_of_the_program_waits_for_no_user_and_takes_follow_ups_along(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.request("user")
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["tool:a user"]


def test_a_request_with_wishes_goes_before_a_follow_up_and_does_not_answer_it(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.confirm_item("a")
    bench.gate.request("raw", {"instructions": "x"})
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["raw"]
    bench.begins("r1", bench.label())
    bench.ends("r1", bench.label())
    assert len(bench.creates()) == 1
    bench.user_stopped(answered=False)
    assert bench.label()[OWNERS_KEY] == "tool:a"


def test_a_request_with_wishes_follows_the_servers_own_answer(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.user_speaks()
    bench.gate.request("raw", {"instructions": "x"})
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.confirm_item("a")
    bench.user_stopped(answered=True)
    bench.begins("own", None)
    bench.ends("own", None)
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["raw"]
    assert bench.gate.has_pending
    bench.begins("r2", bench.label())
    bench.ends("r2", bench.label())
    assert not bench.gate.has_pending


def test_a_response_while_the_user_speaks_does_not_end_the_users_turn(bench: Bench) -> None:
    bench.user_speaks()
    bench.begins("own", None)
    bench.ends("own", None)
    bench.gate.request("tool:a", after_item_id="a")
    bench.wait(3)
    assert bench.creates() == []


def test_a_user_whose_silence_was_not_told_is_not_waited_for_for_ever(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    assert bench.gate.deadline == bench.now + 60
    bench.wait(59)
    assert bench.creates() == []
    bench.wait(1)
    assert len(bench.creates()) == 1


def test_the_silence_of_a_user_who_did_not_speak_is_no_news(bench: Bench) -> None:
    bench.user_stopped(answered=True)
    bench.gate.request("tool:a", after_item_id="a")
    assert len(bench.creates()) == 1


def test_a_new_connection_does_not_wait_for_a_user_who_spoke_on_the_last_one(bench: Bench) -> None:
    bench.user_speaks()
    bench.gate.request("tool:a", after_item_id="a")
    bench.gate.handle_connection_lost()
    assert [refusal.requesters for refusal in bench.refused] == [("tool:a",)]
    bench.gate.request("tool:b", after_item_id="b")
    assert len(bench.creates()) == 1


class Anything(RuleBasedStateMachine):
    """A server that answers in order but whenever it likes, starts responses of its own, loses messages,
    and may or may not give labels back, and a user who begins and stops to speak. Owners are numbers, or the names of
    items that are followed; each must end answered or refused, by a response that was asked for it or, for an item,
    by one of the server's own that began when the server had the item."""

    @initialize(labels=st.booleans())
    def start(self, labels: bool) -> None:
        self.bench, self.labels = Bench(), labels
        self.read = 0
        self.inbox: deque[dict[str, Any]] = deque()
        self.active: tuple[str, dict[str, Any] | None] | None = None
        self.count = 0
        self.owners = 0
        self.answered: set[str] = set()
        self.heard: set[tuple[str, str]] = set()
        self.items: set[str] = set()
        self.followed: set[str] = set()
        self.talking = False

    def tell(self, **message: Any) -> None:
        self.inbox.append(message)

    @rule(wishes=st.booleans())
    def ask(self, wishes: bool) -> None:
        self.owners += 1
        self.bench.gate.request(str(self.owners), {"instructions": "x"} if wishes else None)

    @rule()
    def follow(self) -> None:
        """The output of a tool, say."""
        item = f"item{len(self.followed)}"
        self.followed.add(item)
        self.bench.say({"type": "item", "item": item})
        self.bench.gate.request(item, after_item_id=item)

    @rule()
    @precondition(lambda self: not self.talking)
    def user_speaks(self) -> None:
        self.talking = True
        self.tell(on="speaks")

    @rule(answers=st.booleans(), at_once=st.booleans())
    @precondition(lambda self: self.talking)
    def user_stops(self, answers: bool, at_once: bool) -> None:
        self.talking = False
        self.tell(on="stopped", answered=answers)
        if answers and at_once and self.active is None:
            self.begin(None)

    @rule(force=st.booleans())
    def cancel(self, force: bool) -> None:
        self.bench.gate.cancel(force=force)

    @rule(loses=st.sampled_from([False, False, False, True]))
    def serve(self, loses: bool) -> None:
        """The server takes the next message of the client."""
        if self.read == len(self.bench.said):
            return
        message = self.bench.said[self.read]
        self.read += 1
        if loses:
            return
        if message["type"] == "item":
            self.items.add(message["item"])
            self.tell(on="item", item=message["item"])
        elif message["type"] == "response.cancel":
            if self.active is None or message.get("response_id") not in (None, self.active[0]):
                self.tell(on="error", error={"code": NOT_ACTIVE_CODE, "event_id": message["event_id"], "message": ""})
            else:
                self.end()
        elif self.active is not None:
            self.tell(on="error", error=collision(message["event_id"]))
        else:
            self.begin(message["response"]["metadata"])

    def begin(self, metadata: dict[str, Any] | None) -> None:
        self.count += 1
        self.active = (f"r{self.count}", metadata)
        if metadata is not None:
            self.answered |= set(metadata[OWNERS_KEY].split())
        else:
            self.answered |= self.items
        self.tell(on="created", response=self.shown())

    def shown(self) -> dict[str, Any]:
        response_id, metadata = self.active
        return {"id": response_id, "metadata": metadata} if self.labels else {"id": response_id}

    @rule()
    @precondition(lambda self: self.active is None)
    def speak(self) -> None:
        """Voice activity starts a response."""
        self.begin(None)

    @rule()
    @precondition(lambda self: self.active is not None)
    def end(self) -> None:
        self.tell(on="done", response=self.shown())
        self.active = None

    @rule(loses=st.sampled_from([False, False, False, False, True]))
    def deliver(self, loses: bool) -> None:
        """The client hears the next message of the server, or not."""
        if not self.inbox:
            return
        message = self.inbox.popleft()
        if loses and message["on"] != "error":
            return
        gate = self.bench.gate
        match message["on"]:
            case "created":
                unwanted = self.had(message["response"])
                gate.handle_created(message["response"])
                cancelled = self.bench.said[-1:] == [cancelling(message["response"]["id"])]
                assert cancelled or not unwanted, "a second response for one wish"
            case "done":
                self.had(message["response"])
                gate.handle_done(message["response"])
            case "item":
                gate.confirm_item(message["item"])
            case "speaks":
                self.bench.user_speaks()
            case "stopped":
                self.bench.user_stopped(answered=message["answered"])
            case _:
                gate.handle_error(message["error"])

    def had(self, response: dict[str, Any]) -> bool:
        """Whether those for whom a response was asked have had another, or a refusal."""
        if not (metadata := response.get("metadata")):
            return False
        refused = {owner for refusal in self.bench.refused for owner in refusal.requesters}
        served = set(metadata[OWNERS_KEY].split()) & (
            refused | {owner for name, owner in self.heard if name != response["id"]}
        )
        self.heard |= {(response["id"], owner) for owner in metadata[OWNERS_KEY].split()}
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
            for when, message in list(zip(self.bench.times, self.bench.said, strict=True))[self.read :]
            if message["type"] == "response.create"
        ]
        for before, after in pairwise(unread):
            assert after - before >= 10, "a second request before the first was given up"

    @invariant()
    def nobody_talks_over_the_user_unless_asked_to(self) -> None:
        for owners in self.bench.over_the_user if hasattr(self, "bench") else ():
            assert not set(owners.split()) <= self.followed

    def teardown(self) -> None:
        """When the server behaves again, everybody is served: answered or refused, and the gate is idle."""
        if not hasattr(self, "bench"):
            return
        for _ in range(2000):
            while self.read < len(self.bench.said):
                self.serve(False)
            if self.active is not None:
                self.end()
            while self.inbox:
                self.deliver(False)
            if not self.bench.gate.has_pending and self.read == len(self.bench.said):
                break
            self.bench.wait(1.0)
        assert not self.bench.gate.has_pending
        refused = {owner for refusal in self.bench.refused for owner in refusal.requesters}
        everybody = {str(number + 1) for number in range(self.owners)} | self.followed
        if self.labels:
            assert everybody == self.answered | refused


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_label_names_the_request(bench: Bench) -> None:
    bench.gate.request("user", {"metadata": {"mine": "1"}})
    assert bench.label() == {REQUEST_LABEL_KEY: "hf_response_1", OWNERS_KEY: "user", "mine": "1"}


def test_the_word_on_an_earlier_try_says_nothing_about_the_later_one(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10)
    assert len(bench.creates()) == 2
    bench.gate.request("raw", {"instructions": "x"})
    assert bench.gate.handle_error(collision("hf_response_1")), "it is no news"
    assert len(bench.creates()) == 2
    bench.begins("r1", bench.label())
    bench.ends("r1", bench.label())
    assert [message["response"]["metadata"][OWNERS_KEY] for message in bench.creates()] == ["user", "user", "raw"]


def test_with_a_server_without_metadata_a_collision_undoes_the_guess(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.handle_created({"id": "voice"})
    assert bench.gate.handle_error(collision("hf_response_1")), "the response that began was not the answer"
    bench.gate.handle_done({"id": "voice"})
    assert len(bench.creates()) == 2
    bench.gate.handle_created({"id": "answer"})
    bench.gate.handle_done({"id": "answer"})
    assert (bench.gate.has_pending, bench.gate.active_response_id) == (False, None)
