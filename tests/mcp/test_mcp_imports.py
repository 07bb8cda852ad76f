"""When the ``mcp`` library is imported, and the error if it is not installed."""

import subprocess
import sys
from pathlib import Path

SRC = str(Path(__file__).parent.parent.parent / "src")


def run_python(code: str) -> str:
    program = f"import sys; sys.path.insert(0, {SRC!r})\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_declaring_a_server_does_not_import_the_library_and_needs_it_to_be_installed() -> None:
    output = run_python(
        "from standfast.mcp import *; MCPServerStdio({'command': 'x'}); print('mcp' in sys.modules)\n"
        "sys.modules['mcp'] = None\n"
        "try: MCPServerStdio({'command': 'x'})\n"
        "except ImportError as error: print(error)\n"
    )
    imported, message = output.splitlines()
    assert imported == "False"
    assert "pip install 'standfast[mcp]'" in message
