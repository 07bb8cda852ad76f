"""Count the attempts of the security tests for ``security.md``, from the tests themselves.

Run it in the development environment: ``python docs/count_attempts.py``.
"""

import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("security.md")
BEGIN, END = "<!-- attempts -->\n", "<!-- end of attempts -->\n"

# Every case of a test counts once, and every entry of the tables in test_attempts.py.
AREAS = {
    "system calls, files, processes and networks from inside the sandbox": ["tests/security/test_attempts.py"],
    "files of the program and of the machine": ["tests/security/test_program_files.py"],
    "other workers: shared files, memory, the fork server": [
        "tests/security/test_shared_root.py",
        "tests/security/test_memory_of_others.py",
    ],
    "forged messages, floods and hostile directories against the host": [
        "tests/security/test_host_limits.py",
        "tests/security/test_directory_reads.py",
        "tests/workers/test_hostile_workers.py",
    ],
    "memory, processor time, and what stopped code leaves": ["tests/security/test_process_limits.py"],
    "ending or outliving the supervisor": ["tests/security/test_supervisor.py"],
    "the proxy for listed hosts": ["tests/security/test_proxy.py"],
    "the level `locked`": ["tests/security/test_locked_level.py"],
    "arguments of calls, and edited ones": ["tests/tool_calls/test_arguments.py"],
    "messages and outputs of MCP servers": ["tests/mcp/test_message_limits.py"],
    "requests against a server, also for what belongs to others": [
        "tests/server/test_hostile_requests.py",
        "tests/server/test_cells.py",
    ],
    "saved runs, repositories, archives and commands of sandbox agents, and shells": [
        "tests/security/test_sandbox_agents.py",
        "tests/security/test_shells.py",
    ],
    "forged answers of the nodes of a fleet, and other pools": ["tests/security/test_fleet_nodes.py"],
    "redirects of clients with keys and conversations": [
        "tests/security/test_redirects.py",
        "tests/realtime/test_websocket_redirects.py",
    ],
    "answers of a hostile server to its client": ["tests/security/test_hostile_servers.py"],
    "tokens and documents of an issuer": ["tests/server/test_oidc.py"],
    "rows of other owners in PostgreSQL": ["tests/store/test_row_security.py"],
    "text that a terminal would obey": ["tests/cli/test_foreign_text.py"],
    "deleted bytes in files of SQLite": ["tests/store/test_sqlite_erasure.py"],
    "manipulated records of encrypted histories": ["tests/history/test_encryption_tampering.py"],
}


def count_attempts(cases: Counter[str] | None = None) -> dict[str, int]:
    """Return the number of attempts in each area. ``cases`` has the test cases of each file, if they are known."""
    counts = cases or count_cases([file for files in AREAS.values() for file in files])
    tables = runpy.run_path(str(ROOT / "tests/security/test_attempts.py"))
    counts["tests/security/test_attempts.py"] = sum(map(len, (*tables["ATTEMPTS"].values(), tables["MODES"])))
    return {area: sum(counts[file] for file in files) for area, files in AREAS.items()}


def count_cases(files: list[str]) -> Counter[str]:
    """Return the number of test cases in each file."""
    options = ["--collect-only", "-qq", "-o", "addopts=", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return Counter({file: int(number) for file, number in re.findall(r"^(\S+\.py): (\d+)$", listed, re.MULTILINE)})


def read_page() -> dict[str, int]:
    """Return the numbers on the page."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {area: int(number) for area, number in re.findall(r"^\| (.+) \| (\d+) \|$", table, re.MULTILINE)}


def write_page() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    rows = [f"| {area} | {number} |\n" for area, number in count_attempts().items()]
    table = "".join(["| area | attempts |\n", "|---|---|\n", *rows])
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write_page()
