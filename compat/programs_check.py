"""Run a folder of programs on openai-agents and on standfast, and compare output, error and request bodies.

``python -m compat.programs_check [FOLDER]``; the programs are written for openai-agents. Without a folder it runs those
of this project, and records what they did on openai-agents in ``programs.json``, which the tests compare with.
"""

import hashlib
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
RECORDS = Path(__file__).with_name("programs.json")
PARTS = ("output", "error", "requests")
_HANDOFF_PROMPTS = [
    importlib.import_module(f"{library}.extensions.handoff_prompt").RECOMMENDED_PROMPT_PREFIX
    for library in ("agents", "standfast")
]
# Ids that a library makes itself, which differ from run to run.
_OWN_ID = re.compile(
    r"\b(trace|span|group|run|input)_[0-9a-f-]{8,}|0x[0-9a-f]+|(?<=Chunk ID: )[0-9a-f]+|(?<=Wall time: )[0-9.]+"
)


def run_on(library: str, folder: Path = PROGRAMS) -> dict[str, Any]:
    """Return what each program did on a library: its output, its error and its requests."""
    return _read_results(_start_on(library, folder))


def run_on_both(folder: Path = PROGRAMS) -> dict[str, tuple[Any, Any]]:
    """Return for each program what it did on openai-agents and on standfast."""
    started = [_start_on(library, folder) for library in ("agents", "standfast")]
    theirs, ours = map(_read_results, started)
    return {name: (theirs[name], ours[name]) for name in theirs}


def _start_on(library: str, folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "compat.execute", library, str(folder)], stdout=subprocess.PIPE)


def _read_results(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    results: dict[str, Any] = json.loads(process.communicate()[0])
    return results


def read_record(program: str) -> Any:
    """Return what a program of this project did on openai-agents when it was recorded.

    A program that was added or changed since then has no record.
    """
    record = json.loads(RECORDS.read_text())["programs"].get(program)
    if record is None or record["digest"] != _digest(PROGRAMS / f"{program}.py"):
        raise LookupError(f"no record of {program}.py as it is now: run `make programs`")
    return record


def write_records(results: dict[str, Any]) -> None:
    """Record what the programs of this project did on openai-agents, a line for each."""
    version = importlib.metadata.version("openai-agents")
    lines = [
        f"{json.dumps(name)}: {json.dumps({'digest': _digest(PROGRAMS / f'{name}.py'), **_normalize_all(result)})}"
        for name, result in results.items()
    ]
    body = ",\n".join(lines)
    RECORDS.write_text(f'{{"openai-agents": "{version}", "programs": {{\n{body}\n}}}}\n')


def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()[:16]


def find_differences(theirs: Any, ours: Any) -> list[str]:
    """Return what differs between the two results of a program."""
    return [
        f"{part}:\n  openai-agents: {before}\n  standfast:     {after}"
        for part in PARTS
        if (before := normalize(theirs[part])) != (after := normalize(ours[part]))
    ]


def _normalize_all(result: Any) -> dict[str, Any]:
    return {part: normalize(result[part]) for part in PARTS}


def normalize(value: Any) -> Any:
    """Return the value without ids of the libraries, and without fields that are null or empty."""
    if isinstance(value, dict):
        parts = {name: normalize(part) for name, part in _drop_wording(value).items()}
        if isinstance(parts.get("include"), list):
            parts["include"] = sorted(parts["include"])  # openai-agents has a set there
        return {name: part for name, part in parts.items() if part not in (None, [], {})}
    if isinstance(value, list):
        return [normalize(part) for part in value]
    return _OWN_ID.sub("ID", value) if isinstance(value, str) else value


def _drop_wording(value: dict[str, Any]) -> dict[str, Any]:
    """Return a request without the texts that each library words itself.

    These are the prompt about handoffs, what a sandbox agent is told about its workspace, and the descriptions of its tools.
    """
    instructions, tools = value.get("instructions"), value.get("tools")
    if not isinstance(instructions, str):
        return value
    if any(heading in instructions for heading in ("# Sandbox capability instructions\n", "# Filesystem\n")):
        told = re.search(
            r"# Agent instructions\n.*?(?=\n# (Sandbox capability instr|Filesystem)|\Z)", instructions, re.DOTALL
        )
        named = [{"type": one["type"], "name": one.get("name")} for one in tools or [] if isinstance(one, dict)]
        return {**value, "instructions": told and told[0], "tools": named}
    for prompt in _HANDOFF_PROMPTS:
        instructions = instructions.replace(prompt, "RECOMMENDED_PROMPT_PREFIX")
    return {**value, "instructions": instructions}


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PROGRAMS
    results = run_on_both(folder)
    differing = {name: found for name, pair in results.items() if (found := find_differences(*pair))}
    for name, found in differing.items():
        print(f"--- {name}", *found, sep="\n")
    print(f"{len(results) - len(differing)} of {len(results)} programs do the same on both libraries")
    if folder == PROGRAMS:
        write_records({name: theirs for name, (theirs, _) in results.items()})
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
