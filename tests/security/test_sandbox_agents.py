"""Sandbox agents: what a saved run, a repository, an archive or a command may do to the machine and to the run."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from factories.runs import approve_all
from factories.runtime import reply, tool_calls, wait_for
from standfast import RunConfig, Runner, RunState, Runtime, UserError, function_tool
from standfast.base.errors import Closed
from standfast.sandbox import (
    GitRepo,
    LocalDir,
    LocalFile,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxPathGrant,
    SandboxRunConfig,
    UnixLocalSandboxClient,
)
from standfast.sandbox.archives import read_archive
from standfast.sandbox.errors import ConfigurationError, ExecTransportError, WorkspaceReadNotFoundError
from standfast.sandbox.manifest_entries import SourceRules
from standfast.sandbox.workspace_paths import to_relative_path
from standfast.testing import ScriptedModel


@function_tool(needs_approval=True)
def publish() -> str:
    return "published"


def make_agent(*steps):
    return SandboxAgent("coder", model=ScriptedModel(list(steps)), tools=[publish])


def configure(**settings):
    return RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient(), **settings))


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def secrets(tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "key").write_text("words-of-the-host")
    return folder


def grant(state, secrets):
    state["manifest"]["extra_path_grants"] = [{"path": str(secrets), "read_only": True}]


def copy_file(state, secrets):
    grant(state, secrets)
    state["manifest"]["entries"]["key"] = LocalFile(src=secrets / "key").model_dump(mode="json")


def copy_directory(state, secrets):
    state["manifest"]["entries"]["a"] = {"type": "dir", "children": {"b": LocalDir(src=".").model_dump(mode="json")}}


def fetch_repository(state, secrets):
    entry = GitRepo(host=f"file://{secrets.parent}", repo=secrets.name, ref="main")
    state["manifest"]["entries"]["repo"] = entry.model_dump(mode="json")


def write_elsewhere(state, secrets):
    state["snapshot"]["base_path"] = str(secrets)


@pytest.mark.parametrize("forge", [grant, copy_file, copy_directory, fetch_repository, write_elsewhere])
async def test_a_forged_run_does_not_give_its_sandbox_more_of_the_host(forge, secrets):
    first = await Runner.run(make_agent(tool_calls(("publish", {}, "c1"))), "go", run_config=configure())
    saved = first.to_state().to_json()
    forge(saved["run"]["sandbox"]["session_state"], secrets)
    agent = make_agent(tool_calls(("exec_command", {"cmd": f"cat {secrets}/key"}, "c2")), reply("done"))
    state = await RunState.from_json(agent, saved)
    approve_all(state)
    with pytest.raises(UserError, match="the saved sandbox"):
        await Runner.run(agent, state, run_config=configure())
    assert [path.name for path in secrets.iterdir()] == ["key"]


async def test_a_saved_run_resumes_with_what_the_program_grants(secrets, tmp_path):
    tmp_path.chmod(0o755)
    manifest = Manifest(
        entries={"copy": LocalFile(src=secrets / "key")},
        extra_path_grants=(SandboxPathGrant(path=str(secrets), read_only=True),),
    )
    config = configure(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path / "snapshots"))
    first = await Runner.run(make_agent(tool_calls(("publish", {}, "c1"))), "go", run_config=config)
    agent = make_agent(tool_calls(("exec_command", {"cmd": "cat copy"}, "c2")), reply("done"))
    state = await RunState.from_json(agent, first.to_state().to_json())
    approve_all(state)
    result = await Runner.run(agent, state, run_config=config)
    assert str(result.new_items[-2].output).endswith("words-of-the-host")


@pytest.mark.parametrize("subpath", ["link", "link/secrets", "inside/link/secrets"])
def test_a_link_in_a_repository_does_not_lead_to_files_of_the_host(subpath, secrets, tmp_path):
    repository = tmp_path / "repository"
    (repository / "inside").mkdir(parents=True)
    for link in ("link", "inside/link"):
        (repository / link).symlink_to(secrets.parent)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q", "-b", "main"), ("add", "-A"), (*author, "commit", "-qm", "x")):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    entry = GitRepo(host=f"file://{tmp_path}", repo="repository", ref="main", subpath=subpath)
    with pytest.raises(ConfigurationError, match="has no directory"):
        list(entry.iter_members(to_relative_path("repo"), SourceRules(tmp_path)))


COMMANDS = {
    "times that no clock has": ("touch -d 6000-01-01 late; touch -d 0001-01-01 early", {}),
    "a link to a name that is no text": (r"ln -s $(printf 'a\377b') link", {"link": "valid UTF-8"}),
    "a name that is no text": (r"touch $(printf 'a\377b')", {"a?b": "valid UTF-8"}),
    "files that may not be read": ("echo q > q; mkdir z; echo a > z/a; chmod 0 q z", {}),
    "a name with control characters": (r"touch $(printf 'a\nb\033[2J')", {}),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_command_cannot_leave_a_workspace_that_is_not_saved(name, tmp_path):
    line, unkept = COMMANDS[name]
    steps = [
        tool_calls(("exec_command", {"cmd": f"echo kept > kept; {line}"}, "c1")),
        tool_calls(("publish", {}, "c2")),
    ]
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[make_agent(*steps)], run_config=configure()) as runtime:
        run = await runtime.start("coder", "go")
        outcome = await wait_for(run.wait())
        assert outcome.status == "waiting", outcome.error
        [saved] = [event.data for event in [one async for one in run.events(until="pause")] if "saved" in event.type]
        assert saved["unkept"].keys() == unkept.keys()
        assert all(reason in saved["unkept"][path] for path, reason in unkept.items())
    steps = [tool_calls(("exec_command", {"cmd": "cat kept; chmod -f 700 z q; cat z/a q"}, "c3")), reply("done")]
    async with Runtime.open(url, agents=[make_agent(*steps)], run_config=configure()) as runtime:
        await runtime.decide(outcome.approvals[0].id, "approve")
        run = await runtime.run(run.run_id)
        assert (await wait_for(run.wait())).status == "completed"
        texts = [str(event.data) async for event in run.events()]
        expected = r"kept\na\nq\n" if "read" in name else r"kept\n"
        assert any(expected in text for text in texts)


_EXTRACT = """
import asyncio, io, resource, sys
from standfast.sandbox import UnixLocalSandboxClient

