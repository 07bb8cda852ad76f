"""Requests that are meant to break the server, or to reach what belongs to others."""

import asyncio
import json
import logging

import pytest

from factories.server import open_server
from standfast.base.text import make_visible
from standfast.server.logs import configure_logging
from standfast.server.service import Limits

HELLO = {"items": [{"role": "user", "content": "hello"}]}


def make_export(session_id, **header):
    return json.dumps({"standfast": "session", "format": 1, "session_id": session_id, **header}).encode()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store_url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_tables_url")
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
async def server(store_url):
    async with open_server(store_url, limits=Limits(requests_per_second=1e6)) as opened:
        yield opened


@pytest.mark.parametrize("way", ["create", "append", "start", "import", "fork"])
async def test_of_two_owners_who_create_a_session_at_once_one_succeeds(server, way):
    owners = {name: server.sign_in(name) for name in ("ann", "bob")}
    for name, person in owners.items():
        await person.post(f"/sessions/of-{name}/items", HELLO)

    async def create(name, session_id):
        person = owners[name]
        if way == "append":
            return await person.post(f"/sessions/{session_id}/items", HELLO)
        if way == "import":
            return await person.http.post("/sessions/import", content=make_export(session_id, owner="carol"))
        path, body = {
            "create": ("/sessions", {"session_id": session_id, "metadata": {"by": name}}),
            "start": ("/runs", {"agent": "desk", "input": name, "session_id": session_id}),
            "fork": (f"/sessions/of-{name}/fork", {"session_id": session_id}),
        }[way]
        return await person.post(path, body)

    for number in range(5):
        session_id = f"new-{number}"
        answers = await asyncio.gather(*(create(name, session_id) for name in owners))
        accepted = [name for name, one in zip(owners, answers, strict=True) if one.status_code == 201]
        assert len(accepted) == 1, [one.text for one in answers]
        assert all(one.status_code < 500 for one in answers)
        seen = {name: (await person.get(f"/sessions/{session_id}")).status_code for name, person in owners.items()}
        assert seen == {name: 200 if name in accepted else 404 for name in owners}


async def test_an_import_does_not_take_over_the_empty_session_of_another_owner(server):
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    await bob.post("/sessions", {"session_id": "plans", "metadata": {"title": "secret"}})
    refused = await ann.http.post("/sessions/import", content=make_export("plans"))
    assert refused.status_code == 404
    assert "secret" not in refused.text
    assert (await ann.get("/sessions/plans")).status_code == 404
    assert (await bob.get("/sessions/plans")).json()["metadata"] == {"title": "secret"}


@pytest.mark.parametrize("way", ["create", "append", "start", "import", "fork"])
async def test_the_runs_that_a_deleted_session_leaves_do_not_belong_to_who_takes_its_id(server, way):
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    run = (await ann.post("/runs", {"agent": "desk", "input": "secret of ann", "session_id": "plans"})).json()["run_id"]
    await ann.read_events(run)
    assert (await ann.http.delete("/sessions/plans", params={"runs": "keep"})).json()["kept_runs"] == [run]
    await bob.post("/sessions/of-bob/items", HELLO)
    refused = {
        "create": lambda: bob.post("/sessions", {"session_id": "plans"}),
        "append": lambda: bob.post("/sessions/plans/items", HELLO),
        "start": lambda: bob.post("/runs", {"agent": "desk", "input": "hi", "session_id": "plans"}),
        "import": lambda: bob.http.post("/sessions/import", content=make_export("plans")),
        "fork": lambda: bob.post("/sessions/of-bob/fork", {"session_id": "plans"}),
    }
    assert (await refused[way]()).status_code == 404
    assert (await bob.get(f"/runs/{run}")).status_code == 404
    assert (await bob.get("/sessions/plans")).status_code == 404
    olga = server.sign_in("olga")
    assert (await olga.http.delete(f"/runs/{run}")).status_code == 204
    assert (await bob.post("/sessions", {"session_id": "plans"})).status_code == 201


