"""``demo``: a payment and variables that survive ``kill -9``, with real processes."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table

from standfast.base.errors import NotFound, StandfastError
from standfast.base.text import format_arguments
from standfast.cli.commands import demo_agent, demo_analyst
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, escape, print_json, show_status
from standfast.cli.commands._run_view import RunView, watch_run
from standfast.cli.commands.demo_call import OPENING_HOURS
from standfast.models.function_model import FunctionModel
from standfast.models.local.server import find_model_file
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.local.model import LocalRealtimeModel
from standfast.realtime.runner import RealtimeRunner
from standfast.runtime.handle import RunHandle
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import Approval
from standfast.workspaces.view import Workspace

KEPT = "standfast-demo.db"
WAIT_LIMIT = 120.0
MAX_WIDTH = 80
PAUSE_SECONDS = 4.0
DECISION_SECONDS = 0.5
"""How long the question is shown before it is decided."""
POLL_SECONDS = 0.02
EXAMPLE, TUTORIAL = "examples/support_desk/desk.py", "docs/tutorial.md"


@command
async def demo(
    slow: Annotated[bool, typer.Option("--slow", help="Pause after each step, to show it to others.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a payment and variables that survive a killed process, and an interrupted voice call.

    Takes about ten seconds, and needs no API key and no network. With --json only the result is printed. It leaves its
    store in standfast-demo.db, for the console.

    standfast demo --slow
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="standfast-demo-") as folder:
        store = prepare_store(Path(folder))
        demo = Demo(store, Path(folder) / "ledger.txt", quiet=as_json, pause_seconds=PAUSE_SECONDS if slow else 0.0)
        await demo.pause_for_approval()
        await demo.kill_during_payment()
        async with demo.run_process(demo_analyst) as analyst:  # it works while the lease of the dead process expires
            await demo.resolve_uncertain_call()
            await demo.kill_during_analysis(analyst)
        await demo.continue_analysis()
        await demo.interrupt_voice_call()
        seconds = time.monotonic() - start
        await asyncio.sleep(demo.pause_seconds)
        demo.print_next_steps(seconds)
        demo.print_console_command(store)
        if as_json:
            print_json(
                {
                    "payments": demo.count_payments(),
                    "analysis": demo.analysis,
                    "answer": OPENING_HOURS,
                    "heard": demo.heard_text,
                    "seconds": seconds,
                    "store": demo.store,
                }
            )


def prepare_store(folder: Path) -> Path:
    """Return the file for the store: in this folder, in place of that of an earlier demo, or else in ``folder``."""
    if not os.access(".", os.W_OK):
        return folder / KEPT
    for suffix in ("", "-wal", "-shm"):
        Path(f"{KEPT}{suffix}").unlink(missing_ok=True)
    return Path(KEPT)


class Demo:
    """Six steps on one SQLite file."""

    def __init__(self, store: Path, ledger: Path, *, quiet: bool = False, pause_seconds: float = 0.0) -> None:
        self.pause_seconds = pause_seconds
        self.store = f"sqlite:///{store}"
        self.ledger = ledger
        self.analysis = self.heard_text = ""
        self.console = Console(emoji=False, highlight=False, quiet=quiet)
        self.console.width = min(self.console.width, MAX_WIDTH)
        self.view = RunView(self.console, wraps=True)
        self.print_text(
            "[dim]The agents follow fixed rules, so that the demo is repeatable and needs no key. Everything else is "
            "real: processes, sandboxed workers, SQLite, kill -9, audio in real time.[/]"
        )

    def print_text(self, text: str) -> None:
        self.console.print(text)

    def print_said(self, who: str, text: str) -> None:
        """Print who says or does something, with the text beside it."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=3, no_wrap=True)
        grid.add_column()
        grid.add_row(who, text)
        self.console.print(grid)

    def print_you(self, text: str) -> None:
        self.print_said("[bold cyan]you[/]", text)

    async def begin_step(self, title: str) -> None:
        """Print the title of a step; in slow mode, first leave time to read the step before it."""
        await asyncio.sleep(self.pause_seconds)
        self.print_text("")
        self.console.print(Rule(f"[bold]{title}[/]", align="left", style="dim"))

    async def pause_for_approval(self) -> None:
        await self.begin_step("1  An agent computes in a sandbox and asks before it pays")
        self.print_you(demo_agent.REQUEST)
        async with self.run_process(demo_agent, str(self.ledger), demo_agent.REQUEST) as first:
            with show_status(self.console, "running in a separate process"):
                await first.wait()
        async with Runtime.open(self.store) as rt:
            run = (await rt.runs(session_id=demo_agent.SESSION))[-1]
            self.print_text(f"[dim]process {first.pid} ran this and has exited; the run waits in the store:[/]")
            async for event in (await rt.run(run.run_id)).events():
                self.view.show_event(event)
            self.print_approvals(*await rt.approvals(status="pending"))

    async def kill_during_payment(self) -> None:
        await self.begin_step("2  You approve, and the process is killed while it pays (kill -9)")
        async with Runtime.open(self.store) as rt:
            approval = (await rt.approvals(status="pending"))[0]
            call = f"[bold]{escape(approval.tool)}[/]({escape(format_arguments(approval.arguments))})"
            self.console.print(f"[bold yellow]?[/]    {call}  \\[y]es / \\[n]o: ", end="")
            await asyncio.sleep(DECISION_SECONDS + self.pause_seconds)
            decided = await rt.decide(approval.id, "approve", by="you")
            self.print_text("[bold cyan]y[/]")
            self.print_you(f"[bold green]{decided.status}[/] [dim]it; name, time and arguments are on record[/]")
        async with self.run_process(demo_agent, str(self.ledger)) as second:
            with show_status(self.console, "another process pays"):
                await self.wait_until_paid()
            second.kill()
            await second.wait()
        self.print_text(f"[bold red]kill -9 {second.pid}[/]: the ledger has the payment, but the bank's reply is lost:")
        self.print_text(f"     [yellow]{escape(self.ledger.read_text().strip())}[/]")

    async def resolve_uncertain_call(self) -> None:
        await self.begin_step("3  Another process resumes the run and does not pay again")
        async with demo_agent.open_treasurer_runtime(self.store, self.ledger) as rt:
            run = await rt.run((await rt.runs(session_id=demo_agent.SESSION))[-1].run_id)
            with show_status(self.console, "another process resumes it as soon as the lease of the dead one expires"):
                # The analyst's process may have blocked the run, because it does not have this agent.
                while not (approvals := (await run.wait()).approvals):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
            self.print_approvals(*approvals)
            self.print_you("It is in the ledger, so it happened: [bold]done[/]")
            seen = (await run.info()).steps
            await rt.decide(approvals[0].id, "done", output="the bank says: paid", by="you")
            await watch_run(run, self.view, after=seen)
            self.print_text(f"     payments in the ledger: [bold green]{self.count_payments()}[/]")
            question = "How much did you pay?"
            self.print_you(question)
            await watch_run(await rt.start("treasurer", question, session_id=demo_agent.SESSION), self.view)

    async def kill_during_analysis(self, process: asyncio.subprocess.Process) -> None:
        await self.begin_step("4  An agent fills variables, and its process is killed (kill -9)")
        self.print_you(escape(demo_analyst.REQUEST))
        async with Runtime.open(self.store) as rt:
            with show_status(self.console, "running in a separate process"):
                workspace = await self.wait_until_saved(rt, version=len(demo_analyst.PREPARATIONS))
            run = await rt.run((await rt.runs(session_id=demo_analyst.SESSION))[-1].run_id)
            process.kill()
            await process.wait()
            await self.show_outputs(run)
        kept = ", ".join(f"{one.name} ({one.type})" for one in workspace.variables if one.name in ("rain", "totals"))
        files = ", ".join(one.path for one in workspace.files)
        self.print_text(f"[bold red]kill -9 {process.pid}[/]: in the store are {escape(kept)}, {escape(files)}")

    async def continue_analysis(self) -> None:
        await self.begin_step("5  Another process continues with the same variables and files")
        model = FunctionModel(demo_analyst.choose_cell)
        async with demo_analyst.open_analyst_runtime(self.store, model) as rt:
            run = await rt.run((await rt.runs(session_id=demo_analyst.SESSION))[-1].run_id)
            seen = (await run.info()).steps
            with show_status(self.console, "another process resumes it as soon as the lease of the dead one expires"):
                outcome = await run.wait()
            await self.show_outputs(run, after=seen)
            self.analysis = str(outcome.final_output)
            self.print_text(escape(self.analysis))

    async def interrupt_voice_call(self) -> None:
        await self.begin_step("6  A voice call is interrupted: its history keeps what was heard")
        model = LocalRealtimeModel(FunctionModel(lambda request: OPENING_HOURS))
        session = await RealtimeRunner(RealtimeAgent(name="shop"), model=model).run()
        async with session:
            self.print_you("When are you open?")
            await session.send_message("When are you open?")
            async for event in session.events():
                if event.type == "audio":
                    break
            await asyncio.sleep(1.5)
            await session.interrupt()
            self.print_you("[italic](interrupts after a second and a half)[/]")
            self.heard_text = session.history[-1].model_dump()["content"][0]["transcript"]
        self.print_text(f"its answer: [dim]{escape(OPENING_HOURS)}[/]")
        self.print_text(f"in the history: [bold green]{escape(self.heard_text)}[/]")

    def count_payments(self) -> int:
        return len(self.ledger.read_text().splitlines())

    def print_next_steps(self, seconds: float) -> None:
        self.print_text("")
        self.console.print(Rule(f"[bold]That took {seconds:.1f} seconds. Try next[/]", align="left", style="dim"))
        for what, why in list_next_steps(get_program_name()):
            self.console.print(f"  [bold]{escape(what)}[/]", soft_wrap=True)
            self.console.print(Padding(f"[dim]{escape(why)}[/]", (0, 0, 0, 6)))

    def print_console_command(self, store: Path) -> None:
        """Name the command that opens the console on what the demo has left behind."""
        if store.is_absolute():  # a temporary folder, which is gone by then
            return
        self.print_text("\nSee what it left behind, in the console:")
        serve = f"{get_program_name()} serve --open -s sqlite:///{store}"
        is_missing = not is_console_built() and Path("console/package.json").exists()
        for line in ("make console", serve) if is_missing else (serve,):
            self.console.print(f"  [bold]{escape(line)}[/]", soft_wrap=True)

    def print_approvals(self, *approvals: Approval) -> None:
        for approval in approvals:
            call = f"[bold]{escape(approval.tool)}[/]({escape(format_arguments(approval.arguments))})"
            if approval.kind == "uncertain":
                self.print_said(
                    "[bold yellow]?[/]", f"{call} was running when its process died. It may have taken effect."
                )
            else:
                self.print_said("[bold yellow]?[/]", f"it wants to call {call}")

    @asynccontextmanager
    async def run_process(self, agent: ModuleType, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run an agent in a process of its own, which is killed when the block is left."""
        command = [sys.executable, "-m", agent.__name__, self.store, *args]
        process = await asyncio.create_subprocess_exec(*command)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def show_outputs(self, run: RunHandle, *, after: int = 0) -> None:
        """Print what the calls of a run have printed so far, without their code."""
        last = (await run.info()).steps
        async for event in run.events(after=after):
            if event.type == "calls.made":
                self.view.show_event(event)
            if event.seq == last:
                break

    async def wait_until_saved(self, rt: Runtime, *, version: int) -> Workspace:
        """Return the variables and files of the analyst when it has made this version of them, and saved some."""
        async with limit_wait("the analyst has not saved its variables"):
            while True:
                with suppress(NotFound):
                    workspace = await rt.workspace(demo_analyst.SESSION)
                    if workspace.version >= version and workspace.checkpoint is not None:
                        return workspace
                await asyncio.sleep(POLL_SECONDS)  # another process writes it

    async def wait_until_paid(self) -> None:
        async with limit_wait("the agent has not paid"):
            while not self.ledger.exists() or not self.ledger.read_text().endswith("\n"):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)  # another process writes it


@asynccontextmanager
async def limit_wait(problem: str) -> AsyncIterator[None]:
    """Raise TimeoutError with this problem when the block takes far longer than it should on any machine."""
    try:
        async with asyncio.timeout(WAIT_LIMIT):
            yield
    except TimeoutError:
        raise TimeoutError(f"{problem} within {WAIT_LIMIT} s: see `standfast doctor`") from None


def list_next_steps(standfast: str) -> list[tuple[str, str]]:
    """Suggest what to try next with what is installed and in this folder."""
    steps = [
        (f"{standfast} chat {EXAMPLE}", "talk to an agent that asks before it pays; no key needed"),
        (f"{standfast} chat", f"talk to a language model{get_model_hint()}"),
        (f"{standfast} new refunds", "a project of your own: an agent, a tool with approval, a test"),
        (f"{standfast} workers repl", "Python in a sandbox"),
        (f"{standfast} doctor", "what works on this machine"),
        (TUTORIAL, "build a durable agent in fifteen minutes"),
    ]
    return [(what, why) for what, why in steps if Path(what.split()[-1]).exists() or "/" not in what.split()[-1]]


def is_console_built() -> bool:
    try:
        from standfast.server.console_pages import CONSOLE
    except ImportError:  # without the extra: server, which the command asks for
        return True
    return (CONSOLE / "index.html").is_file()


def get_model_hint() -> str:
    if os.environ.get("OPENAI_API_KEY"):
        return ""
    try:
        find_model_file(None)
    except StandfastError:
        return ": set OPENAI_API_KEY first, or install the embedded one as doctor says"
    return ", the small embedded one, as no key is set"


def get_program_name() -> str:
    """Return the command that runs this program."""
    program = Path(sys.argv[0])
    if program.name != "standfast":
        return "python -m standfast"
    if (known := shutil.which("standfast")) is not None and program.exists() and program.samefile(known):
        return "standfast"
    return os.path.relpath(program)
