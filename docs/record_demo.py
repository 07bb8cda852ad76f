"""Record ``standfast demo`` as an animated SVG: ``python docs/record_demo.py`` writes ``docs/demo.svg``.

The picture is a terminal of 80 columns in which the lines appear when the demo printed them. Where animations are off,
it shows the lines around the moment that matters: the process is killed, and the payment is not made twice.
"""

import io
import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "demo.svg"
WIDTH, ROWS = 80, 26
LINE_HEIGHT = 24.4
"""The height of a line in the pictures of rich."""
SPINNER = re.compile("\\s*[\u2800-\u28ff]")
SECONDS_TO_READ = 0.22
"""How long each line is the last one at least, so that it can be read."""
PAUSES = {"kill -9": 2.0, "payments in the ledger": 2.5, "all variables": 1.5, "in the history": 1.5}
SECONDS_AT_END = 4.0
STILL = "payments in the ledger"
"""The last line of the picture where animations are off."""


@dataclass
class Line:
    text: Text
    at: float


def record_lines() -> list[Line]:
    """Run the demo on a pseudo-terminal and return its lines with the seconds at which they were complete."""
    terminal, child = pty.openpty()
    program = Path(sys.executable).with_name("standfast")
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    screen = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH), "PATH": path}
    process = subprocess.Popen([program, "demo"], stdout=child, env=os.environ | screen)
    os.close(child)
    start, pending, lines = time.monotonic(), b"", [Line(Text("$ standfast demo", style="bold"), 0.0)]
    while part := read(terminal):
        *complete, pending = (pending + part).split(b"\n")
        for row in complete:
            # A spinner is erased by returning to the start of its line.
            text = Text.from_ansi(row.decode().rstrip("\r").rpartition("\r")[2])
            if not SPINNER.match(text.plain):
                lines.append(Line(text, time.monotonic() - start))
    os.close(terminal)
    if process.wait() != 0:
        sys.exit(f"the demo exited with {process.returncode}")
    return lines


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def schedule(lines: list[Line]) -> float:
    """Shorten waits and lengthen what should be read; return the length of the whole."""
    moment = previous = 0.0
    for line in lines:
        waited = min(line.at - previous, 0.8)
        previous, moment = line.at, moment + max(waited, SECONDS_TO_READ if line.text.plain.strip() else 0.0)
        line.at = moment
        moment += next((pause for words, pause in PAUSES.items() if words in line.text.plain), 0.0)
    return moment + SECONDS_AT_END


def draw(lines: list[Line]) -> str:
    """Return the picture of all lines, one below the other."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line.text, soft_wrap=True)
    svg = console.export_svg(title="standfast demo", unique_id="demo")
    # Use the reader's own font instead of loading one from a server.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, ", "")


def animate(svg: str, lines: list[Line], seconds: float) -> str:
    """Show the lines one after the other in a window of ``ROWS`` lines, again and again."""
    hidden = (len(lines) - ROWS) * LINE_HEIGHT

    def shrink(match: re.Match[str]) -> str:
        return f"{match[1]}{float(match[2]) - hidden:.1f}{match[3]}"

    svg = re.sub(r'(viewBox="0 0 \S+ )([\d.]+)(")', shrink, svg, count=1)
    svg = re.sub(r'(<clipPath id="demo-clip-terminal">\s*<rect [^>]*height=")([\d.]+)(")', shrink, svg, count=1)
    svg = re.sub(r'(<rect fill="#\w+" stroke=[^>]*height=")([\d.]+)(")', shrink, svg, count=1)
    svg = re.sub(r'class="(demo-r\d+)"([^>]*url\(#demo-line-(\d+)\))', r'class="\1 demo-l\3"\2', svg)
    still = next(number for number, line in enumerate(lines) if STILL in line.text.plain)
    rules = [f".demo-matrix {{ transform: translateY(-{max(0, still + 1 - ROWS) * LINE_HEIGHT:.1f}px); }}"]
    scroll = []
    for number, line in enumerate(lines):
        share = 100 * line.at / seconds
        rules.append(f"@keyframes demo-k{number} {{ 0% {{ opacity: 0 }} {share:.2f}% {{ opacity: 1 }} }}")
        rules.append(f".demo-l{number} {{ animation: demo-k{number} {seconds:.1f}s infinite step-end }}")
        scroll.append(f"{share:.2f}% {{ transform: translateY(-{max(0, number + 1 - ROWS) * LINE_HEIGHT:.1f}px) }}")
    rules.append(f"@keyframes demo-scroll {{ 0% {{ transform: translateY(0) }} {' '.join(scroll)} }}")
    rules.append(
        f".demo-matrix {{ animation: demo-scroll {seconds:.1f}s infinite; animation-timing-function: step-end }}"
    )
    rules.append("@media (prefers-reduced-motion) { * { animation: none !important } }")
    return svg.replace("</style>", "\n".join([*rules, "</style>"]), 1)


def main() -> None:
    lines = record_lines()
    seconds = schedule(lines)
    PICTURE.write_text(animate(draw(lines), lines, seconds))
    print(f"wrote {PICTURE}: {len(lines)} lines, {seconds:.0f} s")


if __name__ == "__main__":
    main()
