"""The response gate against a server that may do anything in any order."""

from collections import deque
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.realtime.errors import ResponseRefused
from holdfast.realtime.openai.gate import COLLISION, LABEL, NOT_ACTIVE, OWNERS, ResponseGate


class Bench:
    """A gate, its clock, and what it said."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[dict[str, Any]] = []
        self.refused: list[ResponseRefused] = []
        self.times: list[float] = []
        self.gate = ResponseGate(self.say, self.refused.append, clock=lambda: self.now, acknowledge_within=10)

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)
        self.times.append(self.now)

    def creates(self) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == "response.create"]

    def label(self, number: int = -1) -> dict[str, Any]:
        return self.creates()[number]["response"]["metadata"]

    def begins(self, response_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.gate.created({"id": response_id, "metadata": metadata})

    def ends(self, response_id: str, metadata: dict[str, Any] | None = None) -> None:
        self.gate.done({"id": response_id, "metadata": metadata})

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.gate.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def collision(event_id: str) -> dict[str, Any]:
    return {"type": "invalid_request_error", "code": COLLISION, "event_id": event_id, "message": "busy"}


def test_a_request_is_sent_at_once_when_nothing_is_active(bench: Bench) -> None:
    bench.gate.request("user")
    assert [message["event_id"] for message in bench.creates()] == ["hf_response_1"]
    assert bench.label()[OWNERS] == "user"


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
    assert bench.label()[OWNERS] == "tool:a tool:b"


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
    assert bench.gate.failed(collision("hf_response_1"))
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
    bench.gate.failed(collision("hf_response_1"))
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
    assert [refusal.owners for refusal in bench.refused] == [("user",)]
    assert isinstance(bench.refused[0].error, TimeoutError)
    bench.gate.request("next")
    assert len(bench.creates()) == 3, "the slot is free"


def test_a_late_answer_to_the_first_try_settles_the_second(bench: Bench) -> None:
    bench.gate.request("user")
    bench.wait(10.1)
    bench.begins("r1", bench.label(0))
    assert bench.gate.failed(collision("hf_response_1_1")), "its own first try is in the way"
    bench.ends("r1", bench.label(0))
    bench.wait(100)
    assert len(bench.creates()) == 2
    assert bench.refused == []


def test_a_refused_request_is_reported_and_makes_room(bench: Bench) -> None:
    bench.gate.request("raw", {"voice": "?"})
    bench.gate.request("user")
    assert bench.gate.failed({"code": "invalid_value", "event_id": "hf_response_1", "message": "no such voice"})
    assert [refusal.owners for refusal in bench.refused] == [("raw",)]
    assert len(bench.creates()) == 2


def test_an_error_about_something_else_is_left_to_others(bench: Bench) -> None:
    bench.gate.request("user")
    assert not bench.gate.failed({"code": "invalid_value", "event_id": "other", "message": "?"})
    assert not bench.gate.failed({"code": "server_error", "message": "?"})


def test_a_response_that_ends_without_having_begun_frees_the_slot(bench: Bench) -> None:
    bench.gate.request("user")
    bench.ends("r1", bench.label())
    assert (bench.gate.wanted, bench.gate.active) == (False, None)


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


def test_cancelling_what_is_not_active_is_harmless_and_frees_the_slot(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.request("user")
    bench.gate.cancel()
    assert bench.gate.failed({"code": NOT_ACTIVE, "event_id": bench.said[-1]["event_id"], "message": "none"})
    assert len(bench.creates()) == 1


def test_a_request_that_was_cancelled_on_its_way_is_not_repeated(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.cancel()
    bench.begins("voice")
    bench.gate.failed(collision("hf_response_1"))
    bench.ends("voice")
    assert len(bench.creates()) == 1
    assert [refusal.owners for refusal in bench.refused] == [("user",)]


def test_cancelling_one_response_by_its_name_leaves_the_request_for_another_alone(bench: Bench) -> None:
    bench.gate.request("user")
    bench.begins("r1", bench.label())
    bench.ends("r1", bench.label())
    bench.gate.request("tool:a")
    bench.begins("voice", None)
    bench.gate.cancel("voice", force=True)
    bench.gate.failed(collision("hf_response_2"))
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
    assert (bench.gate.wanted, bench.gate.active) == (False, None)


def test_asking_too_early_costs_one_collision(bench: Bench) -> None:
    bench.begins("r1")
    bench.gate.request("user")
    bench.wait(31)
    assert bench.gate.failed(collision(bench.creates()[0]["event_id"]))
    assert bench.gate.active == "r1"
    bench.wait(5)
    assert len(bench.creates()) == 1
    bench.ends("r1")
    assert len(bench.creates()) == 2


def test_everybody_who_waits_is_told_that_the_connection_is_gone(bench: Bench) -> None:
    bench.begins("r1", None)
    bench.gate.request("user")
    bench.gate.request("raw", {})
    assert bench.gate.lose() == "r1"
    assert [refusal.owners for refusal in bench.refused] == [("user",), ("raw",)]
    assert (bench.gate.wanted, bench.gate.active) == (False, None)


class Anything(RuleBasedStateMachine):
    """A server that answers in order but whenever it likes, starts responses of its own, loses messages,
    and may or may not give labels back. Owners are numbers; each must end answered or refused."""

    @initialize(labels=st.booleans())
    def start(self, labels: bool) -> None:
        self.bench, self.labels = Bench(), labels
        self.read = 0
        self.inbox: deque[dict[str, Any]] = deque()
        self.active: tuple[str, dict[str, Any] | None] | None = None
        self.count = 0
        self.owners = 0
        self.answered: set[str] = set()

    def tell(self, **message: Any) -> None:
        self.inbox.append(message)

    @rule(wishes=st.booleans())
    def ask(self, wishes: bool) -> None:
        self.owners += 1
        self.bench.gate.request(str(self.owners), {"instructions": "x"} if wishes else None)

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
        if message["type"] == "response.cancel":
            if self.active is None or message.get("response_id") not in (None, self.active[0]):
                self.tell(on="error", error={"code": NOT_ACTIVE, "event_id": message["event_id"], "message": ""})
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
            self.answered |= set(metadata[OWNERS].split())
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
        if message["on"] == "created":
            gate.created(message["response"])
        elif message["on"] == "done":
            gate.done(message["response"])
        else:
            gate.failed(message["error"])

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.bench.wait(seconds)

    @invariant()
    def never_two_requests_at_once(self) -> None:
        if not hasattr(self, "bench") or not self.labels:
            return
        unread = [
            (when, message)
            for when, message in zip(self.bench.times, self.bench.said, strict=True)
            if message["type"] == "response.create" and message in self.bench.said[self.read :]
        ]
        for (before, _), (after, _) in pairwise(unread):
            assert after - before >= 10, "a second request before the first was given up"

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
            if not self.bench.gate.wanted and self.read == len(self.bench.said):
                break
            self.bench.wait(1.0)
        assert not self.bench.gate.wanted
        refused = {owner for refusal in self.bench.refused for owner in refusal.owners}
        everybody = {str(number + 1) for number in range(self.owners)}
        if self.labels:
            assert everybody == self.answered | refused


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_label_names_the_request(bench: Bench) -> None:
    bench.gate.request("user", {"metadata": {"mine": "1"}})
    assert bench.label() == {LABEL: "hf_response_1", OWNERS: "user", "mine": "1"}


def test_with_a_server_without_metadata_a_collision_undoes_the_guess(bench: Bench) -> None:
    bench.gate.request("user")
    bench.gate.created({"id": "voice"})
    assert bench.gate.failed(collision("hf_response_1")), "the response that began was not the answer"
    bench.gate.done({"id": "voice"})
    assert len(bench.creates()) == 2
    bench.gate.created({"id": "answer"})
    bench.gate.done({"id": "answer"})
    assert (bench.gate.wanted, bench.gate.active) == (False, None)
