"""Sandboxed Python from the command line."""

import asyncio
import codeop
import dataclasses
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
from rich.markup import escape

from standfast.base.errors import InvalidInput, Unsupported
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import AsJson, CommandOutput, print_utf8
from standfast.cli.commands._prompt import PromptInterrupted, ask, handle_interrupt
from standfast.workers import ExecuteMessage, SandboxPolicy, SessionConfig, WorkerSession
from standfast.workers import probe_sandbox
from standfast.workers.wire.messages import DisplayMessage, ErrorMessage, InputMessage, OutputMessage, ResultMessage

PROC = Path("/proc")
SERVER_MODULE = b"standfast.workers.child.forkserver"


@dataclass(frozen=True)
class WorkerProcessInfo:
    """One process. Its parent is the program that owns it, or its fork-server."""

    pid: int
    parent: int
    role: str
    memory_mb: float
    age: str


def list_worker_processes() -> list[WorkerProcessInfo]:
    """Fork-servers and what they forked, oldest first."""
    if not PROC.joinpath("self", "stat").exists():
        raise Unsupported("worker processes can only be listed where there is a /proc (Linux)")
    marked = [pid for pid in list_pids() if SERVER_MODULE in read_proc_file(pid, "cmdline")]
    found = [read_process_info(pid, set(marked)) for pid in marked]
    return sorted((one for one in found if one is not None), key=lambda one: one.pid)


def list_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def read_proc_file(pid: int, name: str) -> bytes:
    try:
        return PROC.joinpath(str(pid), name).read_bytes()
    except OSError:  # it is gone, or not ours to see
        return b""


def read_process_info(pid: int, server_pids: set[int]) -> WorkerProcessInfo | None:
    fields = read_proc_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 22:
        return None
    parent, started, pages = int(fields[1]), int(fields[19]), int(fields[21])
    booted = time.time() - float(PROC.joinpath("uptime").read_text().split()[0])
    seconds = max(0, int(time.time() - booted - started / os.sysconf("SC_CLK_TCK")))
    role = "worker" if parent in server_pids else "fork-server"
    memory = round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    return WorkerProcessInfo(
        pid, parent, role, memory, f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
    )


app = typer.Typer(no_args_is_help=True)

Network = Annotated[
    str, typer.Option(help="none, host, or the only hosts to reach: api.example.org,*.pypi.org", metavar="WHICH")
]
MemoryMb = Annotated[int, typer.Option(min=1, help="Memory limit.")]
Preload = Annotated[str, typer.Option(help="Modules to import beforehand: numpy,pandas")]


def build_session_config(network: str, memory_mb: int, preload: str = "") -> SessionConfig:
    hosts = tuple(name.strip() for name in network.split(",") if name.strip())
    reach: Any = network if network in ("none", "host") else hosts
    policy = SandboxPolicy(network=reach, memory_mb=memory_mb)
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
    as_json: AsJson = False,
) -> int:
    """Run code in a fresh sandboxed worker. Exit code 1 when it fails.

    standfast workers exec "sum(range(10))"

    standfast workers exec --file report.py --preload pandas --json
    """
    if (code is None) == (file is None):
        raise InvalidInput("give either code or --file")
    source = file.read_text(encoding="utf-8") if file else sys.stdin.read() if code == "-" else str(code)
    async with start_session(build_session_config(network, memory_mb, preload), as_json) as session:
        if not as_json:
            return await stream_code(session, source, timeout=timeout)
        told = await run_code(session, source, timeout=timeout)
    CommandOutput(True).print_result(told, "")
    return 0 if told["ok"] else FAILED


@asynccontextmanager
async def start_session(config: SessionConfig, as_json: bool) -> AsyncIterator[WorkerSession]:
    """A worker, with a word about the modules that could not be imported beforehand."""
    async with AsyncExitStack() as owned:
        with CommandOutput(as_json).show_status("starting a worker"):
            session = await owned.enter_async_context(WorkerSession(config))
        for name, why in session.info.metadata["preload_failed"].items():
            print(f"[{name} was not imported beforehand: {why}]", file=sys.stderr)
        yield session


