"""The two pure functions, over every run that hypothesis can think of."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from standfast.agents.tool_identity import ToolRef
from standfast.base.collections import AppendOnlyList
from standfast.runs.core.serialization import validate_state
from standfast.runs.core.state import (
    CallRecord,
    FinalOutput,
    InlineConversation,
    ResponseRecord,
    ServerConversation,
    SessionConversation,
    State,
    TranscriptEntry,
    UsageRecord,
    decode_hook,
    encode_hook,
)
from standfast.runs.core.steps import (
    ApprovalsChecked,
    AskModel,
    CallsInvoked,
    CallsStarted,
    CheckApprovals,
    CheckToolOutput,
    Finish,
    Finished,
    HandoffPerformed,
    InputTaken,
    InvokeCalls,
    ItemsStored,
    ModelAnswered,
    Outcome,
    PerformHandoff,
    Resumed,
    StartCalls,
    Step,
    StopAtMaxTurns,
    TakeInput,
    ToolOutputChecked,
)
from standfast.runs.core.transitions import apply_outcome, choose_next_step, get_storable_length, is_waiting


class World:
    """Whatever may come of a step, chosen by hypothesis; it counts what is done for real."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.made: list[str] = []
        self.turns = 0

    def choose(self, *options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def outcome(self, state: State, step: Step) -> Outcome:
        match step:
            case TakeInput():
                return InputTaken((TranscriptEntry({"role": "user", "content": "q"}, "given"),), state.conversation)
            case AskModel():
                return self.answered(state)
            case CheckApprovals(calls):
                return ApprovalsChecked(
                    tuple(replace(c, status=self.choose("approved", "rejected", "waiting")) for c in calls)
                )
            case StartCalls(calls):
                return CallsStarted(tuple(call.id for call in calls))
            case InvokeCalls(calls):
                return self.called(calls)
            case PerformHandoff(calls):
                items = [
                    TranscriptEntry({"call_id": call.id, "type": "function_call_output"}, "handed") for call in calls
                ]
                return HandoffPerformed(tuple(items), "root/b")
            case Finish():
                return Finished(
                    replace(state.answer, accepted=True) if self.choose(True, False, True) else state.answer
                )
            case StopAtMaxTurns():
                return Finished(FinalOutput(value="gave up", accepted=True))
            case CheckToolOutput():
                return ToolOutputChecked(self.choose(None, None, FinalOutput(value=1, call_id="x")))
        raise AssertionError(step)

    def answered(self, state: State) -> ModelAnswered:
        self.turns += 1
        kinds = self.data.draw(st.lists(st.sampled_from(["function", "handoff"]), max_size=3))
        usage = ResponseRecord(0, 0, UsageRecord(requests=1), response_id=f"r{self.turns}")
        if not kinds:
            return ModelAnswered(
                (TranscriptEntry({"type": "message"}, "message", state.agent),), usage, answer=FinalOutput(text="hi")
            )
        calls, entries = [], []
        for place, kind in enumerate(kinds):
            name = f"c{self.turns}.{place}"
            calls.append(CallRecord(name, place, ToolRef("bare", "t"), kind))  # type: ignore[arg-type]
            item = {"type": "function_call", "call_id": name, "name": "t"}
            entries.append(TranscriptEntry(item, "handoff" if kind == "handoff" else "call", state.agent))
        return ModelAnswered(tuple(entries), usage, tuple(calls))

    def called(self, calls: tuple[CallRecord, ...]) -> CallsInvoked:
        records, entries = [], []
        for call in calls:
            status = self.choose("done", "done", "failed", "waiting") if call.status == "started" else "done"
            records.append(replace(call, status=status))
            if status == "done":
                self.made.append(call.id)
                entries.append(TranscriptEntry({"type": "function_call_output", "call_id": call.id}, "output"))
        return CallsInvoked(tuple(records), tuple(entries))


conversations = st.sampled_from(
    [InlineConversation(), SessionConversation("s"), ServerConversation("c"), ServerConversation(auto=True)]
)


@settings(deadline=None)
@given(st.data(), conversations, st.integers(1, 4))
def test_every_run_ends_or_waits_and_never_makes_a_call_twice(data: Any, conversation: Any, max_turns: int) -> None:
    world = World(data)
    state = State(run_id="r", input="q", conversation=conversation, max_turns=max_turns)
    for _ in range(300):
        step = choose_next_step(state)
        if step is None:
            if state.ended:
                break
            assert is_waiting(state)
            undecided = frozenset(call.id for call in state.calls if call.status == "waiting")
            state = apply_outcome(state, Resumed(undecided))
            continue
        before = encoded(state)
        length = len(state.transcript)
        after = apply_outcome(state, world.outcome(state, step))
        assert encoded(state) == before, "the state before has changed"
        assert after.transcript.slice_from(0)[:length] == state.transcript.slice_from(0), "the transcript only grows"
        state = apply_outcome(after, ItemsStored(get_storable_length(after)))
        assert state.stored <= len(state.transcript)
        validate_state(state)
        if data.draw(st.booleans()):
            state = msgspec.json.decode(encoded(state), type=State, dec_hook=decode_hook)
    else:
        raise AssertionError("the run goes on for ever")
    assert len(set(world.made)) == len(world.made)
    assert state.turn <= max_turns
    assert state.stored == len(state.transcript)
    outputs = [entry.item["call_id"] for entry in state.transcript if entry.kind == "output"]
    assert sorted(outputs) == sorted(world.made)


@settings(deadline=None)
@given(st.data())
def test_a_server_has_everything_up_to_the_latest_answer(data: Any) -> None:
    world = World(data)
    state = State(run_id="r", input="q", conversation=ServerConversation(auto=True))
    for _ in range(20):
        step = choose_next_step(state)
        if step is None:
            break
        state = apply_outcome(state, world.outcome(state, step))
        assert isinstance(state.conversation, ServerConversation)
        known = state.responses[-1].stop if state.responses else 0
        assert state.conversation.acknowledged == known


def encoded(state: State) -> bytes:
    return msgspec.json.encode(state, enc_hook=encode_hook)


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=8), st.data())
def test_older_versions_of_a_log_never_change(batches: list[list[int]], data: Any) -> None:
    versions: list[tuple[AppendOnlyList[int], list[int]]] = [(AppendOnlyList(), [])]
    for batch in batches:
        log, plain = data.draw(st.sampled_from(versions))
        versions.append((log.concat(batch), plain + batch))
    for log, plain in versions:
        assert list(log) == plain == log.slice_from(0)
        assert len(log) == len(plain)
        assert log[1:3] == plain[1:3]
        assert log.slice_to(2).slice_from(0) == plain[:2]
