"""Durable runs over HTTP."""

from factories.server import parse_events


async def test_a_run_is_started_and_read_to_its_end(server):
    ann = server.sign_in("ann")
    started = await ann.post("/runs", {"agent": "desk", "input": "hi"})
    assert started.status_code == 201
    run_id = started.json()["run_id"]
    assert started.headers["location"] == f"/runs/{run_id}"
    events = await ann.read_events(run_id)
    numbers = [number for number, kind, _ in events if kind not in ("model.delta", "model.gap", "end")]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert events[-1][1:] == ("end", {"status": "completed", "steps": len(numbers)})
    outcome = (await ann.get(f"/runs/{run_id}/outcome")).json()
    assert (outcome["status"], outcome["final_output"]) == ("completed", "hello there")


async def test_a_stream_continues_after_the_last_event(server):
    ann = server.sign_in("ann")
    run_id = (await ann.post("/runs", {"agent": "desk", "input": "hi"})).json()["run_id"]
    everything = await ann.read_events(run_id)
    rest = await ann.read_events(run_id, after=2)
    stored = [event for event in everything if event[1] not in ("model.delta", "model.gap")]
    assert stored[2:] == rest
    async with ann.http.stream("GET", f"/runs/{run_id}/events", headers={"last-event-id": "3"}) as response:
        text = (await response.aread()).decode()
    assert "id: 3\n" not in text
    assert "id: 4\n" in text


async def test_the_same_idempotency_key_starts_one_run_per_owner(server):
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    request = {"agent": "desk", "input": "hi"}
    first = await ann.post("/runs", request, **{"idempotency-key": "k"})
    again = await ann.post("/runs", request, **{"idempotency-key": "k"})
    assert first.json()["run_id"] == again.json()["run_id"]
    others = await bob.post("/runs", request, **{"idempotency-key": "k"})
    assert others.json()["run_id"] != first.json()["run_id"]
    reused = await ann.post("/runs", request | {"input": "bye"}, **{"idempotency-key": "k"})
    assert (reused.status_code, reused.json()["code"]) == (409, "run-key-reused")


async def test_an_approver_decides_and_the_run_continues(server):
    ann, eve = server.sign_in("ann"), server.sign_in("eve")
    run_id = (await ann.post("/runs", {"agent": "desk", "input": "refund, please"})).json()["run_id"]
    assert (await ann.read_events(run_id, until="pause"))[-1][2]["status"] == "waiting"
    [approval] = (await eve.get("/approvals", status="pending")).json()["items"]
    assert approval["arguments"] == '{"order":"A7","amount":5}'
    refused = await ann.post(f"/approvals/{approval['id']}", {"decision": "approve"})
    assert refused.status_code == 403
    edited = {"decision": "approve", "arguments": {"order": "A7", "amount": 3}}
    decided = await eve.post(f"/approvals/{approval['id']}", edited)
    assert (decided.status_code, decided.json()["decided_by"]) == (200, "eve")
    await ann.read_events(run_id)
    assert (await ann.get(f"/runs/{run_id}/outcome")).json()["final_output"] == "done: refunded 3 for A7"
    late = await eve.post(f"/approvals/{approval['id']}", {"decision": "reject"})
    assert (late.status_code, late.json()["code"]) == (409, "approval-settled")


async def test_runs_are_listed_by_pages_the_latest_first(server):
    ann = server.sign_in("ann")
    started = [(await ann.post("/runs", {"agent": "desk", "input": str(n)})).json()["run_id"] for n in range(5)]
    first = (await ann.get("/runs", limit=2)).json()
    second = (await ann.get("/runs", limit=2, after=first["next"])).json()
    third = (await ann.get("/runs", limit=2, after=second["next"])).json()
    assert [run["run_id"] for page in (first, second, third) for run in page["items"]] == started[::-1]
    assert third["next"] is None


async def test_an_unknown_agent_is_not_found(server):
    answer = await server.sign_in("ann").post("/runs", {"agent": "nobody", "input": "hi"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_what_the_body_must_not_have_is_refused(server):
    ann = server.sign_in("ann")
    answer = await ann.post("/runs", {"agent": "desk", "input": "hi", "owner": "bob"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-input")
    assert "owner" in answer.json()["detail"]
    assert (await ann.get("/runs")).json()["items"] == []


async def test_a_run_is_started_and_read_in_one_request(server):
    ann = server.sign_in("ann")
    request = {"json": {"agent": "desk", "input": "hi"}, "headers": {"accept": "text/event-stream"}}
    async with ann.http.stream("POST", "/runs", **request) as response:
        events = [event async for event in parse_events(response.aiter_lines())]
    assert response.status_code == 201
    assert response.headers["location"].startswith("/runs/")
    stored = [number for number, kind, _ in events if kind not in ("model.delta", "model.gap", "end")]
    assert stored == [str(number) for number in range(1, events[-1][2]["steps"] + 1)]


async def test_a_run_continues_when_its_first_reader_leaves(server):
    ann = server.sign_in("ann")
    request = {"json": {"agent": "desk", "input": "refund"}, "headers": {"accept": "text/event-stream"}}
    async with ann.http.stream("POST", "/runs", **request) as response:
        run_id = response.headers["location"].removeprefix("/runs/")
    assert (await ann.read_events(run_id, until="pause"))[-1][2]["status"] == "waiting"


async def test_a_start_that_is_refused_is_no_stream(server):
    ann = server.sign_in("ann")
    answer = await ann.post("/runs", {"agent": "nobody", "input": "hi"}, accept="text/event-stream")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
