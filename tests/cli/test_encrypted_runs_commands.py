"""The commands read encrypted runs and sessions with the keys in the environment, and say so without them."""

import json
from pathlib import Path

import pytest

AGENT = f"{Path(__file__).parent / 'cashier.py'}:cashier"
KEY, OTHER_KEY = "a key of good length, number one", "another key of good length, number two"


@pytest.fixture
def waiting(run_json, monkeypatch, tmp_path):
    """An encrypted run that waits for approval, in session s; the key is in the environment."""
    monkeypatch.setenv("PAID", str(tmp_path / "paid"))
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", KEY)
    return run_json("run", "please pay", "--agent", AGENT, "--session", "s", code=3)


def test_with_the_key_an_encrypted_run_is_shown_decided_and_followed(
    waiting, run_json, standfast, monkeypatch, tmp_path
):
    [approval] = run_json("approvals", "list")
    assert (approval["tool"], approval["arguments"], approval["note"]) == ("pay", '{"amount":5}', None)
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", f"{OTHER_KEY}\n{KEY}\n")
    outcome = run_json("approvals", "approve", approval["id"], "--agent", AGENT)
    assert outcome["final_output"] == "It says: paid 5."
    assert run_json("runs", "show", waiting["run_id"])["final_output"] == "It says: paid 5."
    assert "model.answered" in standfast("runs", "events", waiting["run_id"]).stdout
    assert "please pay" in standfast("sessions", "show", "s").stdout
    assert [report["ok"] for report in run_json("sessions", "check", "s")] == [True]
    assert b"please pay" not in (tmp_path / "app.db").read_bytes()


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_without_the_key_an_encrypted_run_is_listed_and_says_what_it_is(waiting, run_json, standfast, monkeypatch, key):
    if key is None:
        monkeypatch.delenv("STANDFAST_ENCRYPTION_KEY")
    else:
        monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", key)
    [listed] = run_json("runs", "list")
    assert (listed["id"], listed["status"], listed["locked"]) == (waiting["run_id"], "waiting", True)
    assert "STANDFAST_ENCRYPTION_KEY" in listed["reason"]
    assert "STANDFAST_ENCRYPTION_KEY" in standfast("runs", "show", waiting["run_id"]).stdout
    [approval] = run_json("approvals", "list")
    assert "STANDFAST_ENCRYPTION_KEY" in approval["note"]
    for words in (
        ("runs", "events", waiting["run_id"]),
        ("runs", "cancel", waiting["run_id"]),
        ("approvals", "show", approval["id"]),
        ("approvals", "approve", approval["id"]),
        ("sessions", "show", "s"),
        ("run", "hello", "--agent", AGENT, "--session", "s"),
    ):
        result = standfast(*words, "--json")
        assert result.exit_code in (1, 4), words
        error = json.loads(result.stderr)["error"]
        assert error["code"] in ("wrong-key", "session-encrypted"), words
        assert "STANDFAST_ENCRYPTION_KEY" in error["message"]


def test_runs_and_sessions_are_encrypted_again_with_a_new_key(waiting, run_json, standfast, monkeypatch):
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", f"{OTHER_KEY}\n{KEY}")
    report = run_json("runs", "rekey")
    assert (report["runs"], report["approvals"], report["failed"]) == ([waiting["run_id"]], 1, {})
    assert run_json("sessions", "rekey") == [{"id": "s", "ok": True, "problem": None}]
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", OTHER_KEY)
    [approval] = run_json("approvals", "list")
    outcome = run_json("approvals", "approve", approval["id"], "--agent", AGENT)
    assert outcome["final_output"] == "It says: paid 5."
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", KEY)
    for group, name in (("runs", waiting["run_id"]), ("sessions", "s")):
        result = standfast(group, "rekey")
        assert result.exit_code == 1
        assert name in result.stdout
    monkeypatch.delenv("STANDFAST_ENCRYPTION_KEY")
    for group in ("runs", "sessions"):
        result = standfast(group, "rekey")
        assert (result.exit_code, "STANDFAST_ENCRYPTION_KEY" in result.stderr) == (2, True)


def test_an_encrypted_session_is_exported_with_the_key_and_imported_encrypted(
    waiting, run_json, standfast, monkeypatch, tmp_path
):
    exported = standfast("sessions", "export", "s").stdout
    assert "please pay" in exported
    (tmp_path / "s.jsonl").write_text(exported)
    assert run_json("sessions", "import", str(tmp_path / "s.jsonl"), "--as", "copy")["encrypted"]
    assert standfast("sessions", "export", "copy").stdout.splitlines()[1:] == exported.splitlines()[1:]
    [report] = run_json("sessions", "check", "copy", code=1)  # the call waits for its approval
    assert (report["tampered"], report["corrupt"]) == (None, [])
    for key in (None, OTHER_KEY):
        if key is None:
            monkeypatch.delenv("STANDFAST_ENCRYPTION_KEY")
        else:
            monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", key)
        result = standfast("sessions", "export", "s")
        assert result.exit_code == 1
        assert "STANDFAST_ENCRYPTION_KEY" in result.stderr
        assert "please pay" not in result.stdout


def test_an_invalid_key_is_refused(standfast, stored_url, monkeypatch):
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", "short")
    result = standfast("runs", "list")
    assert result.exit_code == 2
    assert "16 characters" in result.stderr
