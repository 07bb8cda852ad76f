"""Workspaces on this machine: files, commands, snapshots, and what they cannot reach."""

import dataclasses
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from standfast.sandbox import (
    Dependencies,
    Dir,
    EntryKind,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    File,
    FileMode,
    GitRepo,
    InvalidManifestPathError,
    LocalDir,
    LocalFile,
    LocalSnapshotSpec,
    Manifest,
    Permissions,
    PtySessionNotFoundError,
    RemoteSnapshotSpec,
    SandboxArchiveLimits,
    SandboxError,
    SandboxPathGrant,
    UnixLocalSandboxClient,
    User,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from standfast.sandbox.errors import InvalidCompressionSchemeError, LocalFileReadError
from standfast.workers.shell import SHELL_POLICY


async def read(session, path):
    return (await session.read(Path(path))).read()


async def wait_until_none_run(session, name):
    while (await session.exec(f"ps -eo stat,comm | grep -v ^Z | grep {name}")).stdout:
        pass


async def create(**manifest):
    return await UnixLocalSandboxClient().create(manifest=Manifest(**manifest))


async def test_a_workspace_starts_with_the_entries_of_its_manifest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "run.sh").write_text("echo ran")
    (tmp_path / "src" / "run.sh").chmod(0o755)
    (tmp_path / "src" / "deep" / "a").write_text("a")
    (tmp_path / "src" / "link").symlink_to("run.sh")
    entries = {
        "text": File(content=b"hello", permissions=Permissions(owner=FileMode.READ)),
        "raw/bytes": File(content=b"\xff\0"),
        "folder": Dir(children={"inner": Dir(children={"x": File(content=b"x")})}),
        "copy": LocalDir(src=Path("src")),
        "one": LocalFile(src=tmp_path / "src" / "deep" / "a"),
    }
    async with await create(entries=entries) as session:
        assert await read(session, "text") == b"hello"
        assert await read(session, "raw/bytes") == b"\xff\0"
        assert await read(session, "folder/inner/x") == b"x"
        assert await read(session, "one") == b"a"
        done = await session.exec("copy/run.sh && cat copy/link copy/deep/a && stat -c %a text")
        assert (done.stdout, done.stderr, done.exit_code) == (b"ran\necho ranaa400\n".replace(b"aa", b"a"), b"", 0)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
async def test_an_entry_cannot_leave_the_workspace(name):
    with pytest.raises(InvalidManifestPathError):
        async with await create(entries={name: File(content=b"")}):
            pass


async def test_local_files_outside_of_the_working_directory_need_a_grant(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "secret").write_text("s")
    monkeypatch.chdir(tmp_path / "here")
    entry = LocalFile(src=tmp_path / "secret")
    with pytest.raises(LocalFileReadError, match="extra_path_grants"):
        async with await create(entries={"x": entry}):
            pass
    (tmp_path / "here" / "way").symlink_to(tmp_path / "secret")
    with pytest.raises(LocalFileReadError, match="extra_path_grants"):
        async with await create(entries={"x": LocalFile(src=Path("way"))}):
            pass
    grant = SandboxPathGrant(path=str(tmp_path), read_only=True)
    async with await create(entries={"x": entry}, extra_path_grants=(grant,)) as session:
        assert await read(session, "x") == b"s"


async def test_a_link_out_of_a_local_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "way").symlink_to("/etc/passwd")
    with pytest.raises(SandboxError, match="link"):
        async with await create(entries={"x": LocalDir(src=Path("folder"))}):
            pass


async def test_a_repository_is_fetched_at_a_ref(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path / "repo", *words], check=True, capture_output=True)

    (tmp_path / "repo" / "docs").mkdir(parents=True)
    (tmp_path / "repo" / "docs" / "a.md").write_text("one")
    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "m")
    repo = {"host": f"file://{tmp_path}", "repo": "repo"}
    entries = {"all": GitRepo(**repo, ref="main"), "docs": GitRepo(**repo, ref="main", subpath="docs")}
    async with await create(entries=entries) as session:
        assert await read(session, "all/docs/a.md") == await read(session, "docs/a.md") == b"one"
        assert [Path(entry.path).name for entry in await session.ls("all")] == ["docs"]
    with pytest.raises(SandboxError, match="git cannot fetch 'absent'"):
        async with await create(entries={"x": GitRepo(**repo, ref="absent")}):
            pass


