"""Workers on other systems, simulated by removing from Python what only Linux has."""

import asyncio
import shlex
import stat
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "without_linux_programs"
HIDDEN = "mount -t tmpfs none /proc"


def make_python_without_linux(folder: Path) -> Path:
    """Write an interpreter for workers without the names that only Linux has."""
    path = folder / "python"
    prefix = f"exec(open({str(PROGRAMS / 'without_linux.py')!r}).read())\n"
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "arguments = sys.argv[1:]\n"
        "place = arguments.index('-c') + 1\n"
        f"arguments[place] = {prefix!r} + arguments[place]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *arguments])\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def run_command(command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 120)
    except TimeoutError:
        process.kill()
        raise
    return process.returncode, output.decode()


async def test_everything_but_sandbox_levels_and_snapshots_works_without_linux(tmp_path):
    command = shlex.join([sys.executable, str(PROGRAMS / "program.py"), str(make_python_without_linux(tmp_path))])
    can_unshare, _ = await run_command(f"unshare -Urm sh -c {shlex.quote(HIDDEN)}")
    if can_unshare == 0:
        command = f"unshare -Urm sh -c {shlex.quote(f'{HIDDEN} && exec {command}')}"
    code, output = await run_command(command)
    assert code == 0, output
    lines = output.splitlines()
    assert lines[0].endswith("mode: spawn")
    assert can_unshare != 0 or lines[0] == "/proc: 0 mode: spawn"
    refusal = "snapshots, forks and transactions of a worker need Linux; checkpoints do not"
    assert sum(refusal in line for line in lines) == 3, output
    required = [line for line in lines if line.startswith("required: ")]
    assert len(required) == 2
    for line, level in zip(required, ("namespaces", "locked"), strict=True):
        assert f"{level!r} is not available here: this level needs Linux" in line
        assert "require='plain'" in line
    assert "workers run at the sandbox level 'plain' instead of 'namespaces'" in output
    assert "level: plain features: ack checkpoint completion display input namespace" in lines
    assert "written: a\nbc" in output
    assert "died: lost exit: exit code 3" in lines
    assert lines[-1] == "done"
