"""Who may do what: every endpoint, every role, own and foreign data."""

import asyncio
import itertools
import json
import re
from urllib.parse import quote

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from factories.server import PEOPLE, Names, open_server
from standfast.base.errors import OutsideScope
from standfast.base.ids import new_id
from standfast.server import ApiKeys, Limits, Role
from standfast.server.app import ENDPOINTS

BODIES = {
    "start_run": lambda names: {"agent": "desk", "input": "hi", "session_id": names["session"]},
    "cancel_run": lambda names: {},
    "resume_run": lambda names: {},
    "fork_run": lambda names: {},
    "decide_approval": lambda names: {"decision": "reject"},
    "decide_approvals": lambda names: [{"approval_id": names["approval"], "decision": "reject"}],
    "create_session": lambda names: {"session_id": names["session"]},
    "change_session": lambda names: {"metadata": {"a": 1}},
    "set_owner": lambda names: {"owner": "carol"},
    "add_items": lambda names: {"items": [{"role": "user", "content": "x"}]},
    "rewind_session": lambda names: {"to": 0},
    "restore_session": lambda names: {"generation": 0},
    "fork_session": lambda names: {},
    "decide_in_call": lambda names: {"type": "decide", "call_id": "c", "decision": "approve"},
    "start_cell": lambda names: {"code": "1"},
    "answer_cell": lambda names: {"input_id": "i"},
    "restore_workspace": lambda names: {"version": 0},
    "compact_session": lambda names: {"summary": "short", "keep_last": 0},
    "prune_runs": lambda names: {"keep": 1000},
    "prune_workspaces": lambda names: {"keep": 1000},
    "set_schedule": lambda names: {"agent": "desk", "input": "hi", "every": 3600},
    "set_budget": lambda names: {"tokens": 1_000_000},
    "create_webhook": lambda names: {"url": "https://example.com/"},
    "create_key": lambda names: {"name": "n", "role": "viewer", "owner": "ann"},
}
ABSENT = {
    "continue_call",
    "get_call",
    "watch_call",
    "decide_in_call",
    "hang_up",
    "start_call",
    "revoke_key",
    "download_file",
    "get_workspace",
    "list_versions",
    "restore_session",
    "get_cell",
    "follow_cell",
    "answer_cell",
    "interrupt_cell",
    "undo_compaction",
    "get_schedule",
    "pause_schedule",
    "resume_schedule",
    "delete_schedule",
    "get_budget",
    "delete_budget",
    "delete_webhook",
    "list_deliveries",
    "send_test_event",
    "resend_delivery",
}
"""Endpoints for what the session of the test does not have: a workspace, an earlier generation."""
QUERIES = {"search_sessions": {"q": "hello"}, "download_file": {"path": "x"}, "remove_file": {"path": "x"}}


def fill(endpoint, names):
    path = endpoint.path
    for parameter in re.findall(r"{(\w+)}", path):
        path = path.replace(f"{{{parameter}}}", names[parameter.removesuffix("_id")])
    return path


async def send(person, endpoint, names):
    if endpoint.method == "WEBSOCKET":
        return await open_socket(person, endpoint, names)
    body = BODIES[endpoint.name](names) if endpoint.name in BODIES else None
    content = None if body is None else json.dumps(body)
    if endpoint.body is bytes:
        content = b"not an export"
    headers = {"content-type": "application/json"}
    query = QUERIES.get(endpoint.name, {}) | ({"until": "pause"} if endpoint.name == "follow_run" else {})
    request = person.http.build_request(
        endpoint.method, fill(endpoint, names), content=content, params=query, headers=headers
    )
    answer = await person.http.send(request, stream=True)
    if answer.status_code != 200 or endpoint.media_type != "text/event-stream":  # some streams have no end
        await answer.aread()
    await answer.aclose()
    return answer


async def open_socket(person, endpoint, names):
    """Return the answer to the handshake of a WebSocket."""
    url = str(person.http.base_url).replace("http://", "ws://").rstrip("/") + fill(endpoint, names)
    token = person.http.headers.get("authorization")
    query = "?agent=nobody" if endpoint.name == "start_call" else ""
    with pytest.raises(InvalidStatus) as refused:
        await connect(url + query, proxy=None, additional_headers={"authorization": token} if token else {})
    answer = refused.value.response
    return httpx2.Response(answer.status_code, headers=list(answer.headers.raw_items()), content=bytes(answer.body))


