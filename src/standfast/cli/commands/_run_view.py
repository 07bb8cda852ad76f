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

from standfast.base.errors import InvalidInput, StandfastError
from standfast.base.items import extract_text
from standfast.cli.commands._errors import FAILED, WAITING
from standfast.cli.commands._output import Tracebacks, format_time, show_status
from standfast.cli.commands._prompt import ask
from standfast.cli.commands._store import format_store_option
from standfast.runtime._engine.records import RunProblem
from standfast.runtime.handle import RunHandle
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import Approval, Event, RunOutcome

_MAX_SHOWN_CHARS = 300  # characters of a call or an output that are shown

DecidedBy = Annotated[str | None, typer.Option(help="Who decides, for the record. Your login name without it.")]


class RunView:
    """Prints a run's events: words as they come, calls and outputs as they happen."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.line_open = False
        self.streamed = False
        self.printed_text = ""

    def show_event(self, event: Event) -> None:
        if event.live:
            self.print_delta(event.data)
            return
        if event.type == "model.answered":
            for item in event.data["items"]:
                self.print_item(item)
            self.streamed = False
        elif event.type == "calls.made":
            for item in event.data["items"]:
                self.print_line(f"[dim]  → {escape(shorten(extract_text(item)))}[/]")
        elif event.type == "agent.handed_over":
            self.print_line(f"[dim]  handed over to {escape(str(event.data['agent']))}[/]")
        elif event.type == "run.recovered":
            self.print_line("[dim]  taken up again after its process ended[/]")

    @staticmethod
    def is_visible(event: Event) -> bool:
        return event.live or event.type in ("model.answered", "calls.made", "agent.handed_over", "run.recovered")

    def print_delta(self, data: dict[str, Any]) -> None:
        if data.get("type") != "response.output_text.delta":
            return
        delta = str(data.get("delta", ""))
        if self.printed_text.startswith(delta):  # words can come behind the answer that they are of
            self.printed_text = self.printed_text[len(delta) :]
            return
        self.console.print(escape(delta), end="")
        self.line_open = self.streamed = True

    def print_item(self, item: dict[str, Any]) -> None:
        if item.get("type") == "function_call":
            self.print_line(f"[magenta]  {escape(str(item['name']))}[/]({escape(shorten(item.get('arguments', '')))})")
        elif item.get("type", "message") == "message" and not self.streamed:
            self.printed_text = extract_text(item)
            self.print_line(escape(self.printed_text))

    def print_line(self, text: str = "") -> None:
        if self.line_open:
            self.console.print()
            self.line_open = False
        if text:
            self.console.print(text)


def shorten(text: str) -> str:
    return (
        text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS // 2]} … {text[-_MAX_SHOWN_CHARS // 2 :]}"
    )


async def watch_run(run: RunHandle, view: RunView | None, *, after: int = 0) -> RunOutcome:
    """Show a run until it ends or waits."""
    if view is not None:
        with show_status(view.console, "thinking") as spinner:
            async for event in run.events(after=after):
                if spinner is not None and view.is_visible(event):
                    spinner.stop()
                view.show_event(event)
        view.print_line()
    return await run.wait()


async def prompt_approval(rt: Runtime, approval: Approval, view: RunView, *, editable: bool = True) -> bool:
    """Put one question; False when it stays open. Arguments are ``editable`` where the tool can check them."""
    view.print_line(format_approval(approval))
    while True:
        try:
            said = (await ask(f"  {format_choices(approval, editable)} / [l]ater: ")).strip().lower()[:1]
            if said == "l":
                return False
            if await apply_choice(rt, approval, said, editable):
                return True
        except EOFError:
            return False
        except StandfastError as refused:
            view.print_line(f"[red]  {escape(str(refused))}[/]")


def format_choices(approval: Approval, editable: bool) -> str:
    if approval.kind == "uncertain":
        return "[y]es, run it / [n]o / [d]one, it happened"
    return "[y]es / [n]o / [e]dit" if editable else "[y]es / [n]o"


async def apply_choice(rt: Runtime, approval: Approval, choice: str, editable: bool) -> bool:
    """Do what was said; False when it is no answer."""
    match choice:
        case "y":
            await rt.decide(approval.id, "approve", by=get_login_name())
        case "n":
            why = await ask("  why (told to the model, may be empty): ")
            await rt.decide(approval.id, "reject", message=why or None, by=get_login_name())
        case "e" if editable and approval.kind != "uncertain":
            await rt.decide(approval.id, "approve", arguments=edit_arguments(approval), by=get_login_name())
        case "d" if approval.kind == "uncertain":
            await rt.decide(approval.id, "done", output=await ask("  its result: "), by=get_login_name())
        case _:
            return False
    return True


def format_approval(approval: Approval) -> str:
    call = f"[bold]{escape(approval.tool)}[/]({escape(approval.arguments)})"
    where = f"[dim]{format_time(approval.requested_at)}, conversation {escape(str(approval.session_id))}[/]"
    if approval.kind == "uncertain":
        return f"[bold yellow]?[/] {call} was under way when its process ended: it may have happened. {where}"
    return f"[bold yellow]?[/] {escape(approval.agent)} wants to call {call}  {where}"


def edit_arguments(approval: Approval) -> Any:
    """The arguments as the person changes them in their editor."""
    pretty = msgspec.json.format(approval.arguments.encode() or b"{}", indent=2)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "arguments.json")
        file.write_bytes(pretty)
        try:
            ended = subprocess.run([*editor, str(file)], check=False)  # noqa: S603 - the user's own editor
            if ended.returncode:
                raise EditFailed(f"the editor {editor[0]!r} ended with {ended.returncode}: nothing was decided")
            return msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError as error:
            raise EditFailed(f"these arguments are not JSON: {error}") from None
        except OSError as error:
            raise EditFailed(f"the editor {editor[0]!r} did not start ({error.strerror}): set EDITOR to one") from None


class EditFailed(InvalidInput):
    """The arguments were not edited; nothing was decided."""

    code = "not-edited"


def get_login_name() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a user without a name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def get_exit_code(outcome: RunOutcome) -> int:
    """What a command that ran something ends with."""
    return {"completed": 0, "waiting": WAITING}.get(outcome.status, FAILED)


def outcome_to_dict(outcome: RunOutcome) -> dict[str, Any]:
    return {
        "run_id": outcome.run_id,
        "status": outcome.status,
        "final_output": to_json_value(outcome.final_output),
        "approvals": list(outcome.approvals),
        "error": outcome.error,
    }


def to_json_value(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def format_problem(error: RunProblem) -> str:
    """What a run failed of. Errors of Python say little without their names: a KeyError is just the key."""
    kind, _, name = (error.type or "").rpartition(".")
    return f"{name}: {error.message}" if kind == "builtins" else error.message


def is_own_error(error: RunProblem) -> bool:
    """Whether it is one of standfast's, which say where they come from."""
    return error.type is None or error.type.startswith("standfast.")


def print_failure(outcome: RunOutcome, store: str, *, agent: str | None = None) -> None:
    """Say on standard error why there is no answer. ``agent`` is set where the command itself drove the run with it."""
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    if outcome.status == "waiting" and outcome.approvals:
        screen.print(f"[yellow]run {outcome.run_id} waits for approval:[/]")
        for approval in outcome.approvals:
            screen.print(f"  {escape(approval.id)}  {escape(approval.tool)}({escape(approval.arguments)})")
        options = escape(shlex.join(["--agent", agent or "AGENT", *format_store_option(store)]))
        screen.print(f"[dim]  standfast approvals approve ID {options}[/]")
        screen.print(f"[dim]  standfast approvals reject ID -m WHY {options}[/]")
    elif outcome.error is not None:
        more = "" if agent is None or Tracebacks.enabled or is_own_error(outcome.error) else " (--debug shows where)"
        screen.print(f"[bold red]{outcome.status}:[/] {escape(format_problem(outcome.error))}{more}")
    elif outcome.status != "completed":
        screen.print(f"[yellow]{outcome.status}[/]")
    sys.stderr.flush()
