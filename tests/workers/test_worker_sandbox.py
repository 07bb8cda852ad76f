"""Attempts to escape from the full sandbox, one by one."""

import asyncio
import os
import pwd
import socket
import sys
import tempfile
import uuid
import venv
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from factories.workers import list_child_pids, run_refused
from standfast.base.errors import InvalidInput
from standfast.workers import SandboxPolicy, SandboxUnavailable, SessionConfig, WorkerSession, probe_sandbox
from standfast.workers.child.sandbox import confinement

# What of /tmp a worker must see to have its interpreter, when these tests themselves lie there.
INTERPRETER_BELOW_TMP = {
    place.parts[2] for place in map(Path, (sys.prefix, sys.base_prefix)) if place.parts[:2] == ("/", "tmp")
}


@pytest.fixture
async def inside(sandboxed):
    return await sandboxed()


async def test_the_reached_level_is_reported(inside):
    assert inside.info.metadata["sandbox"] == "namespaces"
    assert describe_weaknesses(inside.info.metadata["sandbox_notes"]) == []


def describe_weaknesses(notes: tuple[str, ...]) -> list[str]:
    """Return the notes without those about folders of an editable install, as these tests themselves run from one."""
    return [note for note in notes if "is not visible" not in note]


async def test_the_home_directory_cannot_be_read(inside):
    home = pwd.getpwuid(os.getuid()).pw_dir
    for path in (f"{home}/.bashrc", f"{home}/.profile"):
        assert await run_refused(inside, f"open({path!r})") in ("FileNotFoundError", "PermissionError")
    listed = await inside.run(f"import os\ntry:\n    r = os.listdir({home!r})\nexcept OSError:\n    r = []\nr")
    assert set(listed.value) <= {".pyenv", ".local", ".cache"}, "only what leads to the interpreter"


async def test_files_of_the_host_do_not_exist_in_the_sandbox(inside, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o644)
    assert await run_refused(inside, f"open({str(secret)!r})") == "FileNotFoundError"
    assert (await inside.run("import os; os.path.exists('/etc/shadow')")).value is False


@pytest.mark.parametrize("path", ["/usr/x", "/x", "/etc/passwd", "/dev/x", "/proc/sys/kernel/hostname"])
async def test_nothing_outside_the_session_can_be_written(inside, path):
    assert await run_refused(inside, f"open({path!r}, 'w').write('x')") in (
        "PermissionError",
        "OSError",
        "FileNotFoundError",
    )


async def test_the_interpreter_cannot_be_changed(inside):
    code = "import os, sys\nfor p in sys.path:\n    if os.path.isdir(p) and not p.startswith('/session'):\n        assert not os.access(p, os.W_OK), p"
    assert (await inside.run(code)).ok


async def test_the_session_has_its_own_temporary_and_working_directories(sandboxed):
    one, two = await sandboxed(), await sandboxed()
    name = uuid.uuid4().hex
    written = await one.run(
        "import tempfile\nopen('mine', 'w').write('1')\n"
        f"open(tempfile.gettempdir() + '/{name}', 'w').write('2')\ntempfile.mkstemp()"
    )
    assert written.error is None
    code = "import os, tempfile; [os.listdir('.'), os.listdir(tempfile.gettempdir()), os.getcwd()]"
    here, temporary, where = (await two.run(code)).value
    assert (here, where) == ([], "/session/work")
    assert set(temporary) <= INTERPRETER_BELOW_TMP
    assert not os.path.exists(f"/tmp/{name}")


@pytest.mark.parametrize(
    "code",
    [
        "socket.create_connection(('127.0.0.1', PORT), timeout=2)",
        "socket.create_connection(('192.0.2.1', 53), timeout=2)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).connect((2, 1))",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.getaddrinfo('example.com', 80)",
    ],
)
async def test_nothing_can_be_connected_to(inside, code):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await run_refused(inside, "import socket\n" + code.replace("PORT", str(port))) in (
            "OSError",
            "ConnectionRefusedError",
            "gaierror",
            "TimeoutError",
        )


async def test_unix_sockets_of_the_host_cannot_be_reached(inside, tmp_path):
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        path = f"/tmp/standfast-test-{os.getpid()}.sock"
        named.bind(path)
        named.listen()
        os.chmod(path, 0o777)
        abstract.bind("\0standfast-test-abstract")
        abstract.listen()
        try:
            for address in (path, "\0standfast-test-abstract"):
                code = f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})"
                assert await run_refused(inside, code) in (
                    "FileNotFoundError",
                    "ConnectionRefusedError",
                    "PermissionError",
                )
        finally:
            os.unlink(path)


async def test_the_host_cannot_be_killed_or_seen(inside):
    assert await run_refused(inside, f"import os; os.kill({os.getpid()}, 0)") in (
        "ProcessLookupError",
        "PermissionError",
    )
    assert (await inside.run("import os; sorted(p for p in os.listdir('/proc') if p.isdigit())")).value == [
        "1",
        "2",
    ]


