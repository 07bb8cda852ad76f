"""Sessions in a real browser: list, search, conversation, branches, rewinding, compaction, deletion."""

from browser import needs_chromium
from console.conftest import needs_console

pytestmark = [needs_chromium, needs_console]


def read_texts(server, session_id):
    items = server.http.get(f"/sessions/{session_id}/items").json()["items"]
    return [item["content"] if isinstance(item["content"], str) else item["content"][0]["text"] for item in items]


def test_a_message_starts_a_run_and_the_answer_appears(page, server):
    page.server.post("/sessions", {"session_id": "talk"})
    page.open("#/sessions")
    page.click("td a", "talk")
    page.fill(".send textarea", "Good morning")
    page.click(".send button", "Send")
    page.wait_for(".entry-assistant", "You said: Good morning")
    page.take_pictures("session")
    assert page.list_violations() == []


def test_sessions_are_found_by_name_and_by_content(page, server, request):
    server.start_run("The saucer is chipped", request.node.originalname)
    page.open("#/sessions")
    page.wait_for("td a", request.node.originalname)
    page.take_pictures("sessions")
    assert page.list_violations() == []
    page.click(".search input[type=checkbox]")
    page.fill(".search input[type=search]", "chipped")
    page.click(".search button")
    page.wait_for(".hits", "The saucer is chipped")
    page.click(".hits a", request.node.originalname)
    page.wait_for(".entry-user", "chipped")


def test_sessions_are_filtered_by_owner_and_time(page, server, request):
    body = {"session_id": f"{request.node.originalname}-2"}
    secret = server.create_key("carol", "user")
    server.http.post("/sessions", json=body, headers={"authorization": f"Bearer {secret}"}).raise_for_status()
    server.post("/sessions", {"session_id": request.node.originalname})
    page.open("#/sessions")
    page.wait_for("td a", request.node.originalname)
    page.click(f"tr:has(td a[href$='{body['session_id']}']) td a", "carol")
    page.wait_for(".filters .tag", "owner carol")
    page.click(".filters a", "today")
    page.wait_for(".filters a[aria-current]", "today")
    page.wait_for("td a", body["session_id"])
    assert len(page.find_all("tbody tr")) == 1
    assert page.driver.current_url.endswith("#/sessions?owner=carol&days=1")
    page.open("#/sessions?owner=nobody")
    page.wait_for(".empty", "No session matches")


def test_a_session_shows_its_branches(page, server, request):
    session_id = request.node.originalname
    server.start_run("Good morning", session_id)
    server.start_run("Good evening", session_id)
    page.open(f"#/sessions/{session_id}")
    page.click(".entry-assistant button", "fork after this")
    page.wait_for(".branches a", session_id)
    page.wait_for(".branches li", "the first 2 items are the same, then 2 of its own")
    page.fill(".send textarea", "Good night")
    page.click(".send button", "Send")
    page.wait_for(".entry-assistant", "You said: Good night")
    fork = page.read_text("h1")
    page.click(".branches a", session_id)
    page.wait_for(".branches a", fork)
    page.wait_for(".entry-assistant", "You said: Good evening")
    page.take_pictures("branches")
    assert page.list_violations() == []


def test_a_message_is_edited_in_a_branch_and_the_session_stays(page, server, request):
    server.start_run("Good morning", request.node.originalname)
    page.open(f"#/sessions/{request.node.originalname}")
    page.click(".entry-user button", "edit")
    page.fill("#edited", "Good night")
    page.click(".decision button", "Branch")
    page.wait_for(".entry-assistant", "You said: Good night")
    assert request.node.originalname not in page.driver.current_url
    assert read_texts(server, request.node.originalname) == ["Good morning", "You said: Good morning"]


def test_a_session_is_compacted_after_a_look_and_restored(page, server, request):
    session_id = request.node.originalname
    server.start_run("Good morning", session_id)
    server.start_run("Good evening", session_id)
    page.open(f"#/sessions/{session_id}")
    page.wait_for(".entry-user", "Good evening")
    page.click(".actions button", "Compact")
    page.fill("#keep", "2")
    page.wait_for(".preview .entry-user", "Good morning")
    page.fill("#summary", "They greeted each other.")
    page.take_pictures("compaction")
    page.click(".compaction button", "Compact")
    page.wait_for(".entry", "They greeted each other.")
    page.wait_for(".filters", "generation 0 (4 items)")
    assert any("They greeted" in text for text in read_texts(server, session_id))
    page.click(".actions button", "Undo")
    page.wait_for(".entry-user", "Good morning")
    assert read_texts(server, session_id)[0] == "Good morning"


def test_a_session_is_rewound_and_deleted(page, server, request):
    session_id = request.node.originalname
    server.start_run("Good morning", session_id)
    page.open(f"#/sessions/{session_id}")
    page.click(".entry-user button", "rewind to this")
    page.driver.switch_to.alert.accept()
    page.wait_for("header", "1 items")
    page.wait_for_script("return !document.querySelector('.transcript').textContent.includes('rewind')")
    assert read_texts(server, session_id) == ["Good morning"]
    page.click(".actions button", "Delete")
    page.driver.switch_to.alert.accept()
    page.wait_for("h1", "Sessions")
    assert server.http.get(f"/sessions/{session_id}").status_code == 404


def test_hostile_items_are_shown_and_do_nothing(page, server, request):
    text = "<script>document.title='owned'</script>[a](javascript:alert(1))\u202e\x00" + "y" * 400_000
    items = [{"role": "user", "content": text}, {"role": "assistant", "content": text}, {"type": "<b>odd", "x": [None]}]
    call = {"type": "function_call", "call_id": text[:60], "name": text[:60], "arguments": '{"' + text[:20] + '": 1}'}
    items += [call, {"type": "function_call_output", "call_id": text[:60], "output": text}]
    server.post(f"/sessions/{request.node.originalname}/items", {"items": items})
    page.open(f"#/sessions/{request.node.originalname}")
    page.wait_for(".entry-user", "<script>")
    page.wait_for(".entry-assistant", "javascript:alert")
    page.wait_for(".entry-call .who", "calls <script>")
    assert page.find_all("main script, main iframe, .transcript a") == []
    assert "owned" not in page.driver.title
    page.take_pictures("hostile-session")
