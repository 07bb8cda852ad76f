"""``standfast sessions``: what a person and a program see of a store."""

import asyncio
import json
import os
import sqlite3
import stat

import pytest

from standfast import SQLiteSession

pytestmark = pytest.mark.usefixtures("stored_url")


def test_listing_shows_sessions_and_filters_them(run_json, standfast):
    assert [(row["id"], row["items"], row["owner"]) for row in run_json("sessions", "list")] == [("user-7", 4, "ann")]
    assert run_json("sessions", "list", "--owner", "bob") == []
    assert "no sessions" in standfast("sessions", "list", "--query", "nobody").stdout


def test_show_prints_the_messages(run_json, standfast):
    shown = standfast("sessions", "show", "user-7").stdout
    for part in ("Refund order 7", "find(", "delivered", "Shall I go on?"):
        assert part in shown
    assert [item.get("role") for item in run_json("sessions", "show", "user-7", "-n", "1")["items"]] == ["assistant"]


def test_messages_are_never_taken_for_markup(run_json, standfast):
    line = {"item": {"role": "user", "content": "[bold]mark[/nonsense]"}}
    lines = [json.dumps({"standfast": "session", "format": 1, "session_id": "odd"}), json.dumps(line)]
    assert run_json("sessions", "import", "-", stdin="\n".join(lines))["items"] == 1
    assert "[bold]mark[/nonsense]" in standfast("sessions", "show", "odd").stdout


def test_searching_finds_items_across_sessions_or_in_one(run_json):
    assert [(hit["session"], hit["position"]) for hit in run_json("sessions", "search", "refund")] == [("user-7", 0)]
    assert run_json("sessions", "search", "refund", "--session", "user-7")[0]["text"] == "Refund order 7, please."
    assert run_json("sessions", "search", "zebra") == []


def test_forking_and_rewinding(run_json):
    assert run_json("sessions", "fork", "user-7", "--at", "1", "--as", "twin")["items"] == 1
    assert run_json("sessions", "rewind", "user-7", "--to", "1")["items"] == 1
    assert len(run_json("sessions", "show", "twin")["items"]) == 1


def test_lengths_are_printed_with_their_unit(standfast):
    assert standfast("sessions", "fork", "user-7", "--at", "1", "--as", "copy").stdout == "copy shares 1 item\n"
    assert standfast("sessions", "rewind", "user-7", "--to", "2").stdout == "user-7 now has 2 items (version 2)\n"
    assert "1 item written" in standfast("sessions", "export", "copy", "-o", os.devnull).stdout


def test_checking_says_which_item_has_no_partner(run_json):
    line = {"item": {"type": "function_call_output", "call_id": "c1", "output": "4"}}
    lines = [json.dumps({"standfast": "session", "format": 1, "session_id": "odd"}), json.dumps(line)]
    run_json("sessions", "import", "-", stdin="\n".join(lines))
    (report,) = run_json("sessions", "check", "odd", code=1)
    assert report["found"] == "item 0: output without call"


def test_an_earlier_generation_is_shown_and_restored(run_json, standfast):
    run_json("sessions", "rewind", "user-7", "--to", "1")
    (generation,) = run_json("sessions", "show", "user-7")["generations"]
    assert "--generation" in standfast("sessions", "show", "user-7").stdout
    assert len(run_json("sessions", "show", "user-7", "--generation", str(generation))["items"]) == 4
    assert standfast("sessions", "show", "user-7", "--generation", "99").exit_code == 5
    assert run_json("sessions", "restore", "user-7", "--generation", str(generation))["items"] == 4


def test_a_table_that_is_not_on_a_screen_has_a_line_per_row(run_json, standfast):
    run_json("sessions", "fork", "user-7", "--as", "x" * 200)
    assert len(standfast("sessions", "list").stdout.splitlines()) == 3


@pytest.mark.parametrize("words", [("rewind", "user-7", "--to", "9"), ("search", " "), ("list", "-n", "0")])
def test_what_cannot_be_meant_is_refused(standfast, words):
    assert standfast("sessions", *words).exit_code == 2


def test_a_missing_file_is_named(standfast):
    result = standfast("sessions", "import", "nowhere.jsonl")
    assert (result.exit_code, result.stderr) == (5, "error: nowhere.jsonl: No such file or directory\n")


def test_an_export_comes_back_under_another_name(run_json, standfast, tmp_path):
    file = tmp_path / "out.jsonl"
    assert run_json("sessions", "export", "user-7", "-o", str(file))["items"] == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run_json("sessions", "import", str(file), "--as", "copy")["items"] == 4
    again = standfast("sessions", "import", str(file))
    assert again.exit_code == 4
    assert "user-7" in again.stderr


def test_check_reports_damage_and_fails(run_json, url):
    assert run_json("sessions", "check")[0]["ok"]
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%items'")]
        connection.execute(f"UPDATE {tables[0]} SET data = x'00' WHERE seq = (SELECT min(seq) FROM {tables[0]})")
    (report,) = run_json("sessions", "check", "user-7", code=1)
    assert (report["ok"], len(report["corrupt"])) == (False, 1)


def test_deleting_asks_first(run_json, standfast):
    refused = standfast("sessions", "delete", "user-7")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    deleted = run_json("sessions", "delete", "user-7", "--yes")
    assert deleted == {"id": "user-7", "deleted": True, "deleted_runs": [], "kept_runs": []}
    assert run_json("sessions", "list") == []


@pytest.mark.parametrize("words", [("show", "nobody"), ("fork", "nobody"), ("rewind", "nobody", "--to", "0")])
def test_a_missing_object_is_reported_in_one_line_with_its_own_exit_code(standfast, words):
    result = standfast("sessions", *words)
    assert result.exit_code == 5
    assert "nobody" in result.stderr
    assert "Traceback" not in result.output
    assert json.loads(standfast("sessions", *words, "--json").stderr)["error"]["code"] == "not-found"


def test_a_missing_store_is_not_created(standfast, tmp_path):
    result = standfast("sessions", "list", "--store", f"sqlite:///{tmp_path / 'other.db'}")
    assert result.exit_code == 5
    assert "--store" in result.stderr
    assert not (tmp_path / "other.db").exists()


async def test_what_ready_made_sessions_wrote_is_found_by_following_the_hint(standfast, run_json, tmp_path):
    session = SQLiteSession("chat-1", tmp_path / "chat.db")
    await session.add_items([{"role": "user", "content": "Where is my teapot?"}])
    session.close()
    plain = f"sqlite:///{tmp_path / 'chat.db'}"
    for words in (("list",), ("search", "teapot"), ("show", "chat-1"), ("export", "chat-1")):
        hint = await asyncio.to_thread(standfast, "sessions", *words, "--store", plain)
        found = hint.stderr.partition("--store ")[2].strip().strip("'")
        assert found == f"{plain}?tables=agent_sessions,agent_messages"
        result = await asyncio.to_thread(standfast, "sessions", *words, "--store", found)
        assert (result.exit_code, result.stderr) == (0, "")
        assert ("chat-1" if words == ("list",) else "teapot") in result.stdout


def test_tables_are_named_in_pairs(standfast, url):
    result = standfast("sessions", "list", "--store", f"{url}?tables=agent_sessions")
    assert result.exit_code == 2
    assert "two names" in result.stderr