async def run_code(session: WorkerSession, source: str, *, timeout: float | None) -> dict[str, Any]:
    """What came of code, for a program."""
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


async def stream_code(session: WorkerSession, source: str, *, timeout: float | None) -> int:
    """Run code and print what it does while it does it."""
    code = 0
    async for message in session.execute(ExecuteMessage(code=source), timeout=timeout):
        match message:
            case OutputMessage():
                stream = sys.stdout if message.stream == "stdout" else sys.stderr
                if message.dropped:
                    stream.write(f"\n[{message.dropped} bytes left out]\n")
                stream.write(message.data)
                stream.flush()
            case DisplayMessage():
                print(message.data.get("text/plain", f"[{', '.join(message.data)}]"))
            case InputMessage():
                await session.input_response(message.id, await read_input(message))
            case ResultMessage(repr=shown) if shown:
                print(shown)
            case ErrorMessage():
                print(message.traceback or f"{message.exception_type}: {message.exception_message}", file=sys.stderr)
                code = FAILED
    return code


async def read_input(message: InputMessage) -> str:
    try:
        return await ask(message.prompt, secret=message.password)
    except EOFError:
        raise InvalidInput("the code asks for input, and there is none on standard input") from None


@app.command()
@command
async def repl(
    network: Network = "none", memory_mb: MemoryMb = 1024, preload: Preload = "", as_json: AsJson = False
) -> None:
    """Talk to a sandboxed Python. Ctrl-C stops the running code and keeps the variables; Ctrl-D ends.

    With --json each statement on standard input is answered by one line.

    standfast workers repl --preload numpy
    """
    async with start_session(build_session_config(network, memory_mb, preload), as_json) as session:
        level = session.info.metadata.get("sandbox")
        if not as_json:
            print(f"Python in a worker (sandbox: {level}, network: {network}). Ctrl-D ends.")
        while (source := await read_cell(as_json)) is not None:
            async with forward_interrupts(session):
                if as_json:
                    told = await run_code(session, source, timeout=None)
                    print_utf8(msgspec.json.encode(told))
                else:
                    await stream_code(session, source, timeout=None)
            if not session.is_alive:
                print("[the worker is gone, and its variables with it; a new one starts]", file=sys.stderr)
                await session.restart()


async def read_cell(silent: bool = False) -> str | None:
    """Lines until they are a whole statement, as Python's own prompt does it; None at the end of input."""
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
            whole = codeop.compile_command(source, symbol="exec") is not None
        except (SyntaxError, ValueError, OverflowError):
            return source  # the worker says what is wrong with it
        if whole and (len(lines) == 1 or not lines[-1].strip()):
            return source


@asynccontextmanager
async def forward_interrupts(session: WorkerSession) -> AsyncIterator[None]:
    """Meanwhile Ctrl-C is for the code in the worker."""
    stops = set[asyncio.Task[object]]()
    with handle_interrupt(lambda: stops.add(asyncio.ensure_future(session.interrupt()))):
        yield
        await asyncio.gather(*stops, return_exceptions=True)


@app.command("list")
@command
async def list_(as_json: AsJson = False) -> None:
    """List the fork-servers and the processes of workers that run on this machine now.

    standfast workers list --json
    """
    columns = ("pid", "parent", "role", "memory_mb", "age")
    CommandOutput(as_json).print_table(
        columns, map(dataclasses.asdict, list_worker_processes()), empty="no workers are running"
    )


@app.command()
@command
async def doctor(as_json: AsJson = False) -> int:
    """Find out, by starting workers, how well this machine can lock them in.

    standfast workers doctor
    """
    with CommandOutput(as_json).show_status("starting workers"):
        report = await probe_sandbox()
    lines = [f"sandbox level: [bold green]{report.level}[/]" if report.level else "[bold red]no worker starts here[/]"]
    lines += [f"  [yellow]not enforced:[/] {escape(note)}" for note in report.notes]
    lines += [f"  [yellow]{level} does not work:[/] {escape(why)}" for level, why in report.reasons.items()]
    CommandOutput(as_json).print_result(dataclasses.asdict(report), "\n".join(lines))
    return 0 if report.level else FAILED