async def test_the_supervisor_cannot_be_killed_or_read(inside):
    result = await inside.run("import os\ntry:\n    os.kill(1, 9)\nexcept OSError: pass\nos.path.exists('/proc/1')")
    assert result.value is True
    for name in ("mem", "environ", "maps", "fd/3"):
        assert await run_refused(inside, f"open('/proc/1/{name}', 'rb').read(10)") in (
            "PermissionError",
            "FileNotFoundError",
        )


def number(x86_64: int, aarch64: int) -> int:
    """Of a system call, on this machine."""
    return aarch64 if os.uname().machine == "aarch64" else x86_64


SYSCALLS = {
    "ptrace": "libc.ptrace(16, 1, 0, 0)",
    "mount": "libc.mount(b'none', b'/session/tmp', b'tmpfs', 0, None)",
    "umount": "libc.umount2(b'/proc', 2)",
    "unshare": "libc.unshare(0x10000000)",
    "setns": "libc.setns(0, 0)",
    "chroot": "libc.chroot(b'/session')",
    "io_uring_setup": "libc.syscall(425, 8, ctypes.byref((ctypes.c_char * 120)()))",
    "bpf": f"libc.syscall({number(321, 280)}, 0, 0, 0)",
    "userfaultfd": f"libc.syscall({number(323, 282)}, 0)",
    "keyctl": f"libc.syscall({number(250, 219)}, 0, -3, 0)",
    "perf_event_open": f"libc.syscall({number(298, 241)}, 0, 0, -1, -1, 0)",
    "process_vm_readv": f"libc.syscall({number(310, 270)}, 1, 0, 0, 0, 0, 0)",
    "open_by_handle_at": f"libc.syscall({number(304, 265)}, -1, 0, 0)",
    "kexec_load": f"libc.syscall({number(246, 104)}, 0, 0, 0, 0)",
    "pidfd_getfd": "libc.syscall(438, 0, 0, 0)",
    "personality": "libc.personality(0x0400000)",
    "shmget": "libc.shmget(0, 4096, 0o1600)",
    "kcmp": f"libc.syscall({number(312, 272)}, 1, 2, 0, 0, 0)",
    "clone_newuser": f"libc.syscall({number(56, 220)}, 0x10000000 | 17, 0, 0, 0, 0)",
}


@pytest.mark.parametrize("name", SYSCALLS)
async def test_a_dangerous_system_call_is_refused(inside, name):
    code = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nr = {SYSCALLS[name]}\n[r, ctypes.get_errno()]"
    assert (await inside.run(code)).value == [-1, 1]


async def test_anonymous_memory_files_are_not_available(inside):
    result = await inside.run("import os; os.memfd_create('x')")
    assert result.error.exception_type == "OSError"
    assert "not implemented" in result.error.exception_message
    code = "import ctypes\nback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1); back(41)"
    assert (await inside.run(code)).value == 42, "what libraries use it for works without"


async def test_clone3_is_answered_so_that_libc_falls_back(inside):
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n[libc.syscall(435, 0, 0), ctypes.get_errno()]"
    assert (await inside.run(code)).value == [-1, 38]
    code = "import threading; t = threading.Thread(target=print, args=('t',)); t.start(); t.join()"
    assert (await inside.run(code)).stdout == "t\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the foreign numbers are those of x32")
async def test_a_call_under_a_foreign_architecture_ends_the_worker_with_that_cause(inside):
    result = await inside.run("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)")
    assert (result.state, result.error.cause) == ("lost", "sandbox")


async def test_no_descriptor_and_no_variable_of_the_host_leaks(sandboxed, monkeypatch):
    monkeypatch.setenv("STANDFAST_SECRET", "s3cret")
    with open("/etc/passwd") as leaked:
        os.set_inheritable(leaked.fileno(), True)
        session = await sandboxed(environment={"GIVEN": "yes"})
    environment = (await session.run("import os; dict(os.environ)")).value
    assert "STANDFAST_SECRET" not in environment
    assert environment["GIVEN"] == "yes"
    assert (await session.run("open('/proc/self/environ').read().find('s3cret')")).value == -1
    code = "import os\nr = []\nfor fd in range(0, 1000):\n    try:\n        os.fstat(fd); r.append(fd)\n    except OSError: pass\nr"
    assert (await session.run(code)).value == [0, 1, 2, 3, 4]
    assert (
        await session.run(
            "import subprocess; subprocess.run(['ls', '/proc/self/fd'], capture_output=True, text=True).stdout.split()"
        )
    ).value == ["0", "1", "2", "3"]


