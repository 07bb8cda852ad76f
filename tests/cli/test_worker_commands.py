"""``standfast workers`` and ``standfast doctor``, with real workers."""

import asyncio
import json
import os
from importlib.metadata import Distribution

import pytest

import standfast as package
from standfast.cli.commands.doctor import find_source
from standfast.workers import WorkerSession


def test_code_runs_and_its_value_is_printed(standfast, run_json):
    result = standfast("workers", "exec", "print('hi'); 6 * 7")
    assert (result.exit_code, result.stdout) == (0, "hi\n42\n")
    answer = run_json("workers", "exec", "print('hi'); 6 * 7")
    assert (answer["ok"], answer["repr"], answer["stdout"], answer["state"]) == (True, "42", "hi\n", "preserved")


def test_failing_code_fails_the_command_with_its_traceback(standfast, run_json):
    result = standfast("workers", "exec", "1/0")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr
    assert run_json("workers", "exec", "1/0", code=1)["error"]["type"] == "ZeroDivisionError"


def test_code_comes_from_a_file_or_from_standard_input(standfast, tmp_path):
    (tmp_path / "code.py").write_text("print(input('name? '))")
    assert "ann" in standfast("workers", "exec", "--file", str(tmp_path / "code.py"), stdin="ann\n").stdout
    assert standfast("workers", "exec", "-", stdin="2 + 2").stdout == "4\n"
    assert standfast("workers", "exec").exit_code == 2


def test_a_host_that_cannot_be_one_is_refused(standfast):
    result = standfast("workers", "exec", "--network", "bad host!", "1")
    assert result.exit_code == 2
    assert "'bad host!' is not a host name" in result.stderr


def test_a_weaker_sandbox_has_to_be_accepted_by_name(standfast):
    assert standfast("workers", "exec", "--require", "plain", "6 * 7").stdout == "42\n"
    result = standfast("workers", "exec", "--require", "some", "6 * 7")
    assert result.exit_code == 2
    assert "unknown sandbox level" in result.stderr


def test_a_timeout_ends_the_code(standfast):
    result = standfast("workers", "exec", "while True: pass", "--timeout", "0.3")
    assert result.exit_code == 1


def test_the_prompt_keeps_variables_and_survives_errors_and_lost_workers(standfast):
    lines = (
        "x = 20\ndef twice():\n    return 2 * x\n\ntwice() + 2\n1/0\nx\nimport os; os.kill(os.getpid(), 9)\n'again'\n"
    )
    result = standfast("workers", "repl", stdin=lines)
    assert result.exit_code == 0
    assert "42" in result.stdout
    assert "20" in result.stdout
    assert "ZeroDivisionError" in result.stderr
    assert "variables" in result.stderr
    assert "'again'" in result.stdout


def test_the_prompt_answers_a_program_with_a_line_per_statement(standfast):
    lines = standfast("workers", "repl", "--json", stdin="x = 20\nx + 1\n").stdout.splitlines()
    assert [json.loads(line)["repr"] for line in lines] == ["", "21"]


def test_input_that_is_not_allowed_is_reported(standfast):
    result = standfast("workers", "exec", "input()", stdin="")
    assert result.exit_code == 2
    assert "asks for input" in result.stderr


def test_a_module_that_cannot_be_imported_beforehand_is_named(standfast):
    result = standfast("workers", "exec", "1", "--preload", "no_such_module")
    assert result.exit_code == 0
    assert "no_such_module" in result.stderr


async def test_running_workers_are_listed(run_json):
    async with WorkerSession() as session:
        await session.run("1")
        listed = await asyncio.to_thread(run_json, "workers", "list")
    own, roles = {os.getpid()}, []
    while found := [one for one in listed if one["parent"] in own and one["pid"] not in own]:
        for process in found:  # other programs on this machine may have workers, too
            own.add(process["pid"])
            roles.append(process["role"])
            assert process["memory_mb"] > 0
    assert sorted(set(roles)) == ["fork-server", "supervisor", "worker"]
    assert (roles.count("supervisor"), roles.count("worker")) == (1, 1)


def test_the_doctor_reports_the_sandbox_and_the_extras(run_json, standfast):
    report = run_json("doctor")
    assert report["versions"]["standfast"] == package.__version__
    assert report["sandbox"]["level"] is not None
    assert report["extras"]["cli"] == {"installed": True, "missing": [], "for": "the command line"}
    assert "sandbox level" in standfast("doctor").stdout
    assert run_json("workers", "doctor")["level"] == report["sandbox"]["level"]


@pytest.mark.parametrize("is_clone", [True, False])
def test_the_doctor_names_the_clone_that_standfast_was_installed_from(is_clone, tmp_path):
    facts = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    (tmp_path / "METADATA").write_text("Name: standfast\nVersion: 0.1.0\n")
    (tmp_path / "direct_url.json").write_text(json.dumps(facts if is_clone else {"url": "https://host/x.whl"}))
    assert find_source(Distribution.at(tmp_path)) == (str(tmp_path) if is_clone else "standfast")


def test_the_version(run_json, standfast):
    assert run_json("version") == {"version": package.__version__}
    assert standfast("--version").stdout == standfast("version").stdout == f"standfast {package.__version__}\n"
