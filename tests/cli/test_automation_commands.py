"""``standfast schedules``, ``standfast budgets`` and ``standfast webhooks``."""

import pytest


def test_a_schedule_is_set_paused_resumed_and_deleted(run_json, standfast, url):
    made = run_json("schedules", "set", "nightly", "clerk", "Write it.", "--cron", "0 3 * * *", "--owner", "ann")
    assert (made["name"], made["agent"], made["when"], made["owner"]) == ("nightly", "clerk", "0 3 * * * UTC", "ann")
    assert "nightly" in standfast("schedules", "list").stdout
    assert run_json("schedules", "pause", "nightly")["next"] == "paused"
    assert run_json("schedules", "resume", "nightly")["next_at"] == made["next_at"]
    assert "every 5400 s" in standfast("schedules", "set", "nightly", "clerk", "Again.", "--every", "90m").stdout
    assert run_json("schedules", "delete", "nightly") == {"deleted": "nightly"}
    assert run_json("schedules", "list") == []
    assert "no schedules" in standfast("schedules", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["set", "n", "clerk", "x"], 2),
        (["set", "n", "clerk", "x", "--cron", "never"], 2),
        (["set", "n", "clerk", "x", "--every", "soon"], 2),
        (["pause", "n"], 5),
        (["delete", "n"], 5),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(standfast, stored_url, arguments, code):
    assert standfast("schedules", *arguments).exit_code == code


def test_a_budget_is_set_listed_and_deleted(run_json, standfast, url):
    made = run_json("budgets", "set", "ann", "--cost", "5", "--per", "day", "--owner", "ann")
    assert (made["limit"], made["per"], made["owner"], made["used_up"]) == ("$5", "day", "ann", False)
    standfast("budgets", "set", "all", "--tokens", "1000000")
    shown = standfast("budgets", "list").stdout
    assert "1,000,000 tokens" in shown
    assert "$0.0000" in shown
    assert run_json("budgets", "delete", "ann") == {"deleted": "ann"}
    assert [one["name"] for one in run_json("budgets", "list")] == ["all"]


@pytest.mark.parametrize(
    ("arguments", "code"), [(["set", "n"], 2), (["set", "n", "--tokens", "x"], 2), (["delete", "n"], 5)]
)
def test_a_budget_that_cannot_be_is_refused(standfast, stored_url, arguments, code):
    assert standfast("budgets", *arguments).exit_code == code


def test_a_webhook_is_created_tested_and_deleted(run_json, standfast, url):
    made = run_json("webhooks", "create", "https://example.com/hook", "--event", "run.failed")
    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["run.failed"]
    [listed] = run_json("webhooks", "list")
    assert listed["url"] == "https://example.com/hook"
    assert made["secret"] not in standfast("webhooks", "list").stdout + str(listed)
    sent = run_json("webhooks", "test", made["id"])
    [shown] = run_json("webhooks", "deliveries", made["id"])
    assert (shown["id"], shown["event"], shown["status"]) == (sent["id"], "test", "pending")
    assert standfast("webhooks", "resend", made["id"], sent["id"]).exit_code == 5
    assert run_json("webhooks", "delete", made["id"]) == {"deleted": made["id"]}
    assert run_json("webhooks", "list") == []
    assert standfast("webhooks", "deliveries", made["id"]).exit_code == 5
    assert standfast("webhooks", "create", "http://example.com/hook").exit_code == 2
