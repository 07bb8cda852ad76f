"""What the figures were taken on, and whether they mean anything."""

import os
import platform
import sqlite3
import sys
from importlib import metadata
from pathlib import Path

from bench.environments import AGENTS, JUPYTER, versions

PACKAGES = ("standfast", "msgspec", "pydantic", "openai", "websockets", "matplotlib")
SHOWN = ("openai-agents", "pydantic-ai-slim", "langgraph", "langgraph-checkpoint-sqlite", "jupyter_client", "ipykernel")


def facts() -> dict[str, object]:
    peers = versions(AGENTS) | versions(JUPYTER)
    return {
        "cpu": processor(),
        "cores": cores(),
        "memory": memory(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version for name in PACKAGES if (version := installed(name))},
        "peers": {name: peers[name] for name in SHOWN if name in peers},
    }


def installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warning(load: float, cores: int) -> str:
    """A line to print where other work uses the machine; empty where the figures can be trusted."""
    if load <= cores / 2:
        return ""
    return (
        f"WARNING: load average {load:.2f} on {cores} cores. Other work uses this machine: times by the clock are too "
        "long, ratios swing, and a target missed here may be met on an idle machine (and the other way round)."
    )
