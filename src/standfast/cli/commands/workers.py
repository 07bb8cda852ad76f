"""``workers``: run code in sandboxed workers, list their processes, check the sandbox."""

import asyncio
import base64
import codeop
import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from standfast.base.errors import InvalidInput, Unsupported
from standfast.base.text import make_visible
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, print_utf8
from standfast.cli.commands._prompt import PromptInterrupted, ask, handle_interrupt
from standfast.workers import ExecuteMessage, SandboxPolicy, SessionConfig, WorkerSession, probe_sandbox
from standfast.workers.wire.messages import DisplayMessage, ErrorMessage, InputMessage, OutputMessage, ResultMessage

PROC = Path("/proc")
COMPLETION_SECONDS = 2.0
"""How long Tab waits for a worker."""
SERVER_MODULE = b"standfast.workers.child.forkserver"


@dataclass(frozen=True)
class WorkerProcessInfo:
    """A process of the workers: a fork server forks supervisors, and a supervisor forks a worker."""

    pid: int
    parent: int
    role: str
    memory_mb: float
    age: str


def list_worker_processes() -> list[WorkerProcessInfo]:
    """List fork servers, supervisors and workers, oldest first."""
    if not PROC.joinpath("self", "stat").exists():
        raise Unsupported("worker processes can only be listed on systems with /proc (Linux)")
    pids = [pid for pid in list_pids() if SERVER_MODULE in read_proc_file(pid, "cmdline")]
    processes = [read_process_info(pid, find_role(pid, set(pids))) for pid in pids]
    return sorted((process for process in processes if process is not None), key=lambda process: process.pid)


def list_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def read_proc_file(pid: int, name: str) -> bytes:
    try:
        return PROC.joinpath(str(pid), name).read_bytes()
    except OSError:  # it has exited or is not readable
        return b""


def find_role(pid: int, pids: set[int]) -> str:
    """Return the role of one of these processes by its ancestors. A fork server with namespaces is two processes."""
    parent = read_parent(pid)
    if parent not in pids:
        return "fork-server"
    if (grandparent := read_parent(parent)) not in pids:
        return "fork-server" if count_namespaces(pid) > count_namespaces(parent) else "supervisor"
    in_server = read_parent(grandparent) not in pids and count_namespaces(parent) > count_namespaces(grandparent)
    return "supervisor" if in_server else "worker"


def read_parent(pid: int) -> int:
    fields = read_proc_file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def count_namespaces(pid: int) -> int:
    """Return in how many process namespaces a process is."""
    lines = read_proc_file(pid, "status").splitlines()
    return max((len(line.split()) - 1 for line in lines if line.startswith(b"NSpid:")), default=1)


def read_process_info(pid: int, role: str) -> WorkerProcessInfo | None:
    fields = read_proc_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 22:
        return None
    parent, started, pages = int(fields[1]), int(fields[19]), int(fields[21])
    booted = time.time() - float(PROC.joinpath("uptime").read_text().split()[0])
    seconds = max(0, int(time.time() - booted - started / os.sysconf("SC_CLK_TCK")))
    memory = round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    return WorkerProcessInfo(
        pid, parent, role, memory, f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
    )


app = typer.Typer(no_args_is_help=True, add_completion=False)

Network = Annotated[
    str, typer.Option(help="none, host, or a list of allowed hosts: api.example.org,*.pypi.org", metavar="NETWORK")
]
MemoryMb = Annotated[int, typer.Option(min=1, help="Memory limit in megabytes.")]
Require = Annotated[
    str,
    typer.Option(help="The weakest sandbox level to accept: namespaces, locked or plain (none).", metavar="LEVEL"),
]
Preload = Annotated[str, typer.Option(help="Modules to import in advance: numpy,pandas")]


def build_session_config(network: str, memory_mb: int, preload: str, require: Any) -> SessionConfig:
    hosts = tuple(name.strip() for name in network.split(",") if name.strip())
    allowed: Any = network if network in ("none", "host") else hosts
    policy = SandboxPolicy(network=allowed, memory_mb=memory_mb, require=require)
    return SessionConfig(sandbox=policy, preload=tuple(name.strip() for name in preload.split(",") if name.strip()))


