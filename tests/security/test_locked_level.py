"""The level without namespaces, attacked from a host whose user is that of the worker."""

import json
import os

import pytest

from factories.unprivileged import run_unprivileged
from standfast.workers import SandboxPolicy, SandboxUnavailable, SessionConfig, WorkerSession

PROGRAM = """
import ctypes, json, os, socket, subprocess, sys, tempfile
from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession

async def main():
    folder = tempfile.mkdtemp(dir="/tmp")
    path, shm, secret = folder + "/service", "/dev/shm/standfast-test-%d" % os.getpid(), folder + "/secret"
    datagrams, service = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
    service.bind(path)
    service.listen()
    datagrams.bind(path + ".dgram")
    for name in (shm, secret):
        with open(name, "w") as file:
            file.write("secret")
    os.symlink("target", secret + ".link")
    terminal = os.ttyname(os.openpty()[1])
    libc = ctypes.CDLL(None)
    segment, semaphore, queue = libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)
    libc.msgsnd(queue, (ctypes.c_long * 2)(1, 2), 8, 0)
    values = dict(path=path, shm=shm, secret=secret, host=os.getpid(), terminal=terminal)
    values |= dict(segment=segment, semaphore=semaphore, queue=queue)
    attempts = json.loads(sys.argv[1])
    config = SessionConfig(sandbox=SandboxPolicy(level="locked"))
    outcome = {}
    async with WorkerSession(config) as session:
        notes = session.info.metadata["sandbox_notes"]
        session_directory = (await session.run("import os; os.environ['HOME']")).value
        for name, code in attempts.items():
            for word, value in values.items():
                code = code.replace(word.upper(), repr(value))
            result = await session.run(sys.argv[2] + code)
            outcome[name] = result.error.exception_type if result.error else "done"
        outcome["alive"] = str((await session.run("6 * 7")).value)
    datagrams.setblocking(False)
    try:
        outcome["datagram"] = datagrams.recv(100).decode()
    except BlockingIOError:
        pass
    subprocess.run(["rm", "-rf", folder, shm], check=True)
    outcome["kept"] = str([libc.shmctl(segment, 0, 0), libc.semctl(semaphore, 0, 0), libc.msgctl(queue, 0, 0)])
    print(json.dumps([outcome, notes, session_directory.split("/")[2] in os.listdir("/tmp")]))

asyncio.run(main())
"""
PREPARATION = """
import ctypes, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

"""
REFUSED = {
    "connect to a service": "socket.socket(socket.AF_UNIX).connect(PATH)",
    "send a datagram": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', PATH + '.dgram')",
    "send a datagram of a pair": "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', PATH + '.dgram')",
    "connect the worker's own socket": "socket.socket(fileno=os.dup(4)).connect(PATH + '.dgram')",
    "read shared memory": "open(SHM).read()",
    "list shared memory": "os.listdir('/dev/shm')",
    "write shared memory": "open('/dev/shm/standfast-new', 'w')",
    "read a terminal": "os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY)",
    "list devices": "os.listdir('/dev')",
    "read a file": "open(SECRET).read()",
    "list a folder": "os.listdir(os.path.dirname(SECRET))",
    "list processes": "os.listdir('/proc')",
    "read what is known of a process": "open(f'/proc/{HOST}/status').read()",
    "read where a process is": "os.readlink(f'/proc/{HOST}/cwd')",
    "write its login for the audit": "os.write(os.open('/proc/self/loginuid', os.O_WRONLY), b'0')",
    "link a file": "os.link(SECRET, 'mine')",
    "move a file": "os.rename(SECRET, 'mine')",
    "put a file elsewhere": "open('m', 'w').close(); os.rename('m', SECRET + '.new')",
    "empty a file": "os.truncate(SECRET, 0)",
    "read a file by its descriptor": "open('/proc/self/fd/%d' % os.open(SECRET, 0o10000000)).read()",
    "run a file": "os.execv(SECRET, ['x'])",
    "send a packet of a pair": ("a = socket.socketpair(type=socket.SOCK_SEQPACKET)[0]; a.shutdown(2); a.connect(PATH)"),
    "disconnect a pair and connect it": (
        "a = socket.socketpair()[0]; libc.connect(a.fileno(), b'\\0' * 16, 16); a.connect(PATH)"
    ),
    "signal by a descriptor": "import signal; signal.pidfd_send_signal(os.pidfd_open(HOST), 0)",
    "move the memory of the host": "check(libc.syscall(256, HOST, 8, b'\\1' + bytes(7), b'\\1' + bytes(7)))",
    "share a processor core with the host": "check(libc.prctl(62, 1, HOST, 0, 0))",
    "connect to the network": "socket.socket(socket.AF_INET)",
    "a terminal of its own": "os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)",
    "read other files of the system": "open('/proc/meminfo').read()",
    "remove a file": "os.unlink(SECRET)",
    "change a mode": "os.chmod(SECRET, 0o777)",
    "change the mode of its own file": "open('own', 'w').close(); os.chmod('own', 0o600)",
    "use a lock of multiprocessing": "import multiprocessing; multiprocessing.Lock()",
    "change an owner": "os.chown(SECRET, os.getuid(), os.getgid())",
    "write an attribute": "os.setxattr(SECRET, 'user.note', b'x')",
    "remove an attribute": "os.removexattr(SECRET, 'user.note')",
    "limit the host's files": "resource.prlimit(HOST, resource.RLIMIT_NOFILE, (5, 5))",
    "limit the host's time": "resource.prlimit(HOST, resource.RLIMIT_CPU, (1, 1))",
    "limit the supervisor": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))",
    "slow the host": "os.setpriority(os.PRIO_PROCESS, HOST, 19)",
    "slow the user": "os.setpriority(os.PRIO_USER, 0, 19)",
    "schedule the host": "os.sched_setscheduler(HOST, os.SCHED_IDLE, os.sched_param(0))",
    "bind the host to a processor": "os.sched_setaffinity(HOST, {0})",
    "signal the host": "os.kill(HOST, 0)",
    "make a queue": "check(libc.msgget(0, 0o1600))",
    "make a semaphore": "check(libc.semget(0, 1, 0o1600))",
    "make shared memory": "check(libc.shmget(0, 4096, 0o1600))",
    "read shared memory of the host": "check(libc.shmat(SEGMENT, None, 0))",
    "remove shared memory of the host": "check(libc.shmctl(SEGMENT, 0, 0))",
    "set a semaphore of the host": "check(libc.semctl(SEMAPHORE, 0, 16, 7))",
    "take a semaphore of the host": "check(libc.semop(SEMAPHORE, b'\\0\\0\\1\\0\\0\\0', 1))",
    "read a queue of the host": "check(libc.msgrcv(QUEUE, (ctypes.c_long * 2)(), 8, 0, 0o4000))",
    "remove a queue of the host": "check(libc.msgctl(QUEUE, 0, 0))",
    "remove a named queue": "check(libc.mq_unlink(b'/standfast'))",
    "watch files": "check(libc.inotify_init1(0))",
}
ALLOWED = {
    # The kernel ignores the address: what is sent goes to the supervisor.
    "send by the worker's own socket": "socket.socket(fileno=os.dup(4)).sendto(b'x', PATH + '.dgram')",
    "use its own files": "open('f', 'w').write('x'); os.mkdir('d', 0)",
    "use a pair of sockets": "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'",
    "read public files": "assert open('/etc/passwd').read() and os.listdir('/usr/bin')",
    # What the level does not hide, as the security page says.
    "see a file": "assert os.stat(SECRET).st_size == 6 and os.readlink(SECRET + '.link') == 'target'; os.listxattr(SECRET)",
    "set the times of a file": "os.utime(SECRET, (1, 1))",
    "see a process": "assert os.path.exists(f'/proc/{HOST}'); os.getsid(HOST)",
    "use the harmless devices": "open('/dev/null', 'w').write('x'); assert open('/dev/urandom', 'rb').read(4)",
    "limit itself": "resource.setrlimit(resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK)); os.nice(1)",
    "start a program": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)",
}