async def test_files_are_written_listed_moved_and_removed():
    async with await create() as session:
        await session.write(Path("a/b.txt"), io.BytesIO(b"1"))
        await session.mkdir("c/d", parents=True)
        await session.mv("a/b.txt", "c/e")
        [folder, file] = await session.ls("c")
        assert (folder.kind, folder.is_dir(), file.kind, file.size) == (EntryKind.DIRECTORY, True, EntryKind.FILE, 1)
        await session.rm("c", recursive=True)
        assert [entry.path for entry in await session.ls(".")] == [f"{session.state.manifest.root}/a"]
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("c/e"))
        for path in ("/etc/passwd", "../x"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(Path(path))
        with pytest.raises(SandboxError):
            await session.rm("absent")


async def test_commands_have_the_environment_of_the_manifest_and_nothing_of_the_host(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "hunter2")
    async with await create(environment={"value": {"GREETING": "hi"}}) as session:
        done = await session.exec("env; echo $GREETING")
        assert b"hunter2" not in done.stdout
        assert done.stdout.endswith(b"hi\n")
    monkeypatch.setenv("WANTED", "yes")
    client = UnixLocalSandboxClient(host_environment_allowlist=["WANTED"])
    async with await client.create() as session:
        done = await session.exec("echo $WANTED$SECRET_OF_THE_HOST")
        assert done.stdout == b"yes\n"


async def test_commands_reach_neither_files_nor_network_of_the_host(tmp_path):
    (tmp_path / "secret").write_text("s")
    async with await create() as session:
        done = await session.exec(f"cat {tmp_path}/secret; cat /root/.bashrc; ls /home; cat /etc/shadow")
        assert done.stdout == b""
        done = await session.exec("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 80), 1)'")
        assert b"Network is unreachable" in done.stderr
        done = await session.exec("touch /usr/x /x; echo $?")
        assert done.stdout == b"1\n"


async def test_exit_codes_signals_and_output_of_commands_are_distinguished():
    async with await create() as session:
        done = await session.exec("echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code, done.ok()) == (b"out\n", b"err\n", 3, False)
        assert (await session.exec("kill -9 $$")).exit_code == 137
        assert (await session.exec("echo", "two words", "$HOME", shell=False)).stdout == b"two words $HOME\n"
        assert (await session.exec("echo", "$HOME")).stdout == b"$HOME\n"
        assert (await session.exec("cat")).stdout == b""  # its input is closed
        with pytest.raises(ExecTransportError, match="cannot be started"):
            await session.exec("/absent", shell=False)


async def test_a_command_that_takes_too_long_is_killed_with_its_processes():
    async with await create() as session:
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 600 & sleep 600", timeout=0.2)
        await wait_until_none_run(session, "sleep")


async def test_a_program_on_a_terminal_continues_between_calls():
    async with await create() as session:
        update = await session.pty_exec_start("python3 -q", tty=True, yield_time_s=0.1)
        number = update.process_id
        seen = update.output
        while b">>> " not in seen:
            seen += (await session.pty_write_stdin(session_id=number, chars="", yield_time_s=0.1)).output
        seen = b""
        update = await session.pty_write_stdin(
            session_id=number, chars="x = 41; x + 1\nimport os; os.isatty(0)\n", yield_time_s=0.1
        )
        seen = update.output
        while b"True" not in seen:
            seen += (await session.pty_write_stdin(session_id=number, chars="", yield_time_s=0.1)).output
        assert b"42" in seen
        update = await session.pty_write_stdin(session_id=number, chars="\x04", yield_time_s=60)
        assert (update.process_id, update.exit_code) == (None, 0)
        with pytest.raises(PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=number, chars="")


async def test_running_commands_are_ended_together():
    async with await create() as session:
        for _ in range(2):
            update = await session.pty_exec_start("sleep 600", yield_time_s=0)
            assert update.process_id is not None
        await session.pty_terminate_all()
        await wait_until_none_run(session, "sleep")


async def test_long_output_keeps_its_beginning_and_its_end():
    async with await create() as session:
        update = await session.pty_exec_start("seq 1 20000", yield_time_s=60, max_output_tokens=50)
        assert update.original_token_count > 20_000
        assert update.output.startswith(b"Total output lines: 20000\n\n1\n2\n")
        assert update.output.endswith(b"\n20000\n")
        assert len(update.output) < 400


async def test_a_workspace_is_restored_from_its_snapshot(tmp_path):
    client = UnixLocalSandboxClient()
    entries = {"kept": File(content=b"1"), "scratch": File(content=b"new", ephemeral=True)}
    spec = LocalSnapshotSpec(base_path=tmp_path / "snapshots")
    async with await client.create(manifest=Manifest(entries=entries), snapshot=spec) as session:
        await session.exec("echo 2 > kept; echo changed > scratch; mkdir -p sub && printf '\\377' > sub/raw")
        saved = client.serialize_session_state(session.state)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "snapshots").iterdir()} == {0o600}
    async with await client.resume(client.deserialize_session_state(saved)) as session:
        assert await read(session, "kept") == b"2\n"
        assert await read(session, "sub/raw") == b"\xff"
        assert await read(session, "scratch") == b"new"


async def test_a_snapshot_can_be_kept_by_an_object_of_the_program():
    class Bucket(dict):
        async def upload(self, name, data):
            self[name] = data.read()

        async def download(self, name):
            return io.BytesIO(self[name])

        async def exists(self, name):
            return name in self

    client = UnixLocalSandboxClient(dependencies=Dependencies().bind_value("bucket", Bucket()))
    async with await client.create(snapshot=RemoteSnapshotSpec(client_dependency_key="bucket")) as session:
        await session.exec("echo 1 > x")
        state = session.state
    async with await client.resume(state) as session:
        assert await read(session, "x") == b"1\n"


