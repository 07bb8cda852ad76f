"""Run a folder of programs on openai-agents and on standfast, and compare output, error and request bodies.

``python -m compat.programs_check [FOLDER]``; the programs are written for openai-agents.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
# Programs that do something else on standfast, and why; the guide has the same list.
KNOWN_DIFFERENCES = {
    "agent_as_tool": "the wording of the input schema of an agent as a tool",
    "agent_as_tool_extractor": "the wording of the input schema of an agent as a tool",
}
# Ids that a library makes itself, which differ from run to run.
_OWN_ID = re.compile(r"\b(trace|span|group|run|input)_[0-9a-f-]{8,}|0x[0-9a-f]+")


def run_on_both(folder: Path = PROGRAMS) -> dict[str, tuple[Any, Any]]:
    """Return for each program what it did on openai-agents and on standfast."""
    started = [
        subprocess.Popen([sys.executable, "-m", "compat.execute", library, str(folder)], stdout=subprocess.PIPE)
        for library in ("agents", "standfast")
    ]
    theirs, ours = (json.loads(process.communicate()[0]) for process in started)
    return {name: (theirs[name], ours[name]) for name in theirs}


def find_differences(theirs: Any, ours: Any) -> list[str]:
    """Return what differs between the two results of a program."""
    return [
        f"{part}:\n  openai-agents: {before}\n  standfast:     {after}"
        for part in ("output", "error", "requests")
        if (before := _normalize(theirs[part])) != (after := _normalize(ours[part]))
    ]


def _normalize(value: Any) -> Any:
    """Return the value without ids of the libraries, and without fields that are null or empty."""
    if isinstance(value, dict):
        parts = {name: _normalize(part) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part not in (None, [], {})}
    if isinstance(value, list):
        return [_normalize(part) for part in value]
    return _OWN_ID.sub("ID", value) if isinstance(value, str) else value


def main() -> int:
    results = run_on_both(Path(sys.argv[1]) if len(sys.argv) > 1 else PROGRAMS)
    differing = {name: found for name, pair in results.items() if (found := find_differences(*pair))}
    for name, found in differing.items():
        print(f"--- {name}", *([KNOWN_DIFFERENCES[name]] if name in KNOWN_DIFFERENCES else found), sep="\n")
    print(f"{len(results) - len(differing)} of {len(results)} programs do the same on both libraries")
    return 1 if differing.keys() - KNOWN_DIFFERENCES.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
