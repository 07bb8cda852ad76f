"""Record ``standfast demo`` as an SVG: ``python docs/record_demo.py`` writes ``docs/demo.svg``."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "demo.svg"
WIDTH = 120
SPINNER = re.compile("\\s*[\u2800-\u28ff]")


def run_demo() -> str:
    """Run the demo on a pseudo-terminal and return its output with colours."""
    terminal, child = pty.openpty()
    program = Path(sys.executable).with_name("standfast")
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    screen = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH), "PATH": path}
    process = subprocess.Popen([program, "demo"], stdout=child, env=os.environ | screen)
    os.close(child)
    parts = []
    while part := _read(terminal):
        parts.append(part)
    os.close(terminal)
    if process.wait() != 0:
        sys.exit(f"the demo exited with {process.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ standfast demo", style="bold"))
    for line in Text.from_ansi(run_demo()).split("\n"):
        if not SPINNER.match(line.plain):  # a terminal erases it
            console.print(line)
    svg = console.export_svg(title="standfast demo", unique_id="demo")
    # Use the reader's own font instead of loading one from a server.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, ", ""))
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