async def test_privileges_are_gone(inside):
    status = (await inside.run("open('/proc/self/status').read()")).value
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == 0
    assert int(facts["CapPrm"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    assert facts["Seccomp"].strip() == "2"
    assert (await inside.run("import os; os.getuid() != 0")).value is True


async def test_ordinary_code_works_in_the_sandbox(inside):
    code = (
        "import json, sqlite3, subprocess, sys, tempfile, threading, multiprocessing as mp, ssl, socket\n"
        "db = sqlite3.connect('x.db'); db.execute('create table t(a)'); db.commit()\n"
        "out = subprocess.run([sys.executable, '-c', 'print(6*7)'], capture_output=True, text=True)\n"
        "with mp.get_context('fork').Pool(2) as pool: squares = pool.map(abs, [-1, -2])\n"
        "a, b = socket.socketpair(); a.send(b'x')\n"
        "[out.stdout, squares, b.recv(1) == b'x']"
    )
    assert (await inside.run(code)).value == ["42\n", [1, 2], True]


async def test_a_policy_can_allow_paths(sandboxed, tmp_path):
    shared, out = tmp_path / "shared", tmp_path / "out"
    shared.mkdir()
    out.mkdir()
    (shared / "f").write_text("hello")
    out.chmod(0o777)
    for folder in (shared, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    policy = SandboxPolicy(require="namespaces", readable=(str(shared),), writable=(str(out),))
    session = await sandboxed(sandbox=policy)
    assert (await session.run(f"open({str(shared / 'f')!r}).read()")).value == "hello"
    assert await run_refused(session, f"open({str(shared / 'f')!r}, 'w')") in ("PermissionError", "OSError")
    assert (await session.run(f"open({str(out / 'g')!r}, 'w').write('x')")).value == 1
    assert (out / "g").read_text() == "x"


async def test_listed_hosts_are_reachable_through_the_proxy_and_others_are_not(sandboxed):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        session = await sandboxed(sandbox=SandboxPolicy(network=(f"localhost:{port}",)))
        fetch = "import urllib.request\nurllib.request.urlopen('http://HOST:PORT/', timeout=60).read()"
        good = fetch.replace("HOST", "localhost").replace("PORT", str(port))
        assert (await session.run(good)).value == b"hello"
        bad = await session.run(fetch.replace("HOST", "127.0.0.1").replace("PORT", str(port)))
        assert bad.error.exception_type == "HTTPError"
        assert "403" in bad.error.exception_message
        direct = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert await run_refused(session, direct) == "ConnectionRefusedError"


async def test_the_host_network_is_available_if_the_policy_allows_it(sandboxed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", network="host"))
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2).close(); 'connected'"
        assert (await session.run(code)).value == "connected"


async def test_the_middle_level_denies_files_network_and_calls_too(tmp_path, locked):
    secret = tmp_path / "secret"
    secret.write_text("x")
    session = await locked()
    assert await run_refused(session, f"open({str(secret)!r})") == "PermissionError"
    assert await run_refused(session, "open('/etc/shadow')") == "PermissionError"
    assert await run_refused(session, "import socket; socket.socket(socket.AF_INET)") == "OSError"
    assert await run_refused(session, f"open('/proc/{os.getpid()}/environ')") == "PermissionError"
    assert (await session.run("open('f', 'w').write('mine')")).value == 4
    assert await session.files.read("f") == b"mine"


@pytest.mark.parametrize(("level", "network"), [("locked", "none"), ("namespaces", "none"), ("namespaces", "host")])
async def test_gaps_of_an_older_kernel_are_noted(level, network, below_tmp, readable_python):
    below_tmp.chmod(0o755)
    (precious := below_tmp / "precious").touch()
    precious.chmod(0o666)
    attempts = {
        "files": f"import os; os.truncate({str(precious)!r}, 0)",
        "signals": f"import os; os.kill({os.getpid()}, 0)",
        "abstract sockets": f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{precious}')",
    }
    policy = SandboxPolicy(level=level, require=level, network=network)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{precious}")
        server.listen()
        async with WorkerSession(SessionConfig(sandbox=policy, python=readable_python)) as session:
            worked = [name for name, code in attempts.items() if (await session.run(code)).ok]
            notes = session.info.metadata["sandbox_notes"]
    for name in worked:
        assert any(f"does not keep {name}" in note for note in notes)


@pytest.mark.parametrize(
    ("version", "namespaces", "own_network", "lacking"),
    [
        (7, False, False, []),
        (6, False, False, []),
        (5, False, False, ["signals", "abstract sockets"]),
        (3, False, False, ["signals", "abstract sockets"]),
        (2, False, False, ["files", "signals", "abstract sockets"]),
        (1, True, False, ["abstract sockets"]),
        (1, True, True, []),
    ],
)
def test_gaps_of_an_older_landlock_are_noted_unless_namespaces_close_them(version, namespaces, own_network, lacking):
    notes = confinement.describe_landlock_gaps(version, namespaces=namespaces, own_network=own_network)
    assert len(notes) == len(lacking)
    for name, note in zip(lacking, notes, strict=True):
        assert note.startswith(f"Landlock {version} does not keep {name} ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"level": "plain", "require": "locked"},
        {"memory_mb": 0},
        {"network": "some"},
        {"level": "locked", "network": ("a.b",)},
        {"level": "castle"},
        *(
            {"network": (name,)}
            for name in ("bad host!", "", "http://a.b", "a.b:x", "a.b/c", "a..b", ".", "bücher.de", 7)
        ),
        {"network": ()},
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(InvalidInput):
        SandboxPolicy(**wrong)


@pytest.mark.parametrize("name", ["localhost", "api.example.org", "*.pypi.org", "127.0.0.1", "::1", "a_b.c-d.e", "*"])
def test_host_names_are_accepted(name):
    assert SandboxPolicy(network=(name,)).network == (name,)


async def test_an_unavailable_level_is_refused_and_nothing_is_started():
    """The policy makes the root writable, over which nothing can be mounted, so the sandbox cannot be set up."""
    policy = SandboxPolicy(require="namespaces", writable=("/",))
    session = WorkerSession(SessionConfig(sandbox=policy))
    with pytest.raises(SandboxUnavailable) as caught:
        await session.start()
    assert caught.value.required == "namespaces"
    await session.terminate()


async def test_a_weaker_level_is_used_and_reported_when_accepted(readable_python, caplog):
    policy = SandboxPolicy(require="locked", writable=("/",))
    async with WorkerSession(SessionConfig(sandbox=policy, python=readable_python)) as session:
        assert session.info.metadata["sandbox"] == "locked"
        assert (await session.run("1")).value == 1
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "standfast.workers"]
    assert "'locked' instead of 'namespaces'" in warning
    assert "mount" in warning


async def test_a_level_that_was_chosen_is_no_reason_to_warn(caplog):
    async with WorkerSession(SessionConfig(sandbox=SandboxPolicy(level="plain"))) as session:
        assert session.info.metadata["sandbox"] == "plain"
    assert [record for record in caplog.records if record.name == "standfast.workers"] == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, ("namespaces", "namespaces")),
        ({"level": "locked"}, ("locked", "locked")),
        ({"level": "plain"}, ("plain", "plain")),
        ({"require": "plain"}, ("namespaces", "plain")),
        ({"network": ("a.b",)}, ("namespaces", "namespaces")),
    ],
)
def test_a_weaker_sandbox_must_be_requested(policy, expected):
    policy = SandboxPolicy(**policy)
    assert (policy.level, policy.require) == expected


