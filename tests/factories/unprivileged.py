"""Run a program as a user without privileges, whoever runs the tests."""

import os
import subprocess
import sys
from pathlib import Path

UID = 1234
TESTS = Path(__file__).parents[1]

# Where the interpreter is below a directory of root's, a private copy of the file system shows only the interpreter.
_PROGRAM = """
import os, sys
sys.path[:0] = {path!r}
from standfast.workers.child.sandbox import syscalls

def expose(paths):
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    for path in paths:
        closed = [p for p in reversed([path, *parents(path)]) if not os.stat(p).st_mode & 1]
        if closed:
            fd = os.open(path, os.O_PATH)
            syscalls.mount("tmpfs", closed[0], "tmpfs", 0, "mode=755")
            os.makedirs(path, exist_ok=True)
            syscalls.mount(f"/proc/self/fd/{{fd}}", path, None, syscalls.MS_BIND | syscalls.MS_REC)

def parents(path):
    while path != "/":
        path = os.path.dirname(path)
        yield path

if os.geteuid() == 0:
    expose({exposed!r})
    os.setgroups({groups!r})
    os.setresgid({uid}, {uid}, {uid})
    os.setresuid({uid}, {uid}, {uid})
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
os.environ["HOME"] = "/nonexistent"
os.chdir("/")
import asyncio
"""


def run_unprivileged(program: str, *arguments: str, groups: tuple[int, ...] = (), timeout: float = 120) -> list[str]:
    """Run a program as ``UID`` and return the lines it printed."""
    exposed = sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix), str(TESTS.parent / "src")})
    head = _PROGRAM.format(path=[str(TESTS.parent / "src"), str(TESTS)], exposed=exposed, uid=UID, groups=list(groups))
    done = subprocess.run(
        [sys.executable, "-c", head + program, *arguments], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