async def main():
    async with await UnixLocalSandboxClient().create() as session:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open(sys.argv[1], "rb") as file:
            try:
                await session.extract(sys.argv[1].rpartition("/")[2], file)
            except Exception as error:
                print(type(error).__name__)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_grows_is_not_kept_in_the_memory_of_the_host(kind, tmp_path):
    path = tmp_path / f"bomb.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as file:
            for _ in range(400):
                file.write(bytes(1 << 20))
    else:
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            info = tarfile.TarInfo("zeros")
            info.size = 400 << 20
            with open("/dev/zero", "rb") as zeros:
                archive.addfile(info, zeros)
    done = subprocess.run(
        [sys.executable, "-c", _EXTRACT, path], capture_output=True, text=True, timeout=300, env=os.environ, check=False
    )
    error, grown = done.stdout.split()
    assert error == "WorkspaceArchiveWriteError"  # the workspace has 256 MB
    assert int(grown) < 100


_PERSIST = """
import asyncio, resource
from standfast.sandbox import UnixLocalSandboxClient

async def main():
    async with await UnixLocalSandboxClient().create() as session:
        await session.exec("truncate -s 100M a b c")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with await session.persist_workspace() as archive:
            print(archive.seek(0, 2) >> 20)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)

asyncio.run(main())
"""


def test_a_workspace_is_not_archived_in_the_memory_of_the_host():
    """Files with holes take no room of the workspace, and neither do further names of one."""
    done = subprocess.run([sys.executable, "-c", _PERSIST], capture_output=True, text=True, timeout=300, check=False)
    size, grown = map(int, done.stdout.split())
    assert size == 300
    assert grown < 100


@pytest.fixture
async def sandbox():
    async with await UnixLocalSandboxClient().create() as session:
        yield session


async def replace_in_worker(sandbox, code):
    """Replace what the host calls, as a command can that writes to the memory or the imports of its parent."""
    assert (await sandbox._worker.run(code)).error is None


async def test_a_command_that_leaves_a_full_pipe_ends(sandbox):
    code = "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, b'x' * 600_000)"
    result = await wait_for(sandbox.exec("python3", "-c", code, shell=False))
    assert (result.exit_code, len(result.stdout)) == (0, 600_000)


async def test_input_that_a_command_does_not_read_does_not_keep_the_caller(sandbox):
    update = await sandbox.pty_exec_start("sleep 1000", yield_time_s=0.01)
    with pytest.raises(ExecTransportError, match="does not read its input"):
        await wait_for(sandbox.pty_write_stdin(session_id=update.process_id, chars="x" * 300_000, yield_time_s=0.1))
    assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


async def test_a_directory_whose_names_are_too_long_is_not_listed(sandbox):
    await sandbox.exec("python3 -c \"for n in range(20000): open('y' * 200 + str(n), 'w').close()\"")
    with pytest.raises(WorkspaceReadNotFoundError):
        await sandbox.ls(".")
    assert len((await sandbox.exec("ls | wc -l")).stdout) > 0


@pytest.mark.parametrize("answer", ["7", "[['x', 'y'], None, 0]", "[[b''], 'zero', 0]", "[b'', None]"])
async def test_a_replaced_function_of_commands_is_an_error_of_the_sandbox(sandbox, answer):
    await replace_in_worker(sandbox, f"def poll(*arguments): return {answer}")
    with pytest.raises(ExecTransportError, match="can no longer be used"):
        await wait_for(sandbox.exec("true"))


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("list_directory", "7"),
        ("list_directory", "[['name', 'mode', {}, [], 'size']]"),
        ("remove", "7"),
        ("read_archive", "('text', None)"),
        ("read_archive", "7"),
    ],
)
async def test_a_replaced_function_of_files_is_an_error_of_the_sandbox(sandbox, function, answer):
    await replace_in_worker(sandbox, f"def {function}(*arguments): return {answer}")
    work = {"list_directory": sandbox.ls, "remove": sandbox.rm}.get(function)
    with pytest.raises(Closed, match="can no longer be used"):
        await (work("x") if work else sandbox.persist_workspace())


def test_an_archive_of_too_many_entries_is_not_read_to_its_end():
    """A sandbox that forges its archive could send millions, each of which takes a kilobyte of the host."""

    class Headers(io.RawIOBase):
        read_bytes = 0

        def read(self, size=-1):
            self.read_bytes += size
            return tarfile.TarInfo(f"f{self.read_bytes}").tobuf(tarfile.USTAR_FORMAT)[:size]

        def seekable(self):
            return True

        def seek(self, position, whence=0):
            return position

        def tell(self):
            return self.read_bytes

    endless = Headers()
    with pytest.raises(ValueError, match="more than 1000 files"):
        read_archive(endless, max_entries=1000)
    assert endless.read_bytes < 1100 * 512
