"""Attempts to leave the full sandbox, as a table: every one of them must be refused, and the worker must continue."""

import os
import socket

import pytest

from standfast.workers import SandboxPolicy

IS_ARM = os.uname().machine == "aarch64"


def call(x86_64: int, aarch64: int, *arguments: object) -> str:
    """Return code for a system call by its number, so that no library decides what is called."""
    number = aarch64 if IS_ARM else x86_64
    return f"check(libc.syscall({', '.join(map(str, (number, *arguments)))}))" if number >= 0 else "raise OSError"


PREPARATION = """
import ctypes, os, resource, signal, socket
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def put(path, data):
    os.write(os.open(path, os.O_WRONLY), data)

def attempt(code):
    try:
        exec(code, globals())
    except OSError as error:
        return error.errno
    except ValueError as error:
        return -1 if "not allowed to raise" in str(error) else repr(error)
    except Exception as error:
        return type(error).__name__
    return "done"
"""

FILES = {
    "shadow": "open('/etc/shadow')",
    "home of root": "os.listdir('/root/.ssh')",
    "host's temporary files": "open('/session/../tmp/../proc/1/root/etc/shadow')",
    "root of the supervisor": "os.listdir('/proc/1/root')",
    "directory of the supervisor": "os.listdir('/proc/1/cwd')",
    "descriptors of the supervisor": "os.readlink('/proc/1/fd/3')",
    "memory of the supervisor": "open('/proc/1/mem', 'rb')",
    "memory map of the supervisor": "open('/proc/1/maps').read()",
    "environment of the supervisor": "open('/proc/1/environ').read()",
    "programs that were unpacked": "os.listdir('/usr/src')",
    "programs of this machine": "os.listdir('/usr/local/src')",
    "kernel memory": "open('/proc/kcore', 'rb').read(1)",
    "kernel messages": "open('/dev/kmsg')",
    "physical memory": "open('/dev/mem', 'rb')",
    "a disk": "os.listdir('/dev/block')",
    "kernel settings": "put('/proc/sys/kernel/core_pattern', b'x')",
    "its own name": "put('/proc/sys/kernel/hostname', b'x')",
    "the machine's power": "put('/proc/sysrq-trigger', b'h')",
    "its login for the audit": "put('/proc/self/loginuid', b'0')",
    "its own memory by a file": "put('/proc/self/mem', b'x')",
    "what it is called for others": "put('/proc/self/comm', b'x')",
    "a uid map": "put('/proc/self/uid_map', b'0 0 1')",
    "groups": "put('/proc/self/setgroups', b'allow')",
    "an older root": "os.chroot('..')",
    "control groups": "os.listdir('/sys/fs/cgroup')",
    "the interpreter": "open(os.__file__, 'a')",
    "the interpreter's mode": "os.chmod(os.__file__, 0o777)",
    "a link to a file of the host": "os.link('/etc/passwd', 'mine'); open('mine', 'a')",
    "a device": "os.mknod('disk', 0o60600, os.makedev(8, 0)); open('disk', 'rb')",
    "a memory device": "os.mknod('null2', 0o20600, os.makedev(1, 1)); open('null2', 'rb')",
}
PROCESSES = {
    "signal the supervisor": "os.kill(1, 9); os.kill(1, 0)",
    "signal the host": "os.kill(HOST, 0)",
    "limit the supervisor": "resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))",
    "limit another": "resource.prlimit(HOST, resource.RLIMIT_NOFILE, (1, 1))",
    "become root": "os.setuid(0)",
    "become root for good": "os.setresuid(0, 0, 0)",
    "become a group": "os.setgid(0)",
    "join groups": "os.setgroups([0])",
    "trace": call(101, 117, 16, 1, 0, 0),
    "read another's memory": call(310, 270, 1, 0, 0, 0, 0, 0),
    "write another's memory": call(311, 271, 1, 0, 0, 0, 0, 0),
    "take a descriptor": call(438, 438, 0, 0, 0),
    "compare processes": call(312, 272, 1, 2, 0, 0, 0),
    "enter a namespace": call(308, 268, 0, 0),
    "leave its namespaces": call(272, 97, 0x10000000),
    "fork into a namespace": call(56, 220, 0x10000011, 0, 0, 0, 0),
    "raise a limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))",
    "raise the memory limit": "resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))",
    "queue the signals of its user": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\nfor _ in range(2000): check(libc.sigqueue(os.getpid(), 40, None))"
    ),
    "a real-time priority": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "a higher priority": "os.nice(-5)",
}
KERNEL = {
    "mount": call(165, 40, "b'x'", "b'/session/tmp'", "b'tmpfs'", 0, 0),
    "unmount": call(166, 39, "b'/proc'", 2),
    "pivot_root": call(155, 41, "b'.'", "b'.'"),
    "open_tree": call(428, 428, -100, "b'/'", 1),
    "move_mount": call(429, 429, -100, "b'/'", -100, "b'/session'", 0),
    "fsopen": call(430, 430, "b'tmpfs'", 0),
    "mount_setattr": call(442, 442, -100, "b'/'", 0, 0, 0),
    "statmount": call(457, 457, 0, 0, 0, 0),
    "listmount": call(458, 458, 0, 0, 0, 0),
    "file_setattr": call(469, 469, -100, "b'.'", 0, 0, 0),
    "a call that does not exist yet": call(470, 470, 0, 0, 0),
    "a call far above all": call(511, 511),
    "bpf": call(321, 280, 0, 0, 0),
    "perf_event_open": call(298, 241, 0, 0, -1, -1, 0),
    "userfaultfd": call(323, 282, 0),
    "io_uring_setup": call(425, 425, 8, "ctypes.byref((ctypes.c_char * 120)())"),
    "keyctl": call(250, 219, 0, -3, 0),
    "add_key": call(248, 217, "b'user'", "b'k'", "b'v'", 1, -3),
    "kexec_load": call(246, 104, 0, 0, 0, 0),
    "init_module": call(175, 105, 0, 0, 0),
    "reboot": call(169, 142, 0, 0, 0, 0),
    "swapon": call(167, 224, "b'/x'", 0),
    "settimeofday": call(164, 170, 0, 0),
    "clock_settime": call(227, 112, 0, 0),
    "sethostname": call(170, 161, "b'x'", 1),
    "acct": call(163, 89, 0),
    "syslog": call(103, 116, 3, 0, 0),
    "personality": call(135, 92, 0x400000),
    "open_by_handle_at": call(304, 265, -1, 0, 0),
    "fanotify_init": call(300, 262, 0, 0),
    "inotify_init": call(253, -1),
    "inotify_init1": call(294, 26, 0),
    "shmget": call(29, 194, 0, 4096, 0o1600),
    "msgget": call(68, 186, 0, 0o1600),
    "semget": call(64, 190, 0, 1, 0o1600),
    "mq_open": call(240, 180, "b'q'", 0o102, 0o600, 0),
    "io_setup": call(206, 0, 60000, "ctypes.byref(ctypes.c_ulong(0))"),
    "memfd_secret": call(447, 447, 0),
    "vmsplice": call(278, 75, "os.pipe()[1]", "(ctypes.c_size_t * 2)(id(1), 1)", 1, 0),
    "memfd_create": call(319, 279, "b'x'", 0),
    "openat2": call(437, 437, -100, "b'.'", "b'\\0' * 24", 24),
    "iopl": call(172, -1, 3),
    "modify_ldt": call(154, -1, 0, 0, 0),
}
NETWORK = {
    "loopback": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "loopback by IPv6": "socket.create_connection(('::1', PORT), 2)",
    "another machine": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    "a name": "socket.getaddrinfo('example.com', 80)",
    "raw packets": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "link packets": "socket.socket(17, socket.SOCK_RAW)",
    "the hypervisor": "socket.socket(40, socket.SOCK_STREAM)",
    "the kernel's netlink": "socket.socket(16, socket.SOCK_RAW)",
    "the kernel's crypto": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "bluetooth": "socket.socket(31, socket.SOCK_RAW)",
    "a protocol of a module": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)",
    "a pair of another family": "socket.socketpair(30, socket.SOCK_SEQPACKET)",
    "several paths of TCP": "socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 262)",
    "a protocol above TCP": "socket.socket().setsockopt(6, 31, b'tls')",
    "an abstract socket of the host": "socket.socket(socket.AF_UNIX).connect('\\0standfast-HOST')",
    "a low port": "socket.socket().bind(('127.0.0.1', 80)); socket.create_connection(('127.0.0.1', PORT), 2)",
}
MODES = {
    "chmod": "open('WHERE/a', 'w'); os.chmod('WHERE/a', 0o4755)",
    "chmod for a group": "open('WHERE/a', 'w'); os.chmod('WHERE/a', 0o2755)",
    "fchmod": "os.fchmod(os.open('WHERE/b', os.O_CREAT | os.O_RDWR, 0o755), 0o6755)",
    "open": "os.open('WHERE/c', os.O_CREAT | os.O_RDWR, 0o4755)",
    "a temporary file": "os.open('WHERE', os.O_TMPFILE | os.O_RDWR, 0o4755)",
    "mknod": "os.mknod('WHERE/d', 0o104755)",
    "creat": call(85, -1, "b'WHERE/e'", 0o4755),
    "fchmodat2": "open('WHERE/a', 'w'); " + call(452, 452, -100, "b'WHERE/a'", 0o4755, 0),
}
ATTEMPTS = {"files": FILES, "processes": PROCESSES, "kernel": KERNEL, "network": NETWORK}