def test_nothing_of_the_same_user_is_within_reach():
    (line,) = run_unprivileged(PROGRAM, json.dumps(REFUSED | ALLOWED), PREPARATION)[-1:]
    outcome, notes, is_left = json.loads(line)
    assert {name: outcome[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, "done")
    refusals = {"PermissionError", "OSError", "FileNotFoundError"}
    assert {name: outcome[name] for name in REFUSED if outcome[name] not in refusals} == {}
    assert (outcome["alive"], outcome.get("datagram"), outcome["kept"]) == ("42", None, "[0, 0, 0]")
    assert any("disk limit applies to each file" in note for note in notes)
    assert not is_left, "its directory is removed, whatever modes it contains"


DISABLED = """
import logging
from standfast.workers import SandboxPolicy, SandboxUnavailable, SessionConfig, WorkerSession

async def main():
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
    try:
        await WorkerSession().start()
    except SandboxUnavailable as problem:
        print(problem)
    async with WorkerSession(SessionConfig(sandbox=SandboxPolicy(require="locked"))) as session:
        print(session.info.metadata["sandbox"], (await session.run("6 * 7")).value)

# In a user namespace of its own, user namespaces can be switched off.
uid, gid = os.getuid(), os.getgid()
syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
syscalls.map_identity(uid, gid)
syscalls.mount("tmpfs", "/run", "tmpfs", 0, None)
open("/run/.containerenv", "w").close()  # as in a container of Podman
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
asyncio.run(main())
"""


def test_a_machine_without_user_namespaces_is_refused_with_the_remedy_and_less_is_warned_about():
    refusal, warning, last = run_unprivileged(DISABLED)
    assert "'namespaces' is not available here" in refusal
    assert "sysctl user.max_user_namespaces" in refusal
    assert "--security-opt seccomp=unconfined" in refusal
    assert "require='locked'" in refusal
    assert warning.startswith("standfast.workers WARNING workers run at the sandbox level 'locked'")
    assert last == "locked 42"


async def test_it_does_not_run_as_root(readable_python):
    if os.geteuid() != 0:
        pytest.skip("only root can be refused")
    policy = SandboxPolicy(level="locked", run_as=0)
    session = WorkerSession(SessionConfig(sandbox=policy, python=readable_python))
    with pytest.raises(SandboxUnavailable, match="does not run as root"):
        await session.start()
    await session.terminate()


async def test_it_runs_as_another_user_where_the_host_is_root(locked):
    session = await locked()
    assert (await session.run("import os; os.getuid() != 0 and os.geteuid() != 0")).value is True
    assert not any("root" in note for note in session.info.metadata["sandbox_notes"])


WITHOUT_LANDLOCK = """
import ctypes, struct
from standfast.workers import SandboxPolicy, SandboxUnavailable, SessionConfig, WorkerSession
from standfast.workers.child.sandbox import seccomp

async def main():
    for policy in (SandboxPolicy(), SandboxPolicy(level="locked")):
        session = WorkerSession(SessionConfig(sandbox=policy))
        try:
            await session.start()
        except SandboxUnavailable as problem:
            print(problem)
        await session.terminate()
    async with WorkerSession(SessionConfig(sandbox=SandboxPolicy(require="plain"))) as session:
        print(session.info.metadata["sandbox"], (await session.run("6 * 7")).value)

# Answers landlock_create_ruleset as a kernel that does not have it.
steps = (
    seccomp.BpfInstruction(0x20, 0),
    seccomp.BpfInstruction(0x15, 444, 0, 1),
    seccomp.return_errno(38),
    seccomp.BpfInstruction(0x06, 0x7FFF0000),
)
packed = b"".join(struct.pack("HBBI", s.code, s.jump_if_true, s.jump_if_false, s.operand) for s in steps)
program = seccomp._Program(len(steps), packed)
syscalls.prctl(38, 1)
assert syscalls.libc().prctl(22, ctypes.c_ulong(2), ctypes.byref(program)) == 0
asyncio.run(main())
"""


def test_a_kernel_without_landlock_is_refused():
    *refusals, last = run_unprivileged(WITHOUT_LANDLOCK)
    for refusal, level in zip(refusals, ("namespaces", "locked"), strict=True):
        assert f"{level!r} is not available here" in refusal
        assert "does not support Landlock" in refusal
        assert ("require='locked'" in refusal, "require='plain'" in refusal) == (level == "namespaces", True)
    assert last == "plain 42"
