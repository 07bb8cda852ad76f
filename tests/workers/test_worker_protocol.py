"""Frames, messages, the protocol and the output limit: pure functions, tested with random input."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.workers._host.output import OutputLimiter
from standfast.workers._host.protocol import (
    DeliverToExecution,
    DeliverToGeneralQueue,
    DrainOutput,
    ExecutionInProgress,
    NotifySession,
    ResolveRequest,
    WorkerProtocol,
)
from standfast.workers.state import TABLE, WorkerSessionEvent
from standfast.workers.wire import FrameReader, FrameTooLarge, OversizedFrame, decode, encode, encode_frame
from standfast.workers.wire import messages as m


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(0, 50)))
@settings(max_examples=50)
def test_frames_survive_any_cutting_of_the_stream(payloads, sizes):
    stream = b"".join(encode_frame(payload) for payload in payloads)
    reader = FrameReader()
    assert [item for piece in cut(stream, sizes) for item in reader.feed(piece)] == payloads
    assert reader.buffered == b""


@given(st.lists(st.binary(max_size=100)), st.lists(st.integers(0, 30)))
@settings(max_examples=50)
def test_an_oversized_frame_does_not_affect_others(payloads, sizes):
    stream = b"".join(encode_frame(payload) for payload in payloads)
    reader = FrameReader(limit=40)
    expected = [p if len(p) <= 40 else OversizedFrame(len(p)) for p in payloads]
    assert [item for piece in cut(stream, sizes) for item in reader.feed(piece)] == expected


@given(st.binary(max_size=2000), st.integers(1, 64))
@settings(max_examples=50)
def test_garbage_makes_the_reader_neither_fail_nor_buffer_too_much(data, limit):
    reader = FrameReader(limit=limit)
    for byte in data:
        for item in reader.feed(bytes([byte])):
            assert isinstance(item, OversizedFrame) or len(item) <= limit
        assert len(reader.buffered) <= limit + 4


def test_a_frame_above_the_limit_is_not_made():
    with pytest.raises(FrameTooLarge) as caught:
        encode_frame(b"x" * 11, limit=10)
    assert (caught.value.size, caught.value.limit) == (11, 10)


MESSAGES = [
    m.HelloMessage(features=("a",)),
    m.AckMessage(of="1", execution_id="1"),
    m.ExecuteMessage(code="1", transaction_policy="rollback_always"),
    m.OutputMessage(data="é", stream="stderr", execution_id="1", dropped=3),
    m.DisplayMessage(data={"image/png": b"\x00", "text/plain": "x"}, execution_id="1"),
    m.InputMessage(prompt="?", execution_id="1", password=True, timeout=1.5),
    m.InputResponseMessage(input_id="1", eof=True),
    m.ResultMessage(execution_id="1", value={"a": [1, 2.5, None]}, usage=m.ExecutionUsage(1.0, 2)),
    m.ErrorMessage(exception_type="X", state="lost", cause="exit"),
    m.CheckpointMessage(data=b"\x00", lost={"a": "b"}),
    m.RestoreMessage(data=b"\x00"),
    m.SnapshotMessage(action="fork", point="p"),
    m.NamespaceMessage(entries=(m.NamespaceEntry("a", "int", 1, None, (2, 3)),)),
    m.CompletionMessage(matches=("a",)),
    m.ReadyMessage(session_id="s"),
    m.HeartbeatMessage(memory_usage=1),
    m.CancelMessage(execution_id="1"),
    m.InterruptMessage(),
    m.ShutdownMessage(reason="bye"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_makes_the_round_trip(message):
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_bytes_that_are_no_message_raise_only_a_decode_error(data):
    try:
        decode(data)
    except msgspec.DecodeError:
        pass


def test_fields_of_a_newer_peer_are_ignored():
    newer = msgspec.msgpack.encode({"type": "ack", "of": "1", "invented": [1, 2]})
    assert decode(newer).of == "1"


def test_ids_are_unique():
    assert len({m.new_id() for _ in range(1000)}) == 1000


incoming = st.sampled_from(["e1", "e2", "", "r1", "r2"]).flatmap(
    lambda who: st.sampled_from(
        [
            m.AckMessage(of=who, execution_id=who),
            m.ResultMessage(execution_id=who),
            m.ErrorMessage(exception_type="X", execution_id=who or None),
            m.OutputMessage(data="x", execution_id=who),
            m.DisplayMessage(data={}, execution_id=who),
            m.InputMessage(prompt="?", execution_id=who),
            m.NamespaceMessage(of=who),
            m.HeartbeatMessage(of=who),
            m.SnapshotMessage(of=who),
            m.ReadyMessage(),
            m.ExecuteMessage(code=""),
            m.ShutdownMessage(),
        ]
    )
)


def record_actions(protocol, steps, delivered, replies):
    for step in steps:
        assert isinstance(
            step, DrainOutput | DeliverToExecution | ResolveRequest | DeliverToGeneralQueue | NotifySession
        )
        if isinstance(step, DeliverToExecution):
            delivered.append(step)
            if step.is_last:
                protocol.finish_execution()
        elif isinstance(step, ResolveRequest):
            replies.append(step.request_id)


@given(st.lists(incoming, max_size=40))
@settings(max_examples=50)
def test_the_rules_hold_for_any_messages_of_a_worker(messages):
    protocol, delivered, replies = WorkerProtocol(), [], []
    protocol.start_execution("e1")
    protocol.add_request("r1")
    for message in messages:
        record_actions(protocol, protocol.receive_message(message), delivered, replies)
    record_actions(protocol, protocol.connection_lost("exit", "gone"), delivered, replies)
    assert replies == ["r1"], "a request is answered exactly once"
    assert [step.execution_id for step in delivered] == ["e1"] * len(delivered)
    assert [step.is_last for step in delivered] == [False] * (len(delivered) - 1) + [True]
    if len(delivered) > 1 or delivered[-1].message.exception_type != "WorkerDied":
        assert isinstance(delivered[0].message, m.AckMessage), "the acknowledgement comes first"
    assert protocol.running_id is None


def test_output_is_read_before_later_messages():
    protocol = WorkerProtocol()
    protocol.start_execution("e")
    protocol.receive_message(m.AckMessage(of="e"))
    for message in (m.InputMessage(prompt="", execution_id="e"), m.ResultMessage(execution_id="e")):
        assert isinstance(protocol.receive_message(message)[0], DrainOutput)


@pytest.mark.parametrize(
    "last", [m.ResultMessage(execution_id="e"), m.ErrorMessage(exception_type="X", execution_id="e")]
)
def test_a_result_implies_an_acknowledgement_that_was_not_sent(last):
    protocol = WorkerProtocol()
    protocol.start_execution("e")
    first, drain, end = protocol.receive_message(last)
    assert (first.message.of, first.is_last, drain, end) == (
        "e",
        False,
        DrainOutput(),
        DeliverToExecution("e", last, is_last=True),
    )
    assert protocol.violation_count == 0


def test_one_execution_at_a_time():
    protocol = WorkerProtocol()
    protocol.start_execution("a")
    with pytest.raises(ExecutionInProgress):
        protocol.start_execution("b")


def test_output_before_the_acknowledgement_belongs_to_no_execution():
    protocol = WorkerProtocol()
    protocol.start_execution("a")
    assert isinstance(protocol.route_output(m.OutputMessage(data="old")), DeliverToGeneralQueue)
    protocol.receive_message(m.AckMessage(of="a"))
    new = m.OutputMessage(data="new")
    assert protocol.route_output(new) == DeliverToExecution("a", new)


def test_a_presumed_acknowledgement_replaces_that_of_the_worker():
    protocol = WorkerProtocol()
    assert protocol.presume_ack() == ()
    protocol.start_execution("a")
    (step,) = protocol.presume_ack()
    assert (step.execution_id, type(step.message), protocol.is_streaming) == ("a", m.AckMessage, True)
    assert protocol.presume_ack() == ()
    assert protocol.receive_message(m.AckMessage(of="a")) == ()
    assert protocol.violation_count == 0
    protocol.receive_message(m.AckMessage(of="a"))
    assert protocol.violation_count == 1


@given(st.lists(st.binary(max_size=200)), st.integers(1, 300))
@settings(max_examples=50)
def test_the_output_limit_keeps_head_and_tail_and_counts_the_rest(chunks, limit):
    limiter = OutputLimiter(limit)
    shown = "".join(limiter.feed(chunk) for chunk in chunks)
    rest, dropped, tail = limiter.finish()
    data = b"".join(chunks)
    if len(data) <= limit:
        assert (shown + rest, dropped, tail) == (data.decode("utf-8", "replace"), 0, "")
    else:
        head = limit - limit // 2
        assert dropped == len(data) - limit
        assert shown + rest == data[:head].decode("utf-8", "replace")
        assert tail == (data[-(limit // 2) :] if limit // 2 else b"").decode("utf-8", "replace")


@given(st.text(), st.lists(st.integers(0, 9)))
@settings(max_examples=50)
def test_characters_split_between_chunks_are_joined(text, sizes):
    limiter = OutputLimiter(None)
    data = text.encode("utf-8", "replace")
    shown = "".join(limiter.feed(piece) for piece in cut(data, sizes)) + limiter.finish()[0]
    assert shown == data.decode()


def test_the_lifecycle_table_keeps_its_promises():
    TABLE.check(stop=WorkerSessionEvent.SHUTDOWN_REQUESTED)
    TABLE.check(stop=WorkerSessionEvent.CLOSED)