async def run_attempts(session, attempts: dict[str, str]) -> dict[str, object]:
    """Run all attempts in one worker and return what came of them."""
    assert (await session.run(PREPARATION)).ok
    result = await session.run(f"{{name: attempt(code) for name, code in {attempts!r}.items()}}", timeout=120)
    assert result.error is None, result.error
    assert (await session.run("6 * 7")).value == 42
    return result.value


@pytest.mark.parametrize("area", ATTEMPTS)
async def test_nothing_in_the_table_works(sandboxed, area):
    session = await sandboxed()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0standfast-{os.getpid()}")
        abstract.listen()
        values = {"PORT": str(server.getsockname()[1]), "HOST": str(os.getpid())}
        attempts = dict(ATTEMPTS[area])
        for word, value in values.items():
            attempts = {name: code.replace(word, value) for name, code in attempts.items()}
        outcomes = await run_attempts(session, attempts)
    assert {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, int)} == {}


async def test_no_file_with_another_users_rights_is_left_in_a_writable_path(sandboxed, tmp_path):
    for path in (tmp_path, *tmp_path.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(0o777 if path == tmp_path else 0o755)
    session = await sandboxed(sandbox=SandboxPolicy(writable=(str(tmp_path),)))
    attempts = {name: code.replace("WHERE", str(tmp_path)) for name, code in MODES.items()}
    outcomes = await run_attempts(session, attempts)
    assert {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, int)} == {}
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o6000] == []
    mounts = [
        set(line.split()[5].split(","))
        for line in (await session.run("open('/proc/self/mountinfo').read()")).value.splitlines()
        if line.split()[4].endswith(str(tmp_path))
    ]
    assert mounts
    assert all({"rw", "nosuid", "nodev"} <= options for options in mounts)
    assert (await session.run(f"os.chmod({str(tmp_path / 'a')!r}, 0o755)")).ok, "other modes can be set"


@pytest.mark.parametrize("level", ["namespaces", "locked"])
async def test_the_buffers_of_a_socket_do_not_grow(sandboxed, readable_python, level):
    session = await sandboxed(sandbox=SandboxPolicy(level=level), python=readable_python)
    code = (
        "import socket\nends = socket.socketpair()\nbuffers = (socket.SO_SNDBUF, socket.SO_RCVBUF)\n"
        "before = [ends[0].getsockopt(socket.SOL_SOCKET, name) for name in buffers]\n"
        "for name in buffers: ends[0].setsockopt(socket.SOL_SOCKET, name, 1 << 22)\n"
        "ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)\n"
        "before == [ends[0].getsockopt(socket.SOL_SOCKET, name) for name in buffers]"
    )
    assert (await session.run(code)).value is True
