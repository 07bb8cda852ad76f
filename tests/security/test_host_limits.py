"""What a worker can make its host keep or compute: its messages are forged by code that writes to its own socket."""

import asyncio
import sys
import tracemalloc

import msgspec
import pytest

from factories.sandboxed_workers import open_launcher
from factories.workers import wait_until
from standfast.workers import (
    DisplayMessage,
    ErrorMessage,
    ExecuteMessage,
    InputMessage,
    SessionState,
    WorkerDied,
    WorkerRequestFailed,
)
from standfast.workers.results import as_text

MB = 1 << 20

FORGE = """
import os, sys
from standfast.workers.child.loop import WorkerLoop
from standfast.workers.wire import messages as m
frame = sys._getframe()
while not isinstance(frame.f_locals.get("self"), WorkerLoop):
    frame = frame.f_back
worker = frame.f_locals["self"]

def write(payload):
    rest = len(payload).to_bytes(4, "big") + payload
    while rest:
        rest = rest[os.write(3, rest):]

def forge(message):
    write(m.encode(message))

worker.channel.flush()
"""


def forge(code: str) -> str:
    """Return code that may call ``forge(message)`` and ``write(payload)`` and knows its ``worker``."""
    return FORGE + code


@pytest.fixture
async def launch():
    async with open_launcher() as launch:
        yield launch


