"""Workers where there is no Linux, as far as that can be seen on Linux: nothing is used that is not there."""

import asyncio
import shlex
import stat
import sys
from pathlib import Path

ELSEWHERE = Path(__file__).parent / "elsewhere"
HIDDEN = "mount -t tmpfs none /proc"


def robbed_python(folder: Path) -> Path:
    """An interpreter for workers from which everything was taken that only Linux has."""
    path = folder / "python"
    rob = f"exec(open({str(ELSEWHERE / 'without_linux.py')!r}).read())\n"
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "arguments = sys.argv[1:]\n"
        "place = arguments.index('-c') + 1\n"
        f"arguments[place] = {rob!r} + arguments[place]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *arguments])\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def told_by(command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    except TimeoutError:
        process.kill()
        raise
    return process.returncode, output.decode()


async def test_everything_but_walls_and_copies_works_without_linux(tmp_path):
    command = shlex.join([sys.executable, str(ELSEWHERE / "program.py"), str(robbed_python(tmp_path))])
    alone, _ = await told_by(f"unshare -Urm sh -c {shlex.quote(HIDDEN)}")
    if alone == 0:
        command = f"unshare -Urm sh -c {shlex.quote(f'{HIDDEN} && exec {command}')}"
    code, told = await told_by(command)
    assert code == 0, told
    lines = told.splitlines()
    assert lines[0].endswith("mode: spawn")
    assert alone != 0 or lines[0] == "/proc: 0 mode: spawn"
    refusal = "snapshots, forks and transactions of a worker need Linux; checkpoints do not"
    assert sum(refusal in line for line in lines) == 3, told
    assert "demanded: " in told
    assert "this level needs Linux" in told
    assert "level: plain features: ack checkpoint completion display input namespace" in lines
    assert "written: a\nbc" in told
    assert "died: lost exit: exit code 3" in lines
    assert lines[-1] == "done"
