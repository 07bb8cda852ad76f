"""Draw what the examples print: ``python docs/draw_examples.py`` writes pictures to ``docs/images/examples/``.

The tests of pages write their pictures there: ``STANDFAST_PICTURES=docs/images/examples pytest tests/examples``.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/images/examples"
WIDTH = 100
EXAMPLES = {"first_history": "first_history.py", "approval_bot": "approval_bot/demo.py"}
ANALYST = "data_analyst/analyst.py"


def run_example(script: str, *arguments: str, folder: str) -> str:
    program = [sys.executable, str(ROOT / "examples" / script), *arguments]
    process = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True, env=os.environ)
    return process.stdout.strip()


def draw(name: str, command: str, output: str) -> None:
    """Write a picture of a terminal with the command and its output."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text(output), highlight=False)
    svg = console.export_svg(title=command, unique_id=name.replace("_", "-"))
    # Use the reader's own font instead of loading one from a server.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, ", "")
    (FOLDER / f"{name}.svg").write_text(svg)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, script in EXAMPLES.items():
            draw(name, f"python examples/{script}", run_example(script, folder=folder))
        run_example(ANALYST, "--out", folder, folder=folder)
        (FOLDER / "data_analyst.png").write_bytes(Path(folder, "north-chart.png").read_bytes())
    print(f"wrote {FOLDER}")


if __name__ == "__main__":
    main()
