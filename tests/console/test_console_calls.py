"""Calls in a real browser: spoken and interrupted, written, watched, continued after a loss, replayed."""

import wave

import pytest

from browser import chromium, needs_chromium
from console.conftest import needs_console
from console.console_page import ConsolePage
from console.console_server import ConsoleServer, run_console
from console.switchboard import OPENING_HOURS
from doc_pages import ROOT
from realtime.espeak import speak_with_espeak
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner, Recording

pytestmark = [needs_chromium, needs_console]

SWITCHBOARD = ROOT / "tests/console/switchboard.py"
RATE = 24_000


@pytest.fixture(scope="module")
def server(store_url):
    with run_console(store_url, agents=SWITCHBOARD) as opened:
        yield opened


@pytest.fixture
async def speech(tmp_path):
    """A file with a caller who says something after three seconds, again and again."""
    words = await speak_with_espeak("Sorry, may I ask something else?")
    path = tmp_path / "speech.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(2 * RATE * 3) + words + bytes(2 * RATE))
    return path


@pytest.fixture
def talking_page(tmp_path, server: ConsoleServer, speech):
    """A browser whose microphone hears the file."""
    flags = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={speech}",
    )
    with chromium(tmp_path / "profile", *flags) as driver:
        opened = ConsolePage(driver, server)
        opened.resize((1280, 800))
        opened.sign_in()
        yield opened
        assert opened.list_faults() == []


def call(page, agent, button="Call and write"):
    page.open("#/calls")
    page.wait_for(f"option[value={agent}]")
    page.find(".call-form select").send_keys(agent)
    page.click(".call-form button", button)
    page.wait_for("h1 .status", "running")


def write(page, text):
    page.fill(".call .search input", text)
    page.click(".call .search button", "Send")


def test_an_interrupted_transcript_marks_what_was_not_heard(talking_page, server):
    page = talking_page
    call(page, "receptionist", "Call with the microphone")
    page.wait_for(".actions button", "Mute")
    write(page, "When are you open?")
    page.wait_for(".mark-row", "Answer")
    page.wait_for(".mark-row", "Interrupted")
    page.wait_for(".entry-assistant .tag", "interrupted")
    page.wait_for(".unheard")
    page.wait_for(".latency", "to the latest answer")
    loud = page.driver.execute_script(
        "const c = document.querySelector('canvas'), g = c.getContext('2d');"
        "const count = (y, h) => g.getImageData(0, y, c.width, h).data.filter((v, i) => i % 4 === 3 && v > 0).length;"
        "return [count(0, c.height / 2 - 3), count(c.height / 2 + 3, c.height / 2 - 3)]"
    )
    assert min(loud) > 1500, "a waveform is more than its line, which has some 1000 pixels"
    page.take_pictures("call")
    found = page.list_violations()
    session = page.find(".call header a[href*='sessions/']").get_attribute("href").rpartition("/")[2]
    page.click(".actions button", "Hang up")
    page.wait_for("h1 .status", "ended")
    unheard = page.find(".unheard").text.removeprefix("not heard:").strip()
    answer = page.find(".entry-assistant:has(.unheard) .entry-text").text.replace("not heard:", "")
    items = server.http.get(f"/sessions/{session}/items").json()["items"]
    answers = [part["text"] for item in items if item["role"] == "assistant" for part in item["content"]]
    assert unheard
    assert "".join(answer.split()) == "".join((answers[0] + unheard).split()), "the session has what was heard"
    assert "".join(OPENING_HOURS.split()).startswith("".join(answer.split()))
    assert found == []


def test_a_tool_of_a_call_is_decided_while_another_person_watches(page, other_page, server):
    call(page, "cashier")
    write(page, "My cup is broken.")
    page.wait_for(".decide", "credit")
    other_page.sign_in(server.create_key("olga", "operator"))
    other_page.open("#/calls")
    other_page.click(f"td a[href$='{page.driver.current_url.rpartition('/')[2]}']")
    other_page.wait_for("header", "nobody hears you")
    page.wait_for(".decide button", "Approve")
    other_page.click(".decide button", "Approve")
    page.wait_for(".mark-row", "credited 5 euros")
    other_page.wait_for(".mark-row", "credited 5 euros")
    other_page.wait_for(".entry-assistant", "It is done: five euros.")
    other_page.wait_for(".entry-user", "My cup is broken.")
    other_page.take_pictures("watch")
    found = page.list_violations() + other_page.list_violations()
    write(page, "And now?")
    page.wait_for(".entry-assistant", "<script>")
    assert "owned" not in page.driver.title
    page.click(".actions button", "Hang up")
    other_page.wait_for("h1 .status", "ended")
    assert found == []
    assert other_page.list_faults() == []


def test_a_call_continues_after_a_lost_connection_and_in_another_view(page):
    page.driver.execute_script(
        "window.sockets = []; const Real = WebSocket; window.WebSocket = class extends Real {"
        "constructor(...all) { super(...all); window.sockets.push(this);"
        "this.addEventListener('message', () => { window.isConnectedAgain = window.sockets.length === 2 }) } }"
    )
    page.driver.execute_script("location.hash = '#/calls'")
    page.wait_for("option[value=cashier]")
    page.find(".call-form select").send_keys("cashier")
    page.click(".call-form button", "Call and write")
    page.wait_for("h1 .status", "running")
    page.driver.execute_script("window.sockets.at(-1).close(3000)")
    page.wait_for("h1 .tag", "connection lost")
    page.click("nav a", "Overview")
    page.wait_for("h1", "Overview")
    page.wait_for_script("return window.isConnectedAgain")
    assert page.driver.current_url.endswith("#/overview")
    page.driver.back()
    page.wait_for("h1 .status", "running")
    write(page, "My cup is broken.")
    page.wait_for(".decide", "credit")
    page.click(".decide button", "Reject")
    page.wait_for(".entry-assistant", "It is done")
    assert page.driver.execute_script("return window.sockets.length") == 2
    page.click(".actions button", "Hang up")
    page.wait_for("h1 .status", "ended")


async def record_call(path):
    """Write the recording of a call that was interrupted in the middle of its answer."""
    model = LocalRealtimeModel(
        ["We are open until six, on all days but Sunday."], recording=Recording(path, audio=True)
    )
    async with await RealtimeRunner(RealtimeAgent(name="desk"), model=model).run() as session:
        await session.send_message("When do you close?")
        heard = 0
        async for event in session.events():
            heard += event.type == "audio"
            if heard == 5:
                break
        await session.interrupt()


async def test_a_recording_of_a_model_is_replayed(page, tmp_path):
    path = tmp_path / "call.jsonl"
    await record_call(path)
    page.open("#/calls")
    page.find(".upload input").send_keys(str(path))
    page.wait_for(".entry-user", "When do you close?")
    page.wait_for(".entry-assistant", "We are")
    page.wait_for(".mark-row", "Interrupted")
    page.take_pictures("replay")
    found = page.list_violations()
    page.driver.execute_script(
        "const time = document.querySelector('#replay-at'); time.value = 0;"
        "time.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.wait_until_gone(".entry-assistant")
    page.click(".slider button", "Play")
    page.wait_for(".entry-assistant", "We are")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("<html>")
    page.open("#/calls")
    page.find(".upload input").send_keys(str(bad))
    page.wait_for("[role=alert]", "Line 1 is not one of a recording")
    assert found == []