@app.command("exec")
@command
async def exec_(
    code: Annotated[str | None, typer.Argument(help="Python code; - reads it from standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Run this file instead.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds after which the code is stopped.")] = 30.0,
    network: Network = "none",
    memory_mb: MemoryMb = 1024,
    preload: Preload = "",
    require: Require = "namespaces",
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the output as it is. Default: invisible characters are escaped.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run code in a new sandboxed worker. Exit code 1 if it fails.

    Control characters, and others that cannot be seen, are printed as escapes such as \\u001b unless --raw is given.

    standfast workers exec "sum(range(10))"

    standfast workers exec --file report.py --preload pandas --json
    """
    if (code is None) == (file is None):
        raise InvalidInput("use either CODE or --file")
    source = file.read_text(encoding="utf-8") if file else sys.stdin.read() if code == "-" else str(code)
    async with start_session(build_session_config(network, memory_mb, preload, require), as_json) as session:
        if not as_json:
            return await stream_code(session, source, timeout=timeout, raw=raw)
        result = await run_code(session, source, timeout=timeout)
    CommandPrinter(True).print_result(result, "")
    return 0 if result["ok"] else FAILED


@asynccontextmanager
async def start_session(config: SessionConfig, as_json: bool) -> AsyncIterator[WorkerSession]:
    """Start a worker and report modules that could not be preloaded."""
    async with AsyncExitStack() as stack:
        with CommandPrinter(as_json).show_status("starting a worker"):
            session = await stack.enter_async_context(WorkerSession(config))
        for name, reason in session.info.metadata["preload_failed"].items():
            print(f"[{make_visible(name)} could not be preloaded: {make_visible(str(reason))}]", file=sys.stderr)
        yield session


async def run_code(session: WorkerSession, source: str, *, timeout: float | None) -> dict[str, Any]:
    """Run code and return the result as JSON data."""
    result = await session.run(source, timeout=timeout)
    error = result.error
    return {
        "ok": result.ok,
        "repr": result.repr,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "error": None if error is None else {"type": error.exception_type, "message": error.exception_message},
        "timed_out": result.timed_out,
        "state": result.state,
        "seconds": result.execution_time,
        "sandbox": session.info.metadata.get("sandbox"),
    }


async def stream_code(session: WorkerSession, source: str, *, timeout: float | None, raw: bool = False) -> int:
    """Run code and print its output as it arrives; invisible characters as escapes unless ``raw``."""

    def show(text: str) -> str:
        return text if raw else make_visible(text, multiline=True)

    code = 0
    async for message in session.execute(ExecuteMessage(code=source), timeout=timeout):
        match message:
            case OutputMessage():
                stream = sys.stdout if message.stream == "stdout" else sys.stderr
                if message.dropped:
                    stream.write(f"\n[{message.dropped} bytes omitted]\n")
                stream.write(show(message.data))
                stream.flush()
            case DisplayMessage():
                print(show(str(message.data.get("text/plain", f"[{', '.join(message.data)}]"))))
                save_picture(message.data)
            case InputMessage():
                await session.input_response(message.id, await read_input(message))
            case ResultMessage(repr=shown) if shown:
                print(show(shown))
                save_picture(message.data)
            case ErrorMessage():
                text = message.traceback or f"{message.exception_type}: {message.exception_message}"
                print(show(text), file=sys.stderr)
                if session.config.sandbox.network == "none" and any(sign in text for sign in SIGNS_OF_NO_NETWORK):
                    print("[this worker has no network: see --network]", file=sys.stderr)
                code = FAILED
    return code


SIGNS_OF_NO_NETWORK = (
    "Network is unreachable",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to resolve",
    "nodename nor servname provided",
)


def save_picture(data: dict[str, Any]) -> None:
    """Save a picture among the representations of a value in the current directory, and print its name."""
    for kind, suffix in (("image/png", "png"), ("image/jpeg", "jpg"), ("image/svg+xml", "svg")):
        content = data.get(kind)
        if content is None:
            continue
        if isinstance(content, str):
            content = content.encode() if suffix == "svg" else base64.b64decode(content)
        number = next(number for number in itertools.count(1) if not Path(f"figure-{number}.{suffix}").exists())
        Path(f"figure-{number}.{suffix}").write_bytes(content)
        print(f"[saved as figure-{number}.{suffix}]")
        return


async def read_input(message: InputMessage) -> str:
    try:
        return await ask(make_visible(message.prompt, multiline=True), secret=message.password)
    except EOFError:
        raise InvalidInput("the code asks for input, but standard input has ended") from None


@app.command()
@command
async def repl(
    network: Network = "none",
    memory_mb: MemoryMb = 1024,
    preload: Preload = "",
    require: Require = "namespaces",
    as_json: AsJson = False,
) -> None:
    """Start an interactive sandboxed Python. Ctrl-C interrupts the code and keeps the variables; Ctrl-D quits.

    So does exit(). Tab completes names. Figures are saved in the current directory.

    With --json the result of each statement on standard input is printed as one line.

    standfast workers repl --preload numpy
    """
    async with start_session(build_session_config(network, memory_mb, preload, require), as_json) as session:
        level = session.info.metadata.get("sandbox")
        if not as_json:
            print(f"Python in a worker (sandbox: {level}, network: {network}). Ctrl-D quits.")
        complete_by(session)
        while (source := await read_cell(as_json)) is not None and source.strip() not in LEAVE:
            async with forward_interrupts(session):
                if as_json:
                    result = await run_code(session, source, timeout=None)
                    print_utf8(msgspec.json.encode(result))
                else:
                    await stream_code(session, source, timeout=None)
            if not session.is_alive:
                print("[the worker has exited and its variables are lost; starting a new one]", file=sys.stderr)
                await session.restart()


LEAVE = ("exit", "exit()", "quit", "quit()")


def complete_by(session: WorkerSession) -> None:
    """Complete names with Tab as the worker knows them. The line is read in a thread, so the worker can be asked."""
    with contextlib.suppress(ImportError):
        import readline

        loop, found = asyncio.get_running_loop(), list[str]()

        def complete(text: str, index: int) -> str | None:
            if index == 0:
                line = readline.get_line_buffer()[: readline.get_endidx()]
                question = asyncio.run_coroutine_threadsafe(session.complete(line), loop)
                head = text.rpartition(".")[0]
                try:
                    names = question.result(timeout=COMPLETION_SECONDS)
                except Exception:  # noqa: BLE001 - must not disturb the prompt
                    names = ()
                found[:] = [name if name.startswith(text) or not head else f"{head}.{name}" for name in names]
            return found[index] if index < len(found) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?")
        readline.parse_and_bind("tab: complete")


async def read_cell(silent: bool = False) -> str | None:
    """Read lines until they form a complete statement, like Python's own prompt; None at the end of input."""
    lines: list[str] = []
    while True:
        try:
            lines.append(await ask("" if silent else "... " if lines else ">>> "))
        except EOFError:
            if not silent:
                print()
            return None
        except PromptInterrupted:
            return None
        source = "\n".join(lines)
        try:
            complete = codeop.compile_command(source, symbol="exec") is not None
        except (SyntaxError, ValueError, OverflowError):
            return source  # the worker reports the error
        if complete and (len(lines) == 1 or not lines[-1].strip()):
            return source


@asynccontextmanager
async def forward_interrupts(session: WorkerSession) -> AsyncIterator[None]:
    """Interrupt the code in the worker on Ctrl-C inside the block."""
    stops = set[asyncio.Task[object]]()
    with handle_interrupt(lambda: stops.add(asyncio.ensure_future(session.interrupt()))):
        try:
            yield
        finally:
            await asyncio.gather(*stops, return_exceptions=True)


@app.command("list")
@command
async def list_(as_json: AsJson = False) -> None:
    """List the fork servers, supervisors and workers running on this machine.

    standfast workers list --json
    """
    columns = ("pid", "parent", "role", "memory_mb", "age")
    CommandPrinter(as_json).print_table(
        columns, map(dataclasses.asdict, list_worker_processes()), empty="no workers are running"
    )


@app.command()
@command
async def doctor(as_json: AsJson = False) -> int:
    """Start workers to find out which sandbox level this machine supports.

    standfast workers doctor
    """
    with CommandPrinter(as_json).show_status("starting workers"):
        report = await probe_sandbox()
    lines = [
        f"sandbox level: [bold green]{report.level}[/]" if report.level else "[bold red]no worker can be started[/]"
    ]
    lines += [f"  [yellow]note:[/] {escape(note)}" for note in report.notes]
    lines += [f"  [yellow]{level} is not available:[/] {escape(reason)}" for level, reason in report.reasons.items()]
    CommandPrinter(as_json).print_result(dataclasses.asdict(report), "\n".join(lines))
    return 0 if report.level else FAILED
