"""Facts about the machine, and a warning if it is busy."""

import os
import platform
import sqlite3
import sys
from importlib import metadata
from pathlib import Path

from bench.environments import AGENTS, JUPYTER, get_versions

PACKAGES = ("standfast", "msgspec", "pydantic", "openai", "websockets", "matplotlib")
COMPETITORS = (
    "openai-agents",
    "pydantic-ai-slim",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "jupyter_client",
    "ipykernel",
)


def collect_facts() -> dict[str, object]:
    competitors = get_versions(AGENTS) | get_versions(JUPYTER)
    return {
        "cpu": get_cpu_name(),
        "cores": count_cores(),
        "memory": get_memory(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version for name in PACKAGES if (version := get_version(name))},
        "competitors": {name: competitors[name] for name in COMPETITORS if name in competitors},
    }


def get_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def get_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def get_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def get_load_warning(load: float, cores: int) -> str:
    """Return a warning if other work uses the machine, or else an empty string."""
    if load <= cores / 2:
        return ""
    return (
        f"WARNING: load average {load:.2f} on {cores} cores. Other work uses this machine: wall-clock times are too "
        "long, ratios vary, and a target missed here may be met on an idle machine (and vice versa)."
    )
