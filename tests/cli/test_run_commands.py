"""``standfast run``, ``chat``, ``runs`` and ``approvals`` on one store."""

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from standfast import Agent, FunctionModel, Runtime, open_store

AGENT = f"{Path(__file__).parent / 'cashier.py'}:cashier"


@pytest.fixture
def paid(tmp_path, monkeypatch):
    monkeypatch.setenv("PAID", str(tmp_path / "paid"))
    return lambda: (tmp_path / "paid").read_text().split() if (tmp_path / "paid").exists() else []


@pytest.fixture
def waiting(run_json, paid):
    """The pending approval of a waiting run."""
    outcome = run_json("run", "pay", "--agent", AGENT, "--session", "user-7", code=3)
    return outcome["approvals"][0]


def test_a_run_answers_one_input_and_stores_it(standfast, run_json):
    result = standfast("run", "hello", "--agent", AGENT, "--session", "user-7")
    assert (result.exit_code, result.stdout) == (0, "You said hello, item 1.\n")
    assert (
        run_json("run", "again", "--agent", AGENT, "--session", "user-7")["final_output"] == "You said again, item 3."
    )
    assert [run["status"] for run in run_json("runs", "list", "--session", "user-7")] == ["completed"] * 2


def test_the_same_key_runs_once(run_json):
    first = run_json("run", "hello", "--agent", AGENT, "--key", "k1")
    assert run_json("run", "hello", "--agent", AGENT, "--key", "k1") == first
    assert len(run_json("runs", "list")) == 1


def test_an_approved_call_is_made_once_and_a_second_decision_is_a_conflict(run_json, standfast, waiting, paid):
    assert [one["id"] for one in run_json("approvals", "list")] == [waiting["id"]]
    outcome = run_json("approvals", "approve", waiting["id"], "--agent", AGENT, "--by", "ann")
    assert (outcome["status"], outcome["final_output"], paid()) == ("completed", "It says: paid 5.", ["5"])
    shown = run_json("approvals", "show", waiting["id"])
    assert (shown["status"], shown["decided_by"]) == ("approved", "ann")
    again = standfast("approvals", "approve", waiting["id"])
    assert again.exit_code == 4
    assert "ann" in again.stderr
    assert run_json("approvals", "list") == []


def test_arguments_are_edited_and_checked(run_json, standfast, waiting, paid):
    bad = standfast("approvals", "approve", waiting["id"], "--arguments", '{"amount": "much"}', "--agent", AGENT)
    assert bad.exit_code == 2
    assert "amount" in bad.stderr
    run_json("approvals", "approve", waiting["id"], "--arguments", '{"amount": 3}', "--agent", AGENT)
    assert paid() == ["3"]


def test_a_rejection_is_sent_to_the_model_when_another_program_resumes_the_run(run_json, waiting, paid):
    assert run_json("approvals", "reject", waiting["id"], "-m", "too much")["status"] == "rejected"
    outcome = run_json("runs", "resume", waiting["run_id"], "--agent", AGENT)
    assert "too much" in outcome["final_output"]
    assert paid() == []


def test_a_decision_without_an_agent_prints_the_command_that_resumes_the_run(standfast, waiting):
    decided = standfast("approvals", "approve", waiting["id"])
    assert decided.stdout.splitlines()[0] == f"{waiting['id']} is approved"
    assert f"standfast runs resume {waiting['run_id']} --agent AGENT" in decided.stderr


def test_a_waiting_run_prints_the_commands_that_decide_it(standfast, paid):
    asked = standfast("run", "pay", "--agent", AGENT)
    assert f"standfast approvals approve ID --agent {AGENT}\n" in asked.stderr


def test_printed_commands_name_the_store_of_the_run(standfast, run_json, paid, tmp_path):
    there = ["--store", f"sqlite:///{tmp_path / 'other.db'}"]
    asked = standfast("run", "pay", "--agent", AGENT, *there)
    assert f"approvals approve ID --agent {AGENT} {' '.join(there)}\n" in asked.stderr
    [approval] = run_json("approvals", "list", *there)
    shown = standfast("runs", "show", approval["run_id"], *there)
    assert f"approvals approve ID --agent AGENT {' '.join(there)}\n" in shown.stderr
    decided = standfast("approvals", "approve", approval["id"], *there)
    assert f"runs resume {approval['run_id']} --agent AGENT {' '.join(there)}\n" in decided.stderr


