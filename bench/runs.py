"""Runs: what a turn and a snapshot cost, beside openai-agents, pydantic-ai and langgraph, with a model that answers
at once. Targets are about openai-agents; what the others take is reported."""

import json
import subprocess
import sys
from pathlib import Path

from bench.rivals.measuring import EXCHANGES, LONG, SHORT, SNAPSHOT
from bench.rows import Figure, at_least, at_most, micro

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers" / "agents"
PACKAGES = ("openai-agents>=0.22", "pydantic-ai-slim", "langgraph", "langgraph-checkpoint-sqlite")
OURS, MAIN = "holdfast", "openai-agents"
RIVALS = {
    OURS: ["bench.rivals.runners", "holdfast"],
    MAIN: ["bench.rivals.runners", "agents"],
    "pydantic-ai": ["bench.rivals.pydantic_ai"],
    "langgraph": ["bench.rivals.langgraph"],
}
Found = dict[str, dict[str, float]]


def peers_python() -> str:
    """The interpreter of the peers' environment, made on first use."""
    python = PEERS / "bin" / "python"
    if not (PEERS / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (PEERS / "ready").touch()
    return str(python)


def measured() -> Found:
    """The best figures of each rival. We take turns with every one of them, so that noise falls on all alike."""
    peers, found = peers_python(), dict[str, dict[str, float]]()
    for peer in list(RIVALS)[1:]:
        for name, python in ((OURS, sys.executable), (peer, peers)):
            command = [python, "-W", "ignore", "-m", *RIVALS[name]]
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            best = found.setdefault(name, {})
            for key, value in json.loads(done.stdout).items():
                best[key] = min(value, best.get(key, value))
    return found


def beside(found: Found, key: str, name: str, limit: float) -> list[Figure]:
    """One line per rival that has the figure; the first has a target."""
    ours, rows = found[OURS][key], []
    for rival, figures in found.items():
        if rival == OURS or key not in figures:
            continue
        texts, ratio = (micro(ours), micro(figures[key])), figures[key] / ours
        if rival == MAIN:
            rows.append(at_least(f"{name}, beside {rival}", *texts, ratio, limit))
        else:
            rows.append(Figure(f"  ... beside {rival}", *texts, round(ratio, 2), "", None))
    return rows


def growth(found: Found, key: str, base: str, name: str) -> list[Figure]:
    """How our own figure grows, which has a target, and how those of the others do."""
    rows = []
    for rival, figures in found.items():
        if key not in figures:
            continue
        texts, ratio = (micro(figures[key]), micro(figures[base])), figures[key] / figures[base]
        if rival == OURS:
            rows.append(at_most(f"{name}, ours", *texts, ratio, 1.3))
        else:
            rows.append(Figure(f"  ... {rival}'s own", *texts, round(ratio, 2), "", None))
    return rows


def figures() -> list[Figure]:
    found = measured()
    rows: list[Figure] = []
    for label, suffix in (("no session", ""), ("SQLite", " stored")):
        short, long = f"turn {SHORT}{suffix}", f"turn {LONG}{suffix}"
        rows += beside(found, short, f"a turn of {SHORT}, {label}", 5)
        rows += beside(found, long, f"a turn of {LONG}, {label}", 30)
        rows += growth(found, long, short, f"{LONG} turns over {SHORT}, {label}")
    rows += beside(found, "exchange", f"exchange {EXCHANGES} of a conversation", 30)
    rows += growth(found, "exchange", "first exchange", f"exchange {EXCHANGES} over the first")
    rows += beside(found, "snapshot", f"to_json and from_json of {SNAPSHOT} turns", 10)
    small, big = int(found[OURS]["bytes"]), int(found[MAIN]["bytes"])
    rows.append(at_most(f"bytes of a snapshot of {SNAPSHOT} turns", f"{small:,}", f"{big:,}", small / big, 1 / 3))
    return rows + imports(found)


def imports(found: Found) -> list[Figure]:
    ours, rows = found[OURS]["import"], list[Figure]()
    for rival, own in found.items():
        texts, ratio = (f"{ours:.2f} s", f"{own['import']:.2f} s"), round(own["import"] / ours, 2)
        rows.append(Figure(f"  ... beside {rival}'s", *texts, ratio, "", None))
    return [at_most("import holdfast; holdfast.Runner", f"{ours:.2f} s", "0.3 s", ours / 0.3, 1), *rows[1:]]
