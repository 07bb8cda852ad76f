"""Records `standfast demo` as a picture: ``python docs/record_demo.py`` writes ``docs/demo.svg``."""

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


def shown() -> str:
    """What the demonstration prints on a terminal, with its colours."""
    ours, theirs = pty.openpty()
    program = Path(sys.executable).with_name("standfast")
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    screen = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH), "PATH": path}
    process = subprocess.Popen([program, "demo"], stdout=theirs, env=os.environ | screen)
    os.close(theirs)
    parts = []
    while part := _read(ours):
        parts.append(part)
    os.close(ours)
    if process.wait() != 0:
        sys.exit(f"the demonstration ended with {process.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ standfast demo", style="bold"))
    for line in Text.from_ansi(shown()).split("\n"):
        if not SPINNER.match(line.plain):  # a terminal takes it away again
            console.print(line)
    drawn = console.export_svg(title="standfast demo", unique_id="demo")
    # The font is the reader's own: a picture asks nobody's server for one.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S).replace("Fira Code, ", ""))
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