async def make_data(server, owner):
    """Return the ids of a run that waits, its session and its approval; ``None`` stands for no owner."""
    session_id = new_id("session")
    run = await server.runtime.start("desk", "refund", session_id=session_id, owner=owner)
    await run.wait()
    [approval] = await server.runtime.approvals(run_id=run.id)
    return {
        "run": run.id,
        "session": session_id,
        "approval": approval.id,
        "agent": "desk",
        "key": "nokey",
        "call": "nocall",
        "cell": "nocell",
        "name": "nightly",
        "webhook": "nohook",
        "delivery": "nodelivery",
    }


@pytest.mark.parametrize("owner_of_data", ["ann", None], ids=["owned", "unowned"])
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
async def test_each_role_does_what_its_rule_says(endpoint, owner_of_data, server):
    """Data of ann are own to ann's people and foreign to all others; data without an owner are foreign to everybody."""
    if endpoint.rule is None:
        assert (await send(server.sign_in(""), endpoint, {})).status_code == 200
        return
    names = await make_data(server, owner_of_data)
    for name, (owner, role) in PEOPLE.items():
        answer = await send(server.sign_in(name), endpoint, names)
        needed = endpoint.rule.own if owner == owner_of_data else endpoint.rule.foreign
        if role < min(endpoint.rule.own, endpoint.rule.foreign):
            assert (name, answer.status_code) == (name, 403), answer.text
        elif role < needed and set(re.findall(r"{(\w+)}", endpoint.path)) & {"run_id", "session_id", "approval_id"}:
            assert (name, answer.status_code, answer.json()["code"]) == (name, 404, "not-found")
        elif role >= needed:
            assert answer.status_code not in (401, 403), (name, answer.text)
            # 501: the server of these tests runs no code of users.
            assert answer.status_code < 500 or answer.status_code == 501, (name, answer.text)
            if endpoint.name not in ABSENT:
                assert answer.status_code != 404, (name, answer.text)
        if endpoint.method != "GET" and answer.status_code < 400:  # they may be changed or deleted
            names = await make_data(server, owner_of_data)