@pytest.fixture
def traced_peak():
    """The most memory that Python objects of the host have used during the test."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


DISPLAY_ALL = "class Big:\n    def _repr_html_(self): return 'x' * 900_000\nfor _ in range(40): display(Big())\n'end'"


async def test_a_result_keeps_displays_up_to_the_limit_and_counts_the_others(launch):
    session = await launch(display_limit=4 * MB)
    result = await session.run(DISPLAY_ALL, timeout=120)
    assert result.value == "end"
    assert 3 <= len(result.displays) <= 4
    assert result.dropped == {"displays": 40 - len(result.displays)}
    assert f"[{result.dropped['displays']} displays left out]" in as_text(result, limit=100 * MB)


async def test_displays_of_many_small_parts_are_counted_by_their_memory(launch, traced_peak):
    session = await launch(display_limit=1 * MB)
    result = await session.run(forge("bomb = {'a': [{} for _ in range(1000)]}\n" + FLOOD_OF_DISPLAYS), timeout=120)
    assert result.dropped["displays"] > 0
    assert traced_peak() < 7 * MB


FLOOD_OF_DISPLAYS = (
    "for _ in range(150): forge(m.DisplayMessage(data=bomb, execution_id=worker.current_execution))\n'end'"
)


async def test_every_display_reaches_the_reader_of_a_stream(launch):
    session = await launch(display_limit=1)
    count = 0
    async for message in session.execute(ExecuteMessage(code=DISPLAY_ALL), timeout=120):
        count += isinstance(message, DisplayMessage)
    assert count == 40


async def test_displays_that_nothing_reads_while_the_code_is_stopped_are_counted(launch, traced_peak):
    """Stopping must not wait for the reader, and must not keep what the code sends meanwhile."""
    session = await launch()
    stubborn = (
        "n = 0\nwhile n < 200:\n    try:\n        while n < 200:\n            n += 1\n            display(Big())\n"
        "    except KeyboardInterrupt: pass"
    )
    code = DISPLAY_ALL.replace("for _ in range(40): display(Big())", stubborn)
    stream = session.execute(ExecuteMessage(code=code), timeout=None)
    async for message in stream:
        if isinstance(message, DisplayMessage):
            break
    await session.interrupt()
    rest = [message async for message in stream]
    assert len(rest) < 50
    assert "left out" in rest[-1].warnings[0]
    assert traced_peak() < 60 * MB


async def test_output_is_accepted_from_the_pipes_only(launch, traced_peak):
    session = await launch()
    code = (
        "for _ in range(40): forge(m.OutputMessage(data='x' * (1 << 20), execution_id=worker.current_execution))\n'end'"
    )
    result = await session.run(forge(code), timeout=120)
    assert (result.value, result.stdout) == ("end", "")
    assert session.info.telemetry["violations"] == 40
    assert traced_peak() < 40 * MB


async def test_output_in_tiny_pieces_costs_no_more_than_its_text(launch, traced_peak):
    session = await launch()
    result = await session.run("import os\nfor _ in range(20_000): os.write(1, b'x')\n'end'", timeout=120)
    assert (len(result.stdout), result.value) == (20_000, "end")
    assert traced_peak() < 4 * MB


INPUT = "forge(m.InputMessage(id={id}, prompt='?', execution_id=worker.current_execution))\n"


@pytest.mark.parametrize(
    ("code", "open_requests"),
    [
        ("for n in range(50): " + INPUT.format(id="f'i{n}'"), 16),
        (INPUT.format(id="'x' * 65"), 0),
        (INPUT.format(id="'x' * 64"), 1),
    ],
    ids=["many", "long id", "longest id"],
)
async def test_input_requests_are_limited_in_number_and_size(launch, code, open_requests):
    session = await launch()
    messages = [message async for message in session.execute(ExecuteMessage(code=forge(code + "'end'")))]
    assert sum(isinstance(message, InputMessage) for message in messages) == open_requests
    assert messages[-1].value == "end"


async def test_input_that_is_not_allowed_is_not_requested(launch):
    session = await launch(allow_input=False)
    message = ExecuteMessage(code=forge(INPUT.format(id="'i'") + "1"))
    assert not [item async for item in session.execute(message) if isinstance(item, InputMessage)]
    session = await launch()
    message = ExecuteMessage(code=forge(INPUT.format(id="'i'") + "1"), allow_input=False)
    assert not [item async for item in session.execute(message) if isinstance(item, InputMessage)]


# An array of ten arrays of 300,000 empty maps each: 3 MB that would become 200 MB.
BOMB = "b'\\x9a' + (b'\\xdd' + (300_000).to_bytes(4, 'big') + b'\\x80' * 300_000) * 10"


def make_bomb(message: str, field: str) -> str:
    """Return code that makes a frame of ``message`` whose last field is the bomb."""
    return f"head = m.encode(dict(m.msgspec.to_builtins({message}), {field}=0))[:-1]\npayload = head + {BOMB}\n"


@pytest.mark.parametrize(
    "make",
    [
        make_bomb("m.ResultMessage(execution_id=worker.current_execution)", "value"),
        make_bomb("m.DisplayMessage(data={}, execution_id=worker.current_execution)", "data"),
        make_bomb("m.HelloMessage()", "settings"),
        make_bomb("m.DisplayMessage(data={})", "metadata"),
    ],
    ids=["result", "display", "hello", "for nobody"],
)
async def test_a_frame_of_too_many_parts_is_refused_before_it_is_built(launch, traced_peak, make):
    session = await launch(value_limit=1000)
    result = await session.run(forge(make + "write(payload)\n'end'"), timeout=120)
    if result.ok:
        assert result.value == "end"
    else:
        assert result.error.exception_type == "FrameTooLarge"
        assert "parts" in result.error.exception_message
    assert traced_peak() < 40 * MB
    assert (await session.run("1", timeout=60)).value == 1
    # The worker's own result comes after the end that a refused one has caused.
    assert session.info.telemetry["violations"] == (1 if result.ok else 2)


async def test_a_frame_of_too_many_parts_between_executions_is_refused(launch, traced_peak):
    session = await launch(heartbeat_interval=None, value_limit=1000)
    code = make_bomb("m.DisplayMessage(data={})", "metadata") + (
        "import threading, time\n"
        "def later():\n    while not os.path.exists('go'): time.sleep(0.01)\n    write(payload)\n"
        "threading.Thread(target=later).start()"
    )
    assert (await session.run(forge(code), timeout=60)).ok
    await session.files.write("go", "")
    report = await session.receive_message(ErrorMessage, timeout=60)
    assert "parts" in report.exception_message
    assert traced_peak() < 40 * MB


async def test_a_reply_of_too_many_parts_fails_its_request(launch):
    session = await launch(value_limit=1000)
    reply = "m.NamespaceMessage(of=asked.id)"
    code = (
        "def answer(asked):\n"
        f"    scope = globals() | {{'asked': asked}}\n    exec({make_bomb(reply, 'entries')!r}, scope)\n"
        "    write(scope['payload'])\nworker._handlers[m.NamespaceMessage] = answer"
    )
    assert (await session.run(forge(code), timeout=60)).ok
    with pytest.raises(WorkerRequestFailed, match="parts"):
        await asyncio.wait_for(session.namespace(), 60)


@pytest.mark.parametrize(
    "value", ["list(range(500_000))", "[[n] for n in range(60_000)]", "{str(n): n for n in range(100_000)}"]
)
async def test_a_large_value_within_the_limit_arrives(launch, value):
    session = await launch()
    assert (await session.run(value, timeout=120)).value == eval(value)


async def test_a_value_that_the_host_would_refuse_is_not_sent(launch):
    session = await launch()
    result = await session.run("[{} for _ in range(900_000)]", timeout=120)
    assert (result.ok, result.value) == (True, None)
    assert session.info.telemetry["violations"] == 0


async def test_a_worker_that_breaks_the_protocol_again_and_again_is_killed(launch):
    session = await launch()
    result = await session.run(forge("for _ in range(150): write(b'')\nimport time; time.sleep(600)"), timeout=None)
    assert (result.state, result.error.cause) == ("lost", "protocol")
    assert "100 invalid messages" in result.reason
    await wait_until(lambda: session.state is SessionState.ERROR)
    with pytest.raises(WorkerDied, match="100 invalid messages"):
        await session.run("1")


async def test_a_worker_that_breaks_the_protocol_rarely_is_kept(launch):
    session = await launch()
    for _ in range(4):
        assert (await session.run(forge("for _ in range(40): write(b'')\n'end'"))).value == "end"
    assert session.info.telemetry["violations"] == 160


def test_a_frame_is_measured_exactly():
    from standfast.workers._host.message_limits import measure_weight

    values = [
        1, -1, 200, 70_000, 2**40, -200, -70_000, -(2**40), 1.5, None, True, "a" * 31, "a" * 40, "a" * 300,
        "a" * 70_000, b"", b"a" * 300, b"a" * 70_000, [], {}, [[]] * 20, {str(n): [n] for n in range(70_000)},
        msgspec.msgpack.Ext(5, b"abcd"), msgspec.msgpack.Ext(5, b"a" * 300),
    ]  # fmt: skip
    containers = 1 + 2 + 21 + 70_001
    parts = len(values) + 20 + 2 * 70_000 + 70_000
    long_parts = 7  # texts of 32 bytes and more, longer bytes, extensions
    assert measure_weight(msgspec.msgpack.encode(values), limit=10**9) == 8 * (containers + long_parts) + parts


OVERSIZED = {
    "value": "m.ResultMessage(execution_id=worker.current_execution, value='x' * 3_000_000)",
    "value in a list": "m.ResultMessage(execution_id=worker.current_execution, value=[['x' * 3_000_000]])",
    "bytes": "m.ResultMessage(execution_id=worker.current_execution, value={'a': bytes(3_000_000)})",
    "repr": "m.ResultMessage(execution_id=worker.current_execution, repr='x' * 3_000_000)",
    "representation": "m.ResultMessage(execution_id=worker.current_execution, data={'text/html': 'x' * 3_000_000})",
    "warnings": "m.ResultMessage(execution_id=worker.current_execution, warnings=('x' * 3_000_000,))",
    "error": "m.ErrorMessage(execution_id=worker.current_execution, exception_type='x' * 3_000_000)",
    "traceback": "m.ErrorMessage(execution_id=worker.current_execution, exception_type='E', traceback='x' * 3_000_000)",
    "display": "m.DisplayMessage(execution_id=worker.current_execution, data={'text/plain': 'x' * 3_000_000})",
    "metadata": "m.DisplayMessage(execution_id=worker.current_execution, data={}, metadata={'a': 'x' * 3_000_000})",
    "prompt": "m.InputMessage(execution_id=worker.current_execution, prompt='x' * 3_000_000)",
}


@pytest.mark.parametrize("message", OVERSIZED.values(), ids=OVERSIZED)
async def test_texts_and_values_above_their_limits_are_refused(launch, message):
    session = await launch()
    async for item in session.execute(ExecuteMessage(code=forge(f"forge({message})\n'end'")), timeout=120):
        assert len(msgspec.msgpack.encode(item)) < 500_000
    assert session.info.telemetry["violations"] >= 1
    assert (await session.run("1", timeout=60)).value == 1


async def test_texts_that_the_worker_has_cut_arrive(launch):
    session = await launch(repr_limit=2000)
    result = await session.run("'\\u20ac' * 300_000")
    assert (len(result.value), len(result.repr) < 2100) == (300_000, True)
    result = await session.run("class Long(Exception): pass\nLong.__name__ = 'x' * 100_000\nraise Long('y' * 100_000)")
    assert (len(result.error.exception_type), len(result.error.exception_message)) == (1000, 10_000)
    assert session.info.telemetry["violations"] == 0


# Each of these has millions of parts that are not counted by any array or map.
ENDLESS = {
    "empty bytes": "b'\\xc4\\x00' * (8 * MB - 8)",
    "empty texts": "b'\\xd9\\x00' * (8 * MB - 8)",
    "extensions": "b'\\xd4\\x00\\x00' * (5 * MB)",
    "numbers": "b'\\xcc\\x01' * (8 * MB - 8)",
    "behind an array": "b'\\x91' + b'\\xc4\\x00' * (8 * MB - 8)",
    "behind a message": "m.encode(m.HelloMessage()) + b'\\xc4\\x00' * (8 * MB - 1000)",
}


@pytest.mark.parametrize("payload", ENDLESS.values(), ids=ENDLESS)
async def test_parts_behind_a_message_are_not_looked_at(launch, payload):
    session = await launch()
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(count)
    try:
        result = await session.run(forge(f"MB = 1 << 20\nwrite({payload})\n'end'"), timeout=120)
    finally:
        sys.setprofile(None)
    assert (result.value, session.info.telemetry["violations"]) == ("end", 1)
    assert calls < 200_000, "the event loop looked at each of the parts"


def test_long_texts_weigh_more_than_short_ones():
    from standfast.workers._host.message_limits import measure_weight

    for part in (b"\xc5\0\0", b"\xc6\0\0\0\0", b"\xda\0\0", b"\xdb\0\0\0\0", b"\xd4\0\0", b"\xc7\0\0"):
        assert measure_weight(b"\x9f" + part * 15, limit=10**9) == 8 + 15 + 15 * 8
    assert measure_weight(b"\x9f" + b"\xc4\x01a" * 15, limit=10**9) == 8 + 15
    assert measure_weight(b"\x9f" + (b"\xc4\x20" + b"a" * 32) * 15, limit=10**9) == 8 + 15, "digests"


@pytest.mark.parametrize("rest", [b"\x01", b"\xc4\x00" * 1000, b"\x91"])
def test_only_one_object_is_measured(rest):
    from standfast.workers._host.message_limits import measure_weight

    for payload in (b"\x91\x01" + rest, b"\x91" * 100_000, b"\x92\x01", b""):
        with pytest.raises(ValueError, match="not MessagePack"):
            measure_weight(payload, limit=10**9)
