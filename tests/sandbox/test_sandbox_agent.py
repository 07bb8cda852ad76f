"""Agents in a sandbox: the tools of the model, the owner of the workspace, and how a run pauses and resumes."""

import base64
import json
from pathlib import Path

import pytest

from factories.runs import approve_all
from standfast import Agent, InvalidDeclaration, RunConfig, Runner, RunState, UserError, function_tool
from standfast.sandbox import (
    Dir,
    File,
    LocalDir,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxArchiveLimits,
    SandboxRunConfig,
    UnixLocalSandboxClient,
)
from standfast.sandbox.capabilities import (
    Capabilities,
    Capability,
    Compaction,
    Filesystem,
    LocalDirLazySkillSource,
    SandboxApplyPatchTool,
    Shell,
    Skill,
    Skills,
    StaticCompactionPolicy,
)
from standfast.testing import ScriptedModel, assistant_message, function_call

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def run_command(command, call_id="c1", **arguments):
    return function_call("exec_command", {"cmd": command, **arguments}, call_id=call_id)


def local(**settings):
    return RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient(), **settings))


def outputs(result):
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


async def test_the_model_is_offered_instructions_tools_and_settings_of_the_workspace():
    @function_tool
    def own() -> str:
        return ""

    model = ScriptedModel([[assistant_message("done")]])
    agent = SandboxAgent(
        "coder",
        instructions="Be brief.",
        tools=[own],
        model=model,
        default_manifest=Manifest(
            entries={"notes.txt": File(content=b"hi", description="some notes"), "d": Dir(children={})}
        ),
    )
    assert (await Runner.run(agent, "go", run_config=local())).final_output == "done"
    [request] = model.calls
    names = [tool.name for tool in request.tools]
    assert names[0] == "own"
    assert {"view_image", "exec_command", "write_stdin"} <= set(names)
    text = request.system_instructions
    assert text.index("sandbox") < text.index("# Agent instructions\n\nBe brief.") < text.index("Shell commands")
    assert "└── notes.txt  # /session/work/notes.txt — some notes" in text
    assert request.model_settings.extra_args == {
        "context_management": [{"type": "compaction", "compact_threshold": 240_000}]
    }


async def test_commands_files_and_pictures_belong_to_the_workspace():
    steps = [
        [run_command("echo out; echo err >&2; exit 3")],
        [run_command("pwd", workdir="d"), run_command("pwd", "c2", workdir="/etc")],
        [function_call("view_image", {"path": "p.png"}, call_id="c1")],
        [function_call("view_image", {"path": "notes.txt"}, call_id="c1")],
        [function_call("view_image", {"path": "../x"}, call_id="c1")],
        [assistant_message("done")],
    ]
    manifest = Manifest(entries={"notes.txt": File(content=b"hi"), "p.png": File(content=PIXEL), "d": Dir(children={})})
    agent = SandboxAgent("coder", model=ScriptedModel(steps), default_manifest=manifest)
    first, inside, outside, picture, text, away = outputs(await Runner.run(agent, "go", run_config=local()))
    assert first.splitlines()[2:] == ["Process exited with code 3", "Output:", "out", "err"]
    assert inside.endswith("/session/work/d\n")
    assert outside.startswith("Invalid workdir")
    assert picture.image_url.startswith("data:image/png;base64,")
    assert "not a supported image" in text
    assert "outside of the workspace" in away


def patch(*lines, call_id="c1"):
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return {"type": "custom_tool_call", "call_id": call_id, "name": "apply_patch", "input": text}