def test_resuming_a_completed_run_shows_its_answer(standfast, run_json):
    run = run_json("run", "hello", "--agent", AGENT)["run_id"]
    resumed = standfast("runs", "resume", run, "--agent", AGENT)
    assert (resumed.exit_code, resumed.stdout) == (0, "You said hello, item 1.\n")


def test_a_run_is_shown_with_its_events(run_json, standfast, waiting):
    shown = run_json("runs", "show", waiting["run_id"])
    assert (shown["status"], len(shown["approvals"])) == ("waiting", 1)
    lines = standfast("runs", "events", waiting["run_id"], "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    later = standfast("runs", "events", waiting["run_id"], "--after", str(len(events) - 1))
    assert "run.waiting" in later.stdout
    assert len(later.stdout.splitlines()) == 1


def test_a_run_that_has_not_started_shows_how_to_execute_it(standfast, url, waiting):
    run_id = asyncio.run(queue_run(url))
    shown = standfast("runs", "show", run_id)
    assert f"standfast runs resume {run_id} --agent AGENT" in shown.stderr
    assert "queued" in shown.stdout


async def queue_run(url):
    """Start a run in the session of the waiting run, and return its id."""
    cashier = Agent("cashier", model=FunctionModel(lambda request: "later"))
    async with Runtime.open(url, agents=[cashier]) as rt:
        return (await rt.start("cashier", "hello", session_id="user-7")).id


def test_a_waiting_run_is_cancelled_and_forked(run_json, waiting):
    made = run_json("runs", "fork", waiting["run_id"])
    assert made["parent"] == waiting["run_id"]
    run_json("runs", "cancel", waiting["run_id"], "--now")
    assert run_json("runs", "show", waiting["run_id"])["status"] == "cancelled"


def test_a_run_whose_tool_was_removed_resumes_with_accepted_changes(run_json, standfast, waiting, paid, tmp_path):
    changed = tmp_path / "changed.py"
    changed.write_text(Path(AGENT.partition(":")[0]).read_text().replace("tools=[pay]", "tools=[]"))
    agent = ["--agent", f"{changed}:cashier"]
    stuck = standfast("approvals", "approve", waiting["id"], *agent)
    assert stuck.exit_code != 0
    assert "--accept-changes" in stuck.stderr
    outcome = run_json("runs", "resume", waiting["run_id"], "--accept-changes", *agent)
    assert (outcome["status"], paid()) == ("completed", [])


def test_changes_are_accepted_for_a_run_that_is_already_runnable(run_json, waiting, paid, tmp_path):
    changed = tmp_path / "changed.py"
    changed.write_text(Path(AGENT.partition(":")[0]).read_text().replace("tools=[pay]", "tools=[]"))
    run_json("approvals", "approve", waiting["id"])
    outcome = run_json("runs", "resume", waiting["run_id"], "--accept-changes", "--agent", f"{changed}:cashier")
    assert (outcome["status"], paid()) == ("completed", [])


def test_a_run_cancelled_while_waiting_requests_approval_again_when_resumed(run_json, waiting, paid):
    run_json("runs", "cancel", waiting["run_id"])
    outcome = run_json("runs", "resume", waiting["run_id"], "--agent", AGENT, code=3)
    (again,) = outcome["approvals"]
    assert again["id"] != waiting["id"]
    run_json("approvals", "approve", again["id"], "--agent", AGENT)
    assert paid() == ["5"]


def test_the_newest_runs_are_listed_first(run_json):
    ids = [run_json("run", "hello", "--agent", AGENT)["run_id"] for _ in range(3)]
    assert [run["id"] for run in run_json("runs", "list", "-n", "2")] == [ids[2], ids[1]]


def test_runs_and_approvals_are_listed_by_owner(run_json, url, waiting):
    asyncio.run(set_owner(url, "user-7", "ann"))
    run_json("run", "hello", "--agent", AGENT)
    assert [run["id"] for run in run_json("runs", "list", "--owner", "ann")] == [waiting["run_id"]]
    assert [one["id"] for one in run_json("approvals", "list", "--owner", "ann")] == [waiting["id"]]
    assert run_json("runs", "list", "--owner", "bob") == run_json("approvals", "list", "--owner", "bob") == []


def test_a_listing_of_approvals_that_is_cut_says_so(standfast, waiting):
    assert "--limit shows more" in standfast("approvals", "list", "--limit", "1").stderr
    assert "--limit" not in standfast("approvals", "list").stderr


async def set_owner(url, session_id, owner):
    async with open_store(url) as store:
        await store.set_owner(session_id, owner)


def test_edited_arguments_require_the_agent_that_validates_them(standfast, waiting):
    for words in (("--arguments", "{}"), ("--edit",), ("--edit", "--arguments", "{}", "--agent", AGENT)):
        result = standfast("approvals", "approve", waiting["id"], *words)
        assert result.exit_code == 2
        assert "--a" in result.stderr


def test_a_run_does_not_wait_for_a_session_with_a_pending_approval(standfast, waiting):
    result = standfast("run", "hello", "--agent", AGENT, "--session", "user-7")
    assert result.exit_code == 4
    assert f"standfast runs show {waiting['run_id']}" in result.stderr


def test_a_chat_prompts_for_approvals_and_keeps_the_session(standfast, run_json, paid):
    words = "hello\npay\ny\npay\nn\nno money\n"
    result = standfast("chat", AGENT, "--session", "user-7", stdin=words)
    assert result.exit_code == 0
    for part in ("You said hello", "wants to call pay", "It says: paid 5.", "no money", "--session user-7"):
        assert part in result.stdout
    assert paid() == ["5"]
    assert "item 11" in standfast("chat", AGENT, "--session", "user-7", stdin="more\n").stdout


def test_a_json_chat_reads_lines_until_a_turn_waits_for_approval(standfast, paid):
    result = standfast("chat", AGENT, "--session", "user-7", "--json", stdin="hello\n\nmore\npay\nnever said\n")
    outcomes = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 3
    assert [outcome["status"] for outcome in outcomes] == ["completed", "completed", "waiting"]
    assert {outcome["session_id"] for outcome in outcomes} == {"user-7"}
    assert outcomes[0]["final_output"].startswith("You said hello")
    assert [approval["tool"] for approval in outcomes[2]["approvals"]] == ["pay"]
    assert paid() == []
    assert "never said" not in standfast("sessions", "show", "user-7").stdout


def test_a_chat_ends_with_the_command_that_continues_it(standfast, tmp_path):
    other = f"sqlite:///{tmp_path / 'other.db'}"
    printed = standfast("chat", AGENT, "--session", "my chat", stdin="hello\n").stdout
    assert printed.endswith(f"standfast chat {AGENT} --session 'my chat'\n")
    printed = standfast("chat", AGENT, "--session", "s", "--store", other, stdin="hello\n").stdout
    again = printed.partition("Continue with: standfast ")[2].split()
    assert "item 3" in standfast(*again, stdin="hello\n").stdout


def test_an_approval_postponed_in_a_chat_stays_pending(standfast, run_json, paid):
    result = standfast("chat", AGENT, "--session", "user-7", stdin="pay\nl\n")
    assert "is waiting for approval" in result.stderr
    assert len(run_json("approvals", "list")) == 1
    assert paid() == []


@pytest.mark.parametrize(
    ("agent", "code", "message"),
    [
        ("nowhere.py", 5, "nowhere.py"),
        ("no_such_module:agent", 5, "no_such_module"),
        (f"{AGENT}ish", 5, "it has cashier"),
        (AGENT.replace(":cashier", ":pay"), 2, "neither an Agent"),
        (AGENT.replace(":cashier", ":rules"), 2, "cannot be created"),
        (str(Path(__file__).with_name("conftest.py")), 5, "conftest.py:NAME"),
        (".", 2, "module:attribute"),
        ("tests/cli", 2, "module:attribute"),
    ],
)
def test_an_agent_that_cannot_be_found_is_reported(standfast, agent, code, message):
    result = standfast("run", "hi", "--agent", agent)
    assert result.exit_code == code
    assert message in result.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\nraise RuntimeError('no database\\nhere')", "RuntimeError: no database, at "),
        ("def x(:", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_an_agent_that_cannot_be_imported_is_reported_in_one_line(standfast, tmp_path, code, message):
    file = tmp_path / "broken_agent.py"
    file.write_text(code)
    result = standfast("run", "hi", "--agent", str(file))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert json.loads(standfast("run", "hi", "--agent", str(file), "--json").stderr)["error"]["code"] == "broken-agent"


def test_an_agent_may_own_a_worker_pool_that_lives_as_long_as_the_command(standfast, run_json):
    where = f"{Path(__file__).with_name('counter.py')}:counter"
    result = standfast("chat", where, "--session", "s", stdin="n = 41\nn + 1\n")
    assert (result.exit_code, "It is 42." in result.stdout) == (0, True), result.output
    assert run_json("run", "6 * 7", "--agent", where)["final_output"] == "It is 42."
    assert run_json("run", "6 * 7", "--agent", where.replace(":counter", ":plain"))["final_output"] == "6 * 7"


def test_an_agent_in_a_package_may_import_relatively(run_json, tmp_path):
    package = tmp_path / "shop_of_tests"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "words.py").write_text("GREETING = 'good day'")
    (package / "agents.py").write_text(
        "from standfast import Agent, FunctionModel\nfrom .words import GREETING\n"
        "clerk = Agent('clerk', model=FunctionModel(lambda request: GREETING))\n"
    )
    assert run_json("run", "hi", "--agent", str(package / "agents.py"))["final_output"] == "good day"


def test_a_failed_run_prints_its_error(standfast, tmp_path):
    file = tmp_path / "failing_agent.py"
    file.write_text(
        "from standfast import Agent, FunctionModel\ndef rules(request): raise KeyError('[red]')\n"
        "agent = Agent('failing', model=FunctionModel(rules))\n"
    )
    result = standfast("run", "hi", "--agent", str(file))
    assert (result.exit_code, result.stderr) == (1, "failed: KeyError: '[red]' (--debug shows where)\n")


def test_a_file_with_one_agent_needs_no_attribute(run_json):
    assert run_json("run", "hi", "--agent", AGENT.removesuffix(":cashier"))["status"] == "completed"


@pytest.mark.local
def test_without_a_key_the_embedded_model_answers(standfast, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = standfast("chat", stdin="Say hi.\n")
    assert result.exit_code == 0
    assert "LocalModel" in result.stdout


def test_a_run_is_deleted_after_it_has_ended(run_json, standfast, waiting):
    run = waiting["run_id"]
    refused = standfast("runs", "delete", run, "--yes")
    assert (refused.exit_code, "cancel it" in refused.stderr) == (4, True)
    run_json("runs", "cancel", run, "--now")
    asked = standfast("runs", "delete", run)
    assert (asked.exit_code, "--yes" in asked.stderr) == (2, True)
    assert run_json("runs", "delete", run, "--yes") == {"id": run, "deleted": True}
    assert standfast("runs", "show", run).exit_code == 5
    assert run_json("approvals", "list") == []


def test_runs_are_pruned_by_number_and_age(run_json, standfast, waiting):
    for text in ("one", "two", "three"):
        run_json("run", text, "--agent", AGENT)
    assert standfast("runs", "prune", "--yes").exit_code == 2
    assert standfast("runs", "prune", "--older-than", "soon", "--yes").exit_code == 2
    assert run_json("runs", "prune", "--older-than", "30d", "--yes")["kept"] == 3
    report = run_json("runs", "prune", "--keep", "1", "--yes")
    assert (len(report["deleted"]), report["kept"]) == (2, 1)
    assert [run["status"] for run in run_json("runs", "list")] == ["completed", "waiting"]


def test_a_session_is_deleted_with_its_runs(run_json, standfast):
    run = run_json("run", "hello", "--agent", AGENT, "--session", "s")["run_id"]
    assert run_json("sessions", "delete", "s", "--yes", "--keep-runs")["kept_runs"] == [run]
    run_json("run", "hello", "--agent", AGENT, "--session", "s")
    assert len(run_json("sessions", "delete", "s", "--yes")["deleted_runs"]) == 2
    assert run_json("runs", "list") == []


BOOKKEEPER = str(Path(__file__).parent / "bookkeeper.py")


@pytest.fixture(scope="module")
def uncertain_folder(tmp_path_factory, command_process):
    """A folder with a store that has a call whose process was killed after its effect, and that call's approval.

    It is made once, because the lease of a killed process ends after 10 seconds.
    """
    folder = tmp_path_factory.mktemp("uncertain")
    environment = {"PATH": os.environ["PATH"], "STANDFAST_STORE": f"sqlite:///{folder / 'app.db'}"}

    def run(*words, **variables):
        command = ("-m", "standfast", *words, "--json")
        return command_process.run(*command, directory=folder, environment=environment | variables)

    assert run("run", "book it", "--agent", BOOKKEEPER, DIE="yes").returncode == -signal.SIGKILL
    (stopped,) = json.loads(run("runs", "list").stdout)
    resumed = run("runs", "resume", stopped["id"], "--agent", BOOKKEEPER)
    assert resumed.returncode == 3, resumed.stderr
    return folder, json.loads(resumed.stdout)["approvals"][0]


@pytest.fixture
def uncertain(uncertain_folder, tmp_path, monkeypatch):
    """The pending approval, in the test's own copy of that folder."""
    folder, approval = uncertain_folder
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return approval


def booked(folder):
    return (folder / "books").read_text().split()


def test_a_call_that_may_have_happened_is_shown_as_such_and_not_offered_for_approval(standfast, run_json, uncertain):
    assert uncertain["may_have_happened"] is True
    assert [one["may_have_happened"] for one in run_json("approvals", "list")] == [True]
    assert "may have happened" in standfast("approvals", "list").stdout
    assert "may have happened" in standfast("approvals", "show", uncertain["id"]).stdout
    shown = standfast("runs", "show", uncertain["run_id"])
    assert "may have happened" in shown.stderr
    assert "approvals done ID --output RESULT" in shown.stderr
    assert "approvals not-done ID" in shown.stderr
    assert "approvals approve ID --again" in shown.stderr
    assert "approvals approve ID --agent" not in shown.stderr


def test_approving_a_call_that_may_have_happened_needs_the_word_again(standfast, run_json, uncertain, tmp_path):
    refused = standfast("approvals", "approve", uncertain["id"], "--agent", BOOKKEEPER)
    assert refused.exit_code == 2
    assert "may have happened already" in refused.stderr
    assert "not-done" in refused.stderr
    assert booked(tmp_path) == ["5"]
    run_json("approvals", "approve", uncertain["id"], "--again", "--agent", BOOKKEEPER)
    assert booked(tmp_path) == ["5", "5"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("done", "--output", "receipt 9"), "receipt 9"), (("not-done",), "The call had no effect.")],
)
def test_a_person_says_whether_the_call_happened(run_json, uncertain, tmp_path, words, expected):
    verb, *options = words
    outcome = run_json("approvals", verb, uncertain["id"], *options, "--agent", BOOKKEEPER)
    assert outcome["final_output"] == f"It says: {expected}."
    assert booked(tmp_path) == ["5"]


def test_not_done_and_again_are_only_for_calls_that_may_have_happened(standfast, waiting, paid):
    assert standfast("approvals", "not-done", waiting["id"]).exit_code == 2
    assert standfast("approvals", "approve", waiting["id"], "--again").exit_code == 2
    assert paid() == []
