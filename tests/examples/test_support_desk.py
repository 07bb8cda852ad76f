"""The support desk over real HTTP: a server process, killed and started again."""

import asyncio
import json
from typing import Any

from desk_client import DeskClient, desk

__all__ = ["desk"]


def to_text(events: list[tuple[int | None, dict[str, Any]]]) -> str:
    return json.dumps([data for _, data in events])


def select_numbered(events: list[tuple[int | None, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """Return the events that have a number, without deltas of the model."""
    return {number: data for number, data in events if number is not None}


async def test_a_refund_is_paid_with_edited_arguments(desk: DeskClient) -> None:
    run = await desk.send_message("Order A7 is broken, I want my money back.")
    approval = await desk.wait_for_approval()
    assert (approval["tool"], json.loads(approval["arguments"])) == ("refund", {"order": "A7", "amount": 49.9})
    assert desk.ledger == []
    invalid = await desk.decide(approval, "approve", arguments={"order": "A7"})
    assert (invalid.status_code, invalid.json()["code"]) == (422, "invalid-decision")
    assert (await desk.decide(approval, "approve", arguments={"order": "A7", "amount": 20})).status_code == 200
    events = await desk.events(run)
    assert (events[-1][1]["type"], events[-1][1]["status"]) == ("end", "completed")
    assert "The bank has paid 20.00 euros back" in to_text(events)
    assert desk.ledger == ["A7 20.00"]
    again = await desk.decide(approval, "reject")
    assert (again.status_code, again.json()["code"]) == (409, "approval-settled")
    assert (await desk.http.get("/runs/nowhere/events")).status_code == 404


async def test_a_message_that_is_sent_twice_starts_one_run(desk: DeskClient) -> None:
    run = await desk.send_message("Order B2 never came.")
    assert await desk.send_message("Order B2 never came.") == run
    body = {"agent": "desk", "input": "Something else.", "session_id": "user-7"}
    assert (await desk.http.post("/runs", json=body, headers={"Idempotency-Key": "k1"})).status_code == 409
    assert [run["run_id"] for run in (await desk.http.get("/runs?session_id=user-7")).json()["items"]] == [run]


async def test_events_resume_after_the_last_received_one(desk: DeskClient) -> None:
    run = await desk.send_message("Order A7 is broken.")
    first = select_numbered(await desk.events(run, until="approval.requested"))
    assert list(first) == list(range(1, len(first) + 1))
    assert (await desk.decide(await desk.wait_for_approval(), "reject", message="Too late.")).status_code == 200
    rest = select_numbered(await desk.events(run, headers={"Last-Event-ID": str(len(first))}))
    assert next(iter(rest)) == len(first) + 1
    assert "Too late." in str(rest)
    assert rest == select_numbered(await desk.events(run, after=len(first)))
    assert desk.ledger == []


async def test_a_server_killed_during_a_refund_asks_whether_it_happened(desk: DeskClient) -> None:
    run = await desk.send_message("Order C9 is broken.")
    await desk.decide(await desk.wait_for_approval(), "approve")
    async with asyncio.timeout(60):
        while not desk.ledger:
            await asyncio.sleep(0.01)
    await desk.kill()
    await desk.start()
    uncertain = await desk.wait_for_approval("uncertain")
    refused = await desk.decide(uncertain, "approve")
    assert (refused.status_code, refused.json()["code"]) == (409, "uncertain-call")
    await desk.decide(uncertain, "done", output="The bank has paid.")
    events = await desk.events(run)
    assert "run.recovered" in [data["type"] for _, data in events]
    assert events[-1][1]["status"] == "completed"
    assert desk.ledger == ["C9 310.50"]


async def test_foreign_host_names_are_rejected(desk: DeskClient) -> None:
    assert (await desk.http.get("/approvals", headers={"Host": "evil.example"})).status_code == 421
    assert (await desk.http.post("/runs", content='{"agent": "desk", "input": "b"}')).status_code == 415


async def test_an_open_page_does_not_prevent_shutdown(desk: DeskClient) -> None:
    run = await desk.send_message("Order A7 is broken.")
    await desk.wait_for_approval()
    async with desk.http.stream("GET", f"/runs/{run}/events") as page:
        lines = page.aiter_lines()
        while "approval.requested" not in await anext(lines):
            pass
        await anext(lines)
        desk.process.terminate()
        rest = [line async for line in lines]
    output = (await asyncio.wait_for(desk.process.communicate(), 60))[0].decode()
    assert "event: end" not in rest
    assert "Application shutdown complete" in output
    assert "Traceback" not in output