async def test_the_model_patches_files():
    steps = [
        [patch("*** Update File: a", "@@", " one", "-two", "+TWO", "*** Add File: n/b", "+new", "*** Delete File: c")],
        [patch("*** Update File: a", "*** Move to: d", "@@", "-one", "+ONE")],
        [patch("*** Update File: absent", "@@", "-x", "+y")],
        [patch("*** Add File: ../x", "+1")],
        [patch("*** Add File: d", "+1")],
        [patch("*** Update File: d", "@@", "-absent", "+y")],
        [{"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "nonsense"}],
        [run_command("find . -type f | sort; cat d n/b")],
        [assistant_message("done")],
    ]
    manifest = Manifest(entries={"a": File(content=b"one\ntwo\n"), "c": File(content=b"x")})
    agent = SandboxAgent("coder", model=ScriptedModel(steps), default_manifest=manifest)
    *texts, listing = outputs(await Runner.run(agent, "go", run_config=local()))
    assert texts[0] == "Updated a\nCreated n/b\nDeleted c"
    assert texts[1] == "Updated a\nMoved a to d"
    for text, expected in zip(texts[2:], ["no file", "not a path", "already exists", "d: ", "must begin"], strict=True):
        assert expected in text
    assert listing.endswith("Output:\n./d\n./n/b\nONE\nTWO\nnew")


async def test_a_person_approves_a_patch_by_its_files():
    asked = []

    def ask(tools):
        async def judge(context, operation, call_id):
            asked.append((operation.type, operation.path))
            return operation.path == "secret"

        tools.apply_patch = SandboxApplyPatchTool(session=tools.view_image.session, needs_approval=judge)

    steps = [[patch("*** Add File: open", "+1")], [patch("*** Add File: secret", "+1", call_id="c2")]]
    agent = SandboxAgent("coder", model=ScriptedModel(steps), capabilities=[Filesystem(configure_tools=ask)])
    result = await Runner.run(agent, "go", run_config=local())
    assert [item.tool_name for item in result.interruptions] == ["apply_patch"]
    assert asked[-1] == ("create_file", "secret")


async def test_a_running_command_is_written_to():
    write = function_call("write_stdin", {"session_id": 1, "chars": "hello\n", "yield_time_ms": 1000}, call_id="c2")
    absent = function_call("write_stdin", {"session_id": 9}, call_id="c3")
    model = ScriptedModel([[run_command("cat", yield_time_ms=50)], [write], [absent], [assistant_message("done")]])
    agent = SandboxAgent("coder", model=model)
    first, second, third = outputs(await Runner.run(agent, "go", run_config=local()))
    assert "Process running with session ID 1\n" in first
    assert second.endswith("Output:\nhello\n")
    assert third.endswith("write_stdin failed: PTY session not found: 9")


async def test_a_person_approves_commands_and_the_run_resumes_with_its_files(state_home):
    def ask(tools):
        tools.exec_command.needs_approval = True

    steps = [
        [function_call("write", {}, call_id="c0")],
        [run_command("cat made; echo later > made")],
        [run_command("cat made", "c2")],
        [assistant_message("done")],
    ]

    def make_agent(*steps):
        return SandboxAgent("coder", model=ScriptedModel(steps), capabilities=[Shell(configure_tools=ask), Writer()])

    first = await Runner.run(make_agent(*steps[:2]), "go", run_config=local())
    assert [item.tool_name for item in first.interruptions] == ["exec_command"]
    [kept] = (state_home / "standfast" / "sandboxes").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    saved = first.to_state().to_string()
    agent = make_agent(*steps[2:])
    state = await RunState.from_string(agent, saved)
    approve_all(state)
    second = await Runner.run(agent, state, run_config=local())
    assert outputs(second)[-1].endswith("Output:\nfirst")
    state = second.to_state()
    approve_all(state)
    third = await Runner.run(agent, state, run_config=local())
    assert third.final_output == "done"
    assert outputs(third)[-1].endswith("Output:\nlater\n")
    assert list((state_home / "standfast" / "sandboxes").iterdir()) == []


class Writer(Capability):
    type: str = "writer"

    def tools(self):
        @function_tool
        async def write() -> str:
            import io

            await self.require_session().write(Path("made"), io.BytesIO(b"first"))
            return "written"

        return [write]


async def test_a_session_of_the_program_is_used_and_left_open():
    client = UnixLocalSandboxClient()
    async with await client.create() as session:
        config = RunConfig(sandbox=SandboxRunConfig(session=session))
        for command in ("echo 1 > x", "cat x"):
            agent = SandboxAgent("coder", model=ScriptedModel([[run_command(command)], [assistant_message("done")]]))
            result = await Runner.run(agent, "go", run_config=config)
        assert outputs(result)[0].endswith("Output:\n1\n")
        assert await session.running()


async def test_relative_paths_start_at_cwd():
    manifest = Manifest(entries={"a": Dir(children={"x": File(content=b"")})})
    agent = SandboxAgent("coder", model=ScriptedModel([[run_command("pwd; ls")], [assistant_message("done")]]))
    result = await Runner.run(agent, "go", run_config=local(manifest=manifest, cwd="a"))
    assert outputs(result)[0].endswith("Output:\n/session/work/a\nx\n")
    for cwd in ("/a", "../a", "absent", ""):
        with pytest.raises(Exception, match=r"cwd|path|not found"):
            await Runner.run(agent, "go", run_config=local(manifest=manifest, cwd=cwd))


async def test_a_snapshot_of_the_program_is_kept_after_the_run(tmp_path):
    spec = LocalSnapshotSpec(base_path=tmp_path / "kept")
    agent = SandboxAgent("coder", model=ScriptedModel([[run_command("echo 1 > x")], [assistant_message("done")]]))
    await Runner.run(agent, "go", run_config=local(snapshot=spec))
    assert len(list((tmp_path / "kept").iterdir())) == 1


async def test_a_handoff_continues_in_the_same_workspace():
    second = SandboxAgent("second", model=ScriptedModel([[run_command("cat x", "c9")], [assistant_message("done")]]))
    first = SandboxAgent(
        "first",
        handoffs=[second],
        model=ScriptedModel([[run_command("echo 1 > x")], [function_call("transfer_to_second", {}, call_id="h")]]),
    )
    result = await Runner.run(first, "go", run_config=local())
    assert (result.final_output, result.last_agent) == ("done", second)
    assert any(str(output).endswith("Output:\n1\n") for output in outputs(result))


@pytest.mark.parametrize("desk_is_sandboxed", [False, True])
async def test_the_files_and_variables_of_an_agent_are_there_after_a_handoff(desk_is_sandboxed):
    manifest = Manifest(
        entries={"a.txt": File(content=b"one\n"), "d": Dir(children={"b.txt": File(content=b"two\n")})},
        environment={"value": {"COLOR": "red"}},
    )
    steps = [[run_command("cat a.txt d/b.txt; echo $COLOR; echo mine > a.txt")], [run_command("cat a.txt", "c2")]]
    worker = SandboxAgent(
        "worker",
        default_manifest=manifest,
        model=ScriptedModel([*steps, [assistant_message("done")]]),
        handoff_description="works",
    )
    desk_type = SandboxAgent if desk_is_sandboxed else Agent
    desk = desk_type(
        "desk", handoffs=[worker], model=ScriptedModel([[function_call("transfer_to_worker", {}, call_id="h")]])
    )
    result = await Runner.run(desk, "go", run_config=local())
    seen = [str(output).partition("Output:\n")[2] for output in outputs(result)]
    assert seen == ["one\ntwo\nred\n", "mine\n"]


async def test_an_agent_as_a_tool_shares_the_workspace_of_its_run():
    helper = SandboxAgent("helper", model=ScriptedModel([[run_command("cat x", "n1")], [assistant_message("read it")]]))
    outer = SandboxAgent(
        "outer",
        tools=[helper.as_tool("ask_helper", "Ask.")],
        model=ScriptedModel(
            [
                [run_command("echo 1 > x")],
                [function_call("ask_helper", {"input": "look"}, call_id="c2")],
                [assistant_message("done")],
            ]
        ),
    )
    result = await Runner.run(outer, "go", run_config=local())
    assert outputs(result)[-1] == "read it"
    assert "Output:\n1\n" in json.dumps(helper.model.calls[1].input, default=str).encode().decode("unicode_escape")


@pytest.fixture
def skills(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "skills" / "fixer"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: fixer\ndescription: Fixes things\n---\nDo it.\n")
    (folder / "scripts" / "fix.sh").write_text("echo fixed")
    return LocalDir(src=Path("skills"))


async def test_lazy_skills_are_listed_and_loaded_one_by_one(skills):
    model = ScriptedModel(
        [
            [run_command("ls -A")],
            [function_call("load_skill", {"skill_name": "fixer"}, call_id="c2")],
            [function_call("load_skill", {"skill_name": "absent"}, call_id="c3")],
            [run_command("sh .agents/fixer/scripts/fix.sh", "c4")],
            [assistant_message("done")],
        ]
    )
    capability = Skills(lazy_from=LocalDirLazySkillSource(source=skills))
    agent = SandboxAgent("coder", model=model, capabilities=[*Capabilities.default(), capability])
    empty, loaded, missing, fixed = outputs(await Runner.run(agent, "go", run_config=local()))
    assert empty.endswith("Output:\n")
    assert loaded == {"status": "loaded", "skill_name": "fixer", "path": ".agents/fixer"}
    assert missing["status"] == "error"
    assert fixed.endswith("fixed\n")
    assert "- fixer: Fixes things (file: .agents/fixer)" in model.calls[0].system_instructions


async def test_skills_can_be_copied_at_the_start(skills):
    written = Skill(name="writer", description="Writes", content="Write.", scripts={"w.sh": File(content=b"echo w")})
    for capability, path in (
        (Skills(from_=skills), "fixer/scripts/fix.sh"),
        (Skills(skills=[written]), "writer/scripts/w.sh"),
    ):
        model = ScriptedModel([[run_command(f"sh .agents/{path}")], [assistant_message("done")]])
        agent = SandboxAgent("coder", model=model, capabilities=[Shell(), capability])
        [done] = outputs(await Runner.run(agent, "go", run_config=local()))
        assert "Process exited with code 0" in done
        assert path.split("/")[0] in model.calls[0].system_instructions


async def test_items_before_a_compaction_are_not_sent():
    model = ScriptedModel([[assistant_message("done")]])
    agent = SandboxAgent("coder", model=model, capabilities=[Compaction(policy=StaticCompactionPolicy(threshold=1000))])
    given = [
        {"role": "user", "content": "old"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"},
        {"role": "user", "content": "new"},
    ]
    await Runner.run(agent, given, run_config=local())
    assert model.calls[0].input == given[1:]
    assert model.calls[0].model_settings.extra_args["context_management"][0]["compact_threshold"] == 1000


async def test_a_failed_run_can_be_resumed_with_its_files():
    @function_tool(failure_error_function=None)
    def fail() -> str:
        raise RuntimeError("no")

    steps = [[run_command("echo 1 > x")], [function_call("fail", {}, call_id="c2")]]
    agent = SandboxAgent("coder", tools=[fail], model=ScriptedModel([*steps, [assistant_message("done")]]))
    with pytest.raises(Exception, match="no") as caught:
        await Runner.run(agent, "go", run_config=local())
    state = caught.value.run_data.state
    assert state.to_json()["run"]["sandbox"]["backend_id"] == "unix_local"


async def test_streamed_runs_close_their_sandbox():
    agent = SandboxAgent("coder", model=ScriptedModel([[run_command("echo 1")], [assistant_message("done")]]))
    result = Runner.run_streamed(agent, "go", run_config=local())
    assert [event async for event in result.stream_events()]
    assert result.final_output == "done"


async def test_the_error_for_an_agent_without_a_sandbox_names_the_option():
    with pytest.raises(UserError, match="SandboxRunConfig"):
        await Runner.run(SandboxAgent("coder", model=ScriptedModel([])), "go")
    with pytest.raises(UserError, match="client or a session"):
        await Runner.run(SandboxAgent("c", model=ScriptedModel([])), "go", run_config={"sandbox": SandboxRunConfig()})


async def test_plain_agents_run_beside_a_sandbox():
    agent = Agent("plain", model=ScriptedModel([[assistant_message("done")]]))
    assert (await Runner.run(agent, "go", run_config=local())).final_output == "done"


def test_declarations_are_checked():
    with pytest.raises(InvalidDeclaration, match="capabilities"):
        SandboxAgent("a", capabilities=["shell"])
    with pytest.raises(Exception, match="exactly one"):
        Skills()


async def test_settings_may_be_dicts():
    config = RunConfig(
        sandbox={"manifest": {"entries": {"a": {"type": "file", "content": "x"}}}, "archive_limits": {"max_members": 3}}
    )
    assert config.sandbox == SandboxRunConfig(
        manifest=Manifest(entries={"a": File(content=b"x")}), archive_limits=SandboxArchiveLimits(max_members=3)
    )
    assert SandboxAgent(name="a", default_manifest={"root": "/w"}).default_manifest == Manifest(root="/w")
    with pytest.raises(TypeError, match="nope"):
        RunConfig(sandbox={"nope": 1})
    with pytest.raises(TypeError, match="int"):
        RunConfig(sandbox=5)