async def test_the_probe_reports_the_strongest_level():
    report = await probe_sandbox()
    assert report.level == "namespaces"
    assert (describe_weaknesses(report.notes), report.reasons) == ([], {})


async def test_many_sessions_share_one_fork_server(sandboxed):
    before = list_child_pids()
    sessions = await asyncio.gather(*(sandboxed() for _ in range(8)))
    values = await asyncio.gather(*(s.run(f"x = {n}; x") for n, s in enumerate(sessions)))
    assert [v.value for v in values] == list(range(8))
    assert len(list_child_pids() - before) == 1


@pytest.fixture
def below_tmp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


async def test_an_interpreter_below_tmp_can_be_used_and_tmp_is_writable(below_tmp, sandboxed):
    venv.create(below_tmp / "env", symlinks=True)
    (packages,) = (below_tmp / "env" / "lib").glob("python*/site-packages")
    (packages / "more.pth").write_text(str(Path(msgspec.__file__).parents[1]))
    (packages / "only_here.py").write_text("x = 42")
    session = await sandboxed(python=str(below_tmp / "env" / "bin" / "python"))
    assert (await session.run("import only_here, sys; [only_here.x, sys.prefix]")).value == [42, str(below_tmp / "env")]
    assert (await session.run("open('/tmp/mine', 'w').write('abc')")).value == 3
    shown = (await session.run("import os; os.listdir('/tmp')")).value
    assert set(shown) - INTERPRETER_BELOW_TMP == {"mine", below_tmp.parts[2]}
    changed = await session.run(f"open({str(packages / 'only_here.py')!r}, 'w')")
    assert changed.error.exception_type in ("OSError", "PermissionError")
    assert (packages / "only_here.py").read_text() == "x = 42"


async def test_a_directory_below_tmp_that_was_given_can_be_written(below_tmp, sandboxed):
    given = below_tmp / "given"
    given.mkdir()
    os.chmod(given, 0o777)
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", writable=(str(given),)))
    assert (
        await session.run(f"open({str(given / 'f')!r}, 'w').write('abc'); open('/tmp/x', 'w').write('x')")
    ).value == 1
    assert (given / "f").read_text() == "abc"
