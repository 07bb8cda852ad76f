"""A run on the screen while it happens, and the questions it asks."""

import os
import shlex
import subprocess
import sys
import tempfile
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from holdfast.base.errors import HoldfastError, InvalidInput
from holdfast.base.items import text_of
from holdfast.cli.failing import FAILED, WAITING
from holdfast.cli.keyboard import ask
from holdfast.cli.opening import store_option
from holdfast.cli.output import Tracebacks, moment, working
from holdfast.runtime.contract import Approval, Event, RunOutcome
from holdfast.runtime.handle import RunHandle
from holdfast.runtime.records import Problem
from holdfast.runtime.runtime import Runtime

_LONGEST = 300  # characters of a call or an output that are shown

By = Annotated[str | None, typer.Option(help="Who decides, for the record. Your login name without it.")]


class Screen:
    """Prints a run's events: words as they come, calls and outputs as they happen."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.speaking = False
        self.streamed = False
        self.told = ""

    def show(self, event: Event) -> None:
        if event.live:
            self.say(event.data)
            return
        if event.type == "model.answered":
            for item in event.data["items"]:
                self.answered(item)
            self.streamed = False
        elif event.type == "calls.made":
            for item in event.data["items"]:
                self.line(f"[dim]  → {escape(shortened(text_of(item)))}[/]")
        elif event.type == "agent.handed_over":
            self.line(f"[dim]  handed over to {escape(str(event.data['agent']))}[/]")
        elif event.type == "run.recovered":
            self.line("[dim]  taken up again after its process ended[/]")

    @staticmethod
    def prints(event: Event) -> bool:
        return event.live or event.type in ("model.answered", "calls.made", "agent.handed_over", "run.recovered")

    def say(self, said: dict[str, Any]) -> None:
        if said.get("type") != "response.output_text.delta":
            return
        delta = str(said.get("delta", ""))
        if self.told.startswith(delta):  # words can come behind the answer that they are of
            self.told = self.told[len(delta) :]
            return
        self.console.print(escape(delta), end="")
        self.speaking = self.streamed = True

    def answered(self, item: dict[str, Any]) -> None:
        if item.get("type") == "function_call":
            self.line(f"[magenta]  {escape(str(item['name']))}[/]({escape(shortened(item.get('arguments', '')))})")
        elif item.get("type", "message") == "message" and not self.streamed:
            self.told = text_of(item)
            self.line(escape(self.told))

    def line(self, text: str = "") -> None:
        if self.speaking:
            self.console.print()
            self.speaking = False
        if text:
            self.console.print(text)


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


async def watched(run: RunHandle, screen: Screen | None, *, after: int = 0) -> RunOutcome:
    """Show a run until it ends or waits."""
    if screen is not None:
        with working(screen.console, "thinking") as spinner:
            async for event in run.events(after=after):
                if spinner is not None and screen.prints(event):
                    spinner.stop()
                screen.show(event)
        screen.line()
    return await run.wait()


async def asked(rt: Runtime, approval: Approval, screen: Screen, *, editable: bool = True) -> bool:
    """Put one question; False when it stays open. Arguments are ``editable`` where the tool can check them."""
    screen.line(question(approval))
    while True:
        try:
            said = (await ask(f"  {offered(approval, editable)} / [l]ater: ")).strip().lower()[:1]
            if said == "l":
                return False
            if await decided(rt, approval, said, editable):
                return True
        except EOFError:
            return False
        except HoldfastError as refused:
            screen.line(f"[red]  {escape(str(refused))}[/]")


def offered(approval: Approval, editable: bool) -> str:
    if approval.kind == "uncertain":
        return "[y]es, run it / [n]o / [d]one, it happened"
    return "[y]es / [n]o / [e]dit" if editable else "[y]es / [n]o"


async def decided(rt: Runtime, approval: Approval, said: str, editable: bool) -> bool:
    """Do what was said; False when it is no answer."""
    match said:
        case "y":
            await rt.decide(approval.id, "approve", by=login())
        case "n":
            why = await ask("  why (told to the model, may be empty): ")
            await rt.decide(approval.id, "reject", message=why or None, by=login())
        case "e" if editable and approval.kind != "uncertain":
            await rt.decide(approval.id, "approve", arguments=edited(approval), by=login())
        case "d" if approval.kind == "uncertain":
            await rt.decide(approval.id, "done", output=await ask("  its result: "), by=login())
        case _:
            return False
    return True


def question(approval: Approval) -> str:
    call = f"[bold]{escape(approval.tool)}[/]({escape(approval.arguments)})"
    where = f"[dim]{moment(approval.requested_at)}, conversation {escape(str(approval.session_id))}[/]"
    if approval.kind == "uncertain":
        return f"[bold yellow]?[/] {call} was under way when its process ended: it may have happened. {where}"
    return f"[bold yellow]?[/] {escape(approval.agent)} wants to call {call}  {where}"


def edited(approval: Approval) -> Any:
    """The arguments as the person changes them in their editor."""
    pretty = msgspec.json.format(approval.arguments.encode() or b"{}", indent=2)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "arguments.json")
        file.write_bytes(pretty)
        try:
            ended = subprocess.run([*editor, str(file)], check=False)  # noqa: S603 - the user's own editor
            if ended.returncode:
                raise NotEdited(f"the editor {editor[0]!r} ended with {ended.returncode}: nothing was decided")
            return msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError as error:
            raise NotEdited(f"these arguments are not JSON: {error}") from None
        except OSError as error:
            raise NotEdited(f"the editor {editor[0]!r} did not start ({error.strerror}): set EDITOR to one") from None


class NotEdited(InvalidInput):
    """The arguments were not edited; nothing was decided."""

    code = "not-edited"


def login() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a user without a name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def exit_code(outcome: RunOutcome) -> int:
    """What a command that ran something ends with."""
    return {"completed": 0, "waiting": WAITING}.get(outcome.status, FAILED)


def told(outcome: RunOutcome) -> dict[str, Any]:
    return {
        "run_id": outcome.run_id,
        "status": outcome.status,
        "final_output": plain(outcome.final_output),
        "approvals": list(outcome.approvals),
        "error": outcome.error,
    }


def plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def problem(error: Problem) -> str:
    """What a run failed of. Errors of Python say little without their names: a KeyError is just the key."""
    kind, _, name = (error.type or "").rpartition(".")
    return f"{name}: {error.message}" if kind == "builtins" else error.message


def own(error: Problem) -> bool:
    """Whether it is one of holdfast's, which say where they come from."""
    return error.type is None or error.type.startswith("holdfast.")


def complain(outcome: RunOutcome, store: str, *, agent: str | None = None) -> None:
    """Say on standard error why there is no answer. ``agent`` is set where the command itself drove the run with it."""
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    if outcome.status == "waiting" and outcome.approvals:
        screen.print(f"[yellow]run {outcome.run_id} waits for approval:[/]")
        for approval in outcome.approvals:
            screen.print(f"  {escape(approval.id)}  {escape(approval.tool)}({escape(approval.arguments)})")
        options = escape(shlex.join(["--agent", agent or "AGENT", *store_option(store)]))
        screen.print(f"[dim]  holdfast approvals approve ID {options}[/]")
        screen.print(f"[dim]  holdfast approvals reject ID -m WHY {options}[/]")
    elif outcome.error is not None:
        more = "" if agent is None or Tracebacks.wanted or own(outcome.error) else " (--debug shows where)"
        screen.print(f"[bold red]{outcome.status}:[/] {escape(problem(outcome.error))}{more}")
    elif outcome.status != "completed":
        screen.print(f"[yellow]{outcome.status}[/]")
    sys.stderr.flush()