async def test_ephemeral_variables_are_not_saved():
    client = UnixLocalSandboxClient()
    environment = {"value": {"A": "a", "KEY": {"ephemeral": True, "value": "hunter2"}}}
    session = await client.create(manifest=Manifest(environment=environment))
    saved = client.serialize_session_state(session.state)
    assert "hunter2" not in str(saved)
    assert list(client.deserialize_session_state(saved).manifest.environment.normalized()) == ["A"]


def make_tar(name, content=b"x", kind=tarfile.REGTYPE, target=""):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = len(content) if kind == tarfile.REGTYPE else 0, kind, target
        archive.addfile(info, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def make_zip(name, content=b"x"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    buffer.seek(0)
    return buffer


async def test_archives_are_extracted_within_limits():
    async with await create() as session:
        await session.extract("in/one.tar.gz", make_tar("a/b"))
        await session.extract("in/two.zip", make_zip("c/d", b"y"))
        assert (await read(session, "in/a/b"), await read(session, "in/c/d")) == (b"x", b"y")
        assert await read(session, "in/two.zip") == make_zip("c/d", b"y").read()
        escaping = make_zip("../out")
        for bad in (
            make_tar("../out"),
            make_tar("/out"),
            make_tar("l", kind=tarfile.SYMTYPE, target="/etc"),
            escaping,
            io.BytesIO(b"nonsense"),
        ):
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.extract("in/bad.tar" if bad is not escaping else "in/bad.zip", bad)
        with pytest.raises(InvalidCompressionSchemeError):
            await session.extract("in/unknown", io.BytesIO(b"nonsense"))
        for bomb in (make_tar("z", bytes(100_000)), make_zip("z", bytes(100_000))):
            with pytest.raises(WorkspaceArchiveWriteError, match="more than 1000 bytes"):
                await session.extract("in/bomb", bomb, archive_limits=SandboxArchiveLimits(max_extracted_bytes=1000))


async def test_what_a_local_sandbox_does_not_have_is_refused():
    async with await create() as session:
        with pytest.raises(ValueError, match="one account"):
            await session.exec("id", user="ann")
        with pytest.raises(ExposedPortUnavailableError):
            await session.resolve_exposed_port(8080)
    with pytest.raises(ValueError, match="one account"):
        async with await create(users=[User(name="ann")]):
            pass


async def test_granted_paths_are_in_the_sandbox(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "tool").write_text("t")
    (tmp_path / "tool").chmod(0o644)
    grant = SandboxPathGrant(path=str(tmp_path), read_only=True)
    async with await create(extra_path_grants=(grant,)) as session:
        assert await read(session, str(tmp_path / "tool")) == b"t"
        assert (await session.exec(f"echo x > {tmp_path}/tool")).exit_code != 0
        with pytest.raises(InvalidManifestPathError):
            await session.write(tmp_path / "new", io.BytesIO(b""))


async def test_using_a_session_that_is_not_running_is_an_error():
    session = await create()
    assert not await session.running()
    with pytest.raises(ExecTransportError, match="not running"):
        await session.exec("true")
    async with session:
        assert await session.running()
    assert not await session.running()


async def test_a_worker_that_is_killed_ends_the_command_with_an_error():
    async with await create() as session:
        with pytest.raises(ExecTransportError):
            await session.exec("kill -9 -1; sleep 600")


def small_client():
    return UnixLocalSandboxClient(policy=dataclasses.replace(SHELL_POLICY, disk_mb=16))


FILL = "head -c 12000000 /dev/urandom > large && echo kept > small && ln small again && sha256sum large"


async def test_a_session_without_a_snapshot_can_be_closed_with_a_full_disk():
    async with await small_client().create() as session:
        assert (await session.exec("head -c 64000000 /dev/zero > large; ls large")).stdout == b"large\n"


async def test_a_workspace_that_takes_most_of_its_disk_is_kept_and_restored(tmp_path):
    client = small_client()
    async with await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path)) as session:
        digest = (await session.exec(FILL)).stdout
    async with await client.resume(session.state) as resumed:
        done = await resumed.exec("sha256sum large && cat small again && ls -A")
    assert done.stdout == digest + b"kept\nkept\nagain\nlarge\nsmall\n"


async def test_an_archive_that_does_not_fit_is_refused_with_the_reason(tmp_path):
    async with await UnixLocalSandboxClient().create(snapshot=LocalSnapshotSpec(base_path=tmp_path)) as session:
        await session.exec("head -c 30000000 /dev/zero > large")
    with pytest.raises(WorkspaceArchiveWriteError, match="No space left"):
        await (await small_client().resume(session.state)).start()