@pytest.mark.parametrize("token", ["", "mallory"])
async def test_a_request_without_a_credential_is_refused(token, server):
    names = {
        "run": "run_1",
        "session": "s",
        "approval": "approval_1",
        "agent": "desk",
        "key": "nokey",
        "call": "nocall",
        "cell": "nocell",
        "name": "nightly",
        "webhook": "nohook",
        "delivery": "nodelivery",
    }
    guarded = [endpoint for endpoint in ENDPOINTS if endpoint.rule]
    assert guarded
    for endpoint in guarded:
        answer = await send(server.sign_in(token), endpoint, names)
        found = (endpoint.name, answer.status_code, answer.json()["code"])
        assert found == (endpoint.name, 401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_every_endpoint_that_changes_something_needs_more_than_a_viewer():
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET":
            assert endpoint.rule is not None
            assert endpoint.rule.own >= Role.USER, endpoint.name


def test_endpoints_differ_by_method_or_path():
    names = [endpoint.name for endpoint in ENDPOINTS]
    assert len(set(names)) == len(names)
    routes = [(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]
    assert len(set(routes)) == len(routes)


async def test_listings_contain_only_what_the_owner_has(server):
    ann = await make_data(server, "ann")
    bob = await make_data(server, "bob")
    for name, expected in (("ann", {ann["run"]}), ("bob", {bob["run"]}), ("olga", {ann["run"], bob["run"]})):
        listed = (await server.sign_in(name).get("/runs")).json()["items"]
        assert {run["run_id"] for run in listed} == expected
    for name, path in itertools.product(
        ("ann", "bob"), ("/sessions", "/runs", "/approvals", "/sessions/search?q=refund")
    ):
        text = (await server.sign_in(name).http.get(path)).text
        mine, other = (ann, bob) if name == "ann" else (bob, ann)
        assert mine["session"] in text
        assert other["session"] not in text
    refused = await server.sign_in("ann").get("/runs", owner="bob")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_a_run_cannot_be_started_in_the_session_of_another_owner(server):
    ann = await make_data(server, "ann")
    bob = server.sign_in("bob")
    for path, body in (
        ("/runs", {"agent": "desk", "input": "hi", "session_id": ann["session"]}),
        ("/sessions", {"session_id": ann["session"]}),
    ):
        answer = await bob.post(path, body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    own = await make_data(server, "bob")
    for path in (f"/runs/{own['run']}/fork", f"/sessions/{own['session']}/fork"):
        assert (await bob.post(path, {"session_id": ann["session"]})).status_code == 404
    assert len(await server.runtime.runs(session_id=ann["session"])) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_other_hosts_and_origins_are_refused(server, headers, status):
    answer = await server.sign_in("ann").http.get("/runs", headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    [entry] = await server.app.state.service.audit.list(action="denied")
    assert (entry.subject, entry.details["code"]) == ("nobody", answer.json()["code"])


async def test_a_session_id_may_have_any_characters(server):
    ann = server.sign_in("ann")
    name = "a/b c?d#ü%2F"
    assert (await ann.post("/sessions", {"session_id": name})).status_code == 201

    answer = await ann.get(f"/sessions/{quote(name, safe='')}")
    assert answer.json()["session_id"] == name


async def test_a_batch_has_at_most_as_many_decisions_as_a_page():
    async with open_server(limits=Limits(page_size=2)) as server:
        decisions = [{"approval_id": f"none-{number}", "decision": "reject"} for number in range(3)]
        eve = server.sign_in("eve")
        assert [one["code"] for one in (await eve.post("/approvals/decide", decisions[:2])).json()] == ["not-found"] * 2
        assert (await eve.post("/approvals/decide", decisions)).status_code == 422


async def test_decisions_and_denied_requests_are_recorded(server):
    names = await make_data(server, "ann")
    await server.sign_in("mallory").get("/runs")
    await server.sign_in("bob").get(f"/runs/{names['run']}")
    await server.sign_in("ann").post(f"/approvals/{names['approval']}", {"decision": "approve"})
    for _ in range(2):  # as if the answer to the first had been lost
        await server.sign_in("eve").post(f"/approvals/{names['approval']}", {"decision": "approve"})
    entries = (await server.sign_in("root").get("/audit")).json()["items"]
    assert [(entry["subject"], entry["action"]) for entry in entries] == [
        ("eve", "decision repeated"),
        ("eve", "decided"),
        ("ann", "denied"),
        ("bob", "denied"),
        ("nobody", "denied"),
    ]
    assert "mallory" not in str(entries)


async def test_many_denied_requests_of_one_sender_are_counted_in_the_audit_log(server):
    mallory = server.sign_in("mallory")
    denied = 0

    async def list_denied():
        return (await server.sign_in("root").get("/audit", action="denied", limit=100)).json()["items"]

    entries = []
    while not any("skipped" in entry["details"] for entry in entries):
        for _ in range(10):
            denied += (await mallory.get("/runs")).status_code == 401  # a fast machine also gets 429
        entries = await list_denied()
    assert len(entries) < denied
    assert denied - 10 <= sum(1 + int(entry["details"].get("skipped", 0)) for entry in entries) <= denied


async def test_a_key_works_until_it_is_revoked(tmp_path):
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", auth=(ApiKeys, Names())) as server:
        root = server.sign_in("root")
        new = (await root.post("/keys", {"name": "ci", "role": "user", "owner": "ann"})).json()
        [listed] = (await root.get("/keys")).json()
        assert new["secret"] not in str(listed)
        holder = server.sign_in(new["secret"])
        assert (await holder.get("/info")).json()["owner"] == "ann"
        assert (await root.http.delete(f"/keys/{new['key']['id']}")).status_code == 200
        for _ in range(200):
            answer = await holder.get("/info")
            if answer.status_code == 401:
                break
            await asyncio.sleep(0.1)
        assert answer.json()["code"] == "key-revoked"


async def test_a_fork_is_refused_by_its_commit_if_the_session_has_another_owner_by_then(server):
    ann, bob = await make_data(server, "ann"), await make_data(server, "bob")
    await server.sign_in("bob").post("/sessions", {"session_id": "taken"})
    with pytest.raises(OutsideScope):  # as if bob had created it after the check
        await server.runtime.fork(ann["run"], session_id="taken", owner="ann")
    assert await server.runtime.runs(session_id="taken") == []
    assert len(await server.runtime.runs(session_id=bob["session"])) == 1


async def test_refused_requests_do_not_keep_a_balancer_from_the_health_of_the_server():
    async with open_server(limits=Limits(requests_per_second=1)) as server:
        mallory = server.sign_in("mallory")
        while (await mallory.get("/info")).status_code != 429:
            pass
        for path in ("/healthz", "/readyz"):
            assert (await mallory.get(path)).status_code == 200