async def test_an_owner_whose_name_has_a_slash_does_not_share_the_keys_of_another(server, monkeypatch):
    from factories import server as factory

    monkeypatch.setitem(factory.PEOPLE, "slash", ("ann/x", factory.Role.USER))
    ann, other = server.sign_in("ann"), server.sign_in("slash")
    request = {"agent": "desk", "input": "hi"}
    first = await ann.post("/runs", request, **{"idempotency-key": "x/1"})
    second = await other.post("/runs", request, **{"idempotency-key": "1"})
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["run_id"] != second.json()["run_id"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE"])
async def test_an_unknown_method_is_not_allowed(server, method):
    answer = await server.sign_in("ann").http.request(method, "/runs")
    assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize("time", ["nan", "inf", "-inf", "1e308", "-1e308"])
async def test_invalid_times_do_not_break_the_audit_log(server, time):
    root = server.sign_in("root")
    for name in ("since", "until"):
        answer = await root.get("/audit", **{name: time})
        assert answer.status_code in (200, 422), answer.text


@pytest.mark.parametrize("context", ["text", 5, [], True])
async def test_a_context_is_an_object(server, context):
    answer = await server.sign_in("ann").post("/runs", {"agent": "desk", "input": "hi", "context": context})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-input")


@pytest.mark.parametrize("value", ['"' + "9" * 5000 + '-1"', '"9999999999999999999-1"', '"1-"', "*", "x"])
async def test_an_if_match_that_is_no_etag_is_refused(server, value):
    ann = server.sign_in("ann")
    answer = await ann.post("/sessions/s/items", HELLO, **{"if-match": value})
    assert answer.status_code == 422
    assert (await ann.get("/sessions/s")).status_code == 404


@pytest.mark.parametrize("value", ["9" * 5000, "1/x", "1/..", "-1", "1/1.x", "/"])
async def test_an_invalid_last_event_id_is_refused_before_the_stream_begins(server, value):
    ann = server.sign_in("ann")
    run = (await ann.post("/runs", {"agent": "desk", "input": "hi"})).json()["run_id"]
    answer = await ann.http.get(f"/runs/{run}/events", headers={"last-event-id": value})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-input")


@pytest.mark.parametrize("origin", ["http://[bad", "null", "", "http://", "file://"])
async def test_an_origin_that_is_no_site_is_refused(server, origin):
    answer = await server.sign_in("ann").http.get("/info", headers={"origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "wrong-origin")


async def test_deeply_nested_json_is_refused(server):
    ann, deep = server.sign_in("ann"), "[" * 100_000 + "]" * 100_000
    assert (await ann.http.post("/sessions/import", content=deep.encode())).status_code == 422
    headers = {"content-type": "application/json"}
    body = f'{{"agent":"desk","input":"hi","context":{{"a":{deep}}}}}'
    assert (await ann.http.post("/runs", content=body, headers=headers)).status_code == 400


PATHS_WITH_NAMES = (
    "/sessions/{}",
    "/sessions/{}/items",
    "/runs/{}",
    "/approvals/{}",
    "/calls/{}",
    "/sessions?owner={}",
    "/sessions?query={}",
    "/sessions?after={}",
    "/runs?session_id={}",
    "/runs?after={}",
    "/approvals?session_id={}",
    "/approvals?run_id={}",
    "/approvals?after={}",
    "/audit?after={}",
    "/audit?subject={}",
    "/sessions/search?q={}",
    "/sessions/search?q=h&session_id={}",
)


@pytest.mark.parametrize("name", ["%00", "a%00b", "%ff", "a%0Ab", "a%2Fb"])
async def test_strange_names_are_unknown_or_refused(server, name):
    for path in PATHS_WITH_NAMES:
        answer = await server.sign_in("root").http.get(path.format(name))
        assert answer.status_code in (200, 400, 404, 422), (path, answer.text)


async def send_raw(server, *lines):
    """Send a request as it stands, and return everything that is answered until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write("\r\n".join(lines).encode())
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


@pytest.mark.parametrize("header", ["Authorization: Bearer bob", "Host: example.com", "Origin: http://127.0.0.1"])
async def test_a_header_that_decides_about_access_is_sent_once(server, header):
    usual = ("Host: 127.0.0.1", "Authorization: Bearer ann", "Origin: http://127.0.0.1", "Connection: close")
    assert (await send_raw(server, "GET /info HTTP/1.1", *usual, "", "")).startswith("HTTP/1.1 200 ")
    answer = await send_raw(server, "GET /info HTTP/1.1", *usual, header, "", "")
    assert answer.startswith("HTTP/1.1 400 ")
    assert "bad-request" in answer


async def test_a_stalled_body_is_refused():
    async with open_server(limits=Limits(body_pause=0.05)) as server:
        usual = ("Host: 127.0.0.1", "Authorization: Bearer ann", "Content-Type: application/json")
        answer = await send_raw(
            server, "POST /runs HTTP/1.1", *usual, "Content-Length: 29", "Connection: close", "", "{"
        )
        assert answer.startswith("HTTP/1.1 408 ")
        assert "body-too-slow" in answer
        assert (await server.sign_in("ann").get("/runs")).json()["items"] == []


@pytest.mark.parametrize("number", [10**30, -(10**30), -1, 2**63])
async def test_numbers_that_no_database_has_are_refused(server, number):
    ann, olga = server.sign_in("ann"), server.sign_in("olga")
    run = (await ann.post("/runs", {"agent": "desk", "input": "refund", "session_id": "s"})).json()["run_id"]
    await ann.read_events(run, until="pause")
    answers = [
        await ann.get("/sessions/s/view", generation=number),
        await ann.get("/sessions/s/items", generation=number),
        await ann.get(f"/runs/{run}/step", at=number),
        await ann.get("/sessions/s/workspace", at=number),
        await ann.post(f"/runs/{run}/fork", {"at": number}),
        await ann.post("/sessions/s/rewind", {"to": number}),
        await ann.post("/sessions/s/restore", {"generation": number}),
    ]
    assert {answer.status_code for answer in answers} <= {400, 404, 422}
    limits = [
        await ann.get("/sessions/s/compaction", keep_last=number),
        await olga.post("/runs/prune", {"keep": number, "older_than": float(number)}),
        await olga.post("/workspaces/prune", {"keep": number, "max_mb": float(number)}),
        await ann.get("/sessions", since=number),
    ]
    assert {answer.status_code for answer in limits} <= {200, 400, 422}
    assert (await ann.get(f"/runs/{run}")).status_code == 200


@pytest.mark.parametrize("as_json", [True, False])
async def test_nothing_in_a_log_is_obeyed_by_a_terminal(as_json, capsys):
    said = "red \x1b[41m \x9b2J \x7f \u202e00005 zero\u200bwidth"
    logs = [logging.getLogger(name) for name in ("standfast", "uvicorn.error")]
    before = [(list(log.handlers), list(log.filters), log.level, log.propagate) for log in logs]
    try:
        configure_logging(as_json=as_json)
        for name in ("standfast.server", "uvicorn.error"):
            try:
                raise RuntimeError(said)
            except RuntimeError:
                logging.getLogger(name).exception("failed: %s", said, extra={"who": said})
    finally:
        for log, (handlers, filters, level, propagate) in zip(logs, before, strict=True):
            log.handlers[:], log.filters[:], log.propagate = handlers, filters, propagate
            log.setLevel(level)
    printed = capsys.readouterr().err
    assert make_visible(printed, multiline=True) == printed
    assert "00005" in printed
    if as_json:
        entries = [json.loads(line) for line in printed.splitlines()]
        assert [said in entry["exception"] and entry["who"] == said for entry in entries] == [True, True]
