"""Schedules, budgets and webhooks over HTTP and from the client."""

import pytest

from factories.receiver import open_receiver
from factories.runtime import wait_for, wait_until
from standfast.base.errors import InvalidInput, NotFound
from standfast.client import Client


@pytest.fixture
async def client(server):
    async with Client(server.url, token="root") as client:
        yield client


async def test_a_schedule_is_set_paused_resumed_and_deleted_and_its_runs_start(server, client):
    made = await client.schedules.set("nightly report", "desk", "hello", every=1, session_id="diary", owner="ann")
    assert [made] == await client.schedules.list()
    assert (await client.schedules.get("nightly report")).name == "nightly report"

    async def has_run():
        return bool(await server.runtime.runs(session_id="diary"))

    await wait_until(has_run)
    assert (await client.schedules.pause("nightly report")).next_at is None
    assert (await client.schedules.resume("nightly report")).next_at is not None
    await client.schedules.delete("nightly report")
    assert await client.schedules.list() == []
    with pytest.raises(NotFound, match="schedule"):
        await client.schedules.pause("nightly report")
    with pytest.raises(InvalidInput, match="either cron= or every="):
        await client.schedules.set("other", "desk", "hello")
    actions = [entry.action for entry in await client.admin.audit() if entry.action.startswith("schedule")]
    assert actions == ["schedule deleted", "schedule resumed", "schedule paused", "schedule set"]


async def test_a_budget_is_set_read_and_deleted_and_stops_runs(server, client):
    made = await client.budgets.set("all", tokens=0, per="day", agent="desk")
    assert [made] == await client.budgets.list()
    assert (made.is_used_up, made.agent, made.per) == (True, "desk", "day")
    outcome = await wait_for((await client.start("desk", "hello")).wait())
    assert (outcome.status, outcome.error.code) == ("waiting", "budget-used-up")
    assert await client.budgets.get("all") == await server.runtime.budgets.get("all")
    with pytest.raises(InvalidInput, match="tokens= or cost="):
        await client.budgets.set("other")
    await client.budgets.delete("all")
    with pytest.raises(NotFound, match="budget"):
        await client.budgets.get("all")
    actions = [entry.action for entry in await client.admin.audit() if entry.action.startswith("budget")]
    assert actions == ["budget deleted", "budget set"]


async def test_a_webhook_gets_events_and_shows_its_deliveries_but_not_its_secret(server, client):
    async with open_receiver() as receiver:
        receiver.answers = ["500 No"]
        made = await client.webhooks.create(receiver.url, private=True, events=["run.waiting"])
        assert made.secret.startswith("whsec_")
        assert [made.webhook] == await client.webhooks.list()
        run = await server.runtime.start("desk", "refund")
        await wait_for(run.wait())
        await receiver.wait_for(1)
        sent = await client.webhooks.send_test(made.webhook.id)

        async def states():
            return [(one.event, one.response_status) for one in await client.webhooks.deliveries(made.webhook.id)]

        async def have_ended():
            return await states() == [("test", 204), ("run.waiting", 500)]

        await wait_until(have_ended)
        assert (await client.webhooks.resend(made.webhook.id, sent.id)).status == "pending"
        await receiver.wait_for(3)
        await client.webhooks.delete(made.webhook.id)
        assert await client.webhooks.list() == []
        with pytest.raises(NotFound, match="webhook"):
            await client.webhooks.deliveries(made.webhook.id)
        shown = " ".join(str(entry) for entry in await client.admin.audit())
        assert made.secret not in shown
        assert "webhook created" in shown
