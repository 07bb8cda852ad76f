"""Print a run while it happens, and prompt for its approvals."""

import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.syntax import Syntax

from standfast.base.errors import InvalidInput, StandfastError
from standfast.base.text import extract_text, format_arguments, make_visible
from standfast.cli.commands._errors import FAILED, WAITING
from standfast.cli.commands._output import Tracebacks, escape, escape_lines, format_time, show_status
from standfast.cli.commands._prompt import PromptObsolete, ask
from standfast.cli.commands._store import describe_lock, format_store_option
from standfast.runtime.errors import ApprovalSettled
from standfast.runtime.handle import RunHandle
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import Approval, Event, RunOutcome, RunProblem

_MAX_SHOWN_CHARS = 300  # of a call or an output

POLL_SECONDS = 0.5
MAY_HAVE_HAPPENED = "may have happened"
NOT_DONE_MESSAGE = "The call had no effect."

DecidedBy = Annotated[str | None, typer.Option(help="Who decides, for the record. Default: your login name.")]


CODE_THEME = "ansi_dark"
"""The colours of the terminal, which can be read on light and on dark backgrounds."""


class RunView:
    """Prints the events of a run: text as it streams, tool calls and outputs as they happen."""

    def __init__(self, console: Console | None = None, *, wraps: bool | None = None) -> None:
        self.console = console or Console(emoji=False, highlight=False, soft_wrap=True)
        self.wraps = self.console.is_terminal if wraps is None else wraps
        """Whether text is wrapped by words and code is shown as code: on a terminal, by default."""
        self.line_open = False
        self.streamed = False
        self.printed_text = ""
        self.open_calls: dict[str, str] = {}
        """The names of the tools that have not returned yet, by the ids of their calls."""
        self.prose = MarkdownStream(self.console) if self.wraps else None

    def show_event(self, event: Event) -> None:
        if event.live:
            self.print_delta(event.data)
            return
        if event.type == "model.answered":
            if self.prose is not None:
                self.prose.finish()
            for item in event.data["items"]:
                self.print_item(item)
            self.streamed = False
        elif event.type == "calls.made":
            for item in event.data["items"]:
                self.open_calls.pop(item.get("call_id", ""), None)
                self.print_line(f"[dim]  → {escape_lines(shorten(extract_text(item)))}[/]")
        elif event.type == "agent.handed_over":
            self.print_line(f"[dim]  handed over to {escape(str(event.data['agent']))}[/]")
        elif event.type == "run.recovered":
            self.print_line("[dim]  resumed after its process ended[/]")

    @staticmethod
    def is_visible(event: Event) -> bool:
        return event.live or event.type in ("model.answered", "calls.made", "agent.handed_over", "run.recovered")

    def print_delta(self, data: dict[str, Any]) -> None:
        if data.get("type") != "response.output_text.delta":
            return
        delta = str(data.get("delta", ""))
        if self.printed_text.startswith(delta):  # a delta can arrive after the message it belongs to
            self.printed_text = self.printed_text[len(delta) :]
            return
        self.streamed = True
        if self.prose is not None:
            self.prose.add(delta)
        else:
            self.console.print(escape_lines(delta), end="")
            self.line_open = True

    def print_item(self, item: dict[str, Any]) -> None:
        if item.get("type") == "function_call":
            self.open_calls[item.get("call_id", "")] = item["name"]
            self.print_call(item["name"], item.get("arguments", ""))
        elif item.get("type", "message") == "message" and not self.streamed:
            self.printed_text = extract_text(item)
            if self.prose is None:
                self.print_line(escape_lines(self.printed_text))
            else:
                self.prose.print_block(self.printed_text)

    def print_call(self, name: str, arguments: str) -> None:
        """Print a call: code as code on a terminal, and everything else on one line."""
        code = find_code(arguments) if self.wraps else None
        if code is None:
            self.print_line(f"[magenta]  {escape(name)}[/]({escape(shorten(format_arguments(arguments)))})")
            return
        self.print_line(f"[magenta]  {escape(name)}[/]")
        shown = Syntax(make_visible(code.strip(), multiline=True), "python", theme=CODE_THEME, word_wrap=True)
        self.console.print(Padding(shown, (0, 0, 0, 4)), soft_wrap=False)

    def print_line(self, text: str = "") -> None:
        if self.line_open:
            self.console.print()
            self.line_open = False
        if text:
            self.console.print(text, soft_wrap=not self.wraps)


class MarkdownStream:
    """Prints the text of a model as Markdown on a terminal, wrapped by words: each paragraph when it is complete."""

    def __init__(self, console: Console) -> None:
        self.console, self.pending = console, ""

    def add(self, delta: str) -> None:
        """Take the next part of the text, and print what it completes."""
        self.pending += delta
        while (end := find_block_end(self.pending)) is not None:
            self.print_block(self.pending[:end])
            self.pending = self.pending[end:]

    def finish(self) -> None:
        """Print the rest of the text."""
        rest, self.pending = self.pending, ""
        self.print_block(rest)

    def print_block(self, text: str) -> None:
        if text.strip():
            shown = Markdown(make_visible(text, multiline=True), code_theme=CODE_THEME, hyperlinks=False)
            self.console.print(shown, soft_wrap=False)


def find_block_end(text: str) -> int | None:
    """Return where the first paragraph ends that is outside of a fence, or None if it is not complete."""
    fenced, place = False, 0
    for line in text.splitlines(keepends=True):
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        place += len(line)
        if not fenced and not line.strip() and line.endswith("\n") and text[:place].strip():
            return place
    return None


def find_code(arguments: str) -> str | None:
    """Return the code in the arguments of a call, if it is more than one line."""
    try:
        code = msgspec.json.decode(arguments).get("code")
    except (msgspec.DecodeError, AttributeError):
        return None
    return code if isinstance(code, str) and "\n" in code.strip() else None


def shorten(text: str) -> str:
    return (
        text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS // 2]} … {text[-_MAX_SHOWN_CHARS // 2 :]}"
    )


async def watch_run(run: RunHandle, view: RunView | None, *, after: int = 0) -> RunOutcome:
    """Print a run until it ends or waits."""
    if view is not None:
        with show_status(view.console, "thinking") as spinner:
            async for event in run.events(after=after):
                if spinner is not None and view.is_visible(event):
                    spinner.stop()
                view.show_event(event)
        view.print_line()
    return await run.wait()


async def prompt_approval(rt: Runtime, approval: Approval, view: RunView, *, editable: bool = True) -> bool:
    """Prompt for one decision; return False if it stays open. ``editable``: the tool can validate edited arguments.

    A decision that another person makes meanwhile ends the prompt.
    """
    view.print_line(format_approval(approval))
    while True:
        question = f"  {format_choices(approval, editable)} / [l]ater: "
        try:
            choice = (await ask(question, obsolete=wait_until_decided(rt, approval))).strip().lower()
            if choice[:1] == "l":
                return False
            if await apply_choice(rt, approval, choice, editable):
                return True
        except EOFError:
            return False
        except (PromptObsolete, ApprovalSettled):
            decided = await rt.approval(approval.id)
            view.print_line(f"\n[yellow]  decided elsewhere:[/] {decided.status} by {escape(str(decided.decided_by))}")
            return True
        except StandfastError as error:
            view.print_line(f"[red]  {escape(str(error))}[/]")


async def wait_until_decided(rt: Runtime, approval: Approval) -> None:
    """Return when the approval is no longer pending."""
    while (await rt.approval(approval.id)).status == "pending":  # noqa: ASYNC110 - another process may decide
        await asyncio.sleep(POLL_SECONDS)


def format_choices(approval: Approval, editable: bool) -> str:
    if approval.kind == "uncertain":
        return "[d]one, it happened / [n]ot done / the word again, to call it again"
    return "[y]es / [n]o / [e]dit" if editable else "[y]es / [n]o"


async def apply_choice(rt: Runtime, approval: Approval, choice: str, editable: bool) -> bool:
    """Submit the decision; return False if the choice is not valid.

    Only the whole word "again" repeats an uncertain call: "approve" and "abort" begin with the same letter.
    """
    uncertain = approval.kind == "uncertain"
    match choice if uncertain and choice == "again" else choice[:1]:
        case "y" if not uncertain:
            await rt.decide(approval.id, "approve", by=get_login_name())
        case "again":
            await rt.decide(approval.id, "again", by=get_login_name())
        case "n" if uncertain:
            await rt.decide(approval.id, "reject", message=NOT_DONE_MESSAGE, by=get_login_name())
        case "n":
            reason = await ask("  reason (sent to the model, may be empty): ")
            await rt.decide(approval.id, "reject", message=reason or None, by=get_login_name())
        case "e" if editable and not uncertain:
            await rt.decide(approval.id, "approve", arguments=edit_arguments(approval), by=get_login_name())
        case "d" if uncertain:
            await rt.decide(approval.id, "done", output=await ask("  its result: "), by=get_login_name())
        case _:
            return False
    return True


def format_approval(approval: Approval) -> str:
    call = f"[bold]{escape(approval.tool)}[/]({escape(format_arguments(approval.arguments))})"
    place = f"run {approval.run_id}" if approval.session_id is None else f"session {escape(approval.session_id)}"
    details = f"[dim]{format_time(approval.requested_at)}, {place}[/]"
    if approval.kind == "uncertain":
        return f"[bold yellow]?[/] {call} was not finished: it {MAY_HAVE_HAPPENED}. {details}"
    return f"[bold yellow]?[/] {escape(approval.agent)} wants to call {call}  {details}"


def edit_arguments(approval: Approval) -> Any:
    """Open the arguments in the user's editor and return the edited ones."""
    pretty = make_visible(msgspec.json.format(approval.arguments or "{}", indent=2), multiline=True)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "arguments.json")
        file.write_text(pretty, encoding="utf-8")
        try:
            completed = subprocess.run([*editor, str(file)], check=False)  # noqa: S603 - the user's own editor
            if completed.returncode:
                raise EditFailed(f"the editor {editor[0]!r} exited with {completed.returncode}: nothing was decided")
            return msgspec.json.decode(file.read_bytes())
        except msgspec.DecodeError as error:
            raise EditFailed(f"the edited arguments are not JSON: {error}") from None
        except OSError as error:
            raise EditFailed(f"the editor {editor[0]!r} did not start ({error.strerror}): set EDITOR") from None


class EditFailed(InvalidInput):
    """The arguments were not edited; nothing was decided."""

    code = "not-edited"


def get_login_name() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # the user id has no name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def get_exit_code(outcome: RunOutcome) -> int:
    """Return the exit code of a command that ran an agent."""
    return {"completed": 0, "waiting": WAITING}.get(outcome.status, FAILED)


def outcome_to_dict(outcome: RunOutcome) -> dict[str, Any]:
    return {
        "run_id": outcome.run_id,
        "status": outcome.status,
        "final_output": to_json_value(outcome.final_output),
        "approvals": [approval_to_dict(approval) for approval in outcome.approvals],
        "error": outcome.error,
    }


def approval_to_dict(approval: Approval) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(approval)
    return {
        **facts,
        "run": approval.run_id,
        "requested": format_time(approval.requested_at),
        "may_have_happened": approval.kind == "uncertain",
        "note": get_note(approval),
    }


def get_note(approval: Approval) -> str | None:
    """Return what must be known about the approval before anything is decided."""
    if approval.locked:
        return describe_lock()
    return MAY_HAVE_HAPPENED if approval.kind == "uncertain" and approval.status == "pending" else None


def to_json_value(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def format_problem(error: RunProblem) -> str:
    """Format the error of a run. Python's own errors are named, because the message of a KeyError is just the key."""
    kind, _, name = (error.type or "").rpartition(".")
    return f"{name}: {error.message}" if kind == "builtins" else error.message


def is_own_error(error: RunProblem) -> bool:
    """Return whether the error is one of standfast's, whose messages name their location."""
    return error.type is None or error.type.startswith("standfast.")


def list_decisions(approvals: Sequence[Approval]) -> list[str]:
    """Return the commands that decide the approvals. A call that may have happened is not offered for approval."""
    kinds = {approval.kind for approval in approvals}
    hints = ["approve ID", "reject ID -m REASON"] if "approval" in kinds else []
    return hints + (["done ID --output RESULT", "not-done ID", "approve ID --again"] if "uncertain" in kinds else [])


PROGRESS_HINTS = {
    "queued": "it starts when no other run holds its session and a program with its agent is open; to execute it here:",
    "running": "if the process that executes it has died, a program with its agent takes it over; to do that here:",
}


def print_progress_hint(status: str, run_id: str, store: str) -> None:
    """Print on standard error how a run that is under way continues."""
    if status in PROGRESS_HINTS:
        console = Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)
        command = shlex.join(["standfast", "runs", "resume", run_id, "--agent", "AGENT", *format_store_option(store)])
        console.print(f"[dim]{PROGRESS_HINTS[status]}\n  {escape(command)}[/]")
        sys.stderr.flush()


def print_failure(outcome: RunOutcome, store: str, *, agent: str | None = None) -> None:
    """Print on standard error why a run has no result. ``agent`` is set if the command itself ran the agent."""
    console = Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)
    if outcome.status == "waiting" and outcome.approvals:
        console.print(f"[yellow]run {outcome.run_id} is waiting for approval:[/]")
        for approval in outcome.approvals:
            note = f"  [bold yellow]{MAY_HAVE_HAPPENED}[/]" if approval.kind == "uncertain" else ""
            call = f"{escape(approval.tool)}({escape(format_arguments(approval.arguments))})"
            console.print(f"  {escape(approval.id)}  {call}{note}")
        options = shlex.join(["--agent", agent or "AGENT", *format_store_option(store)])
        for hint in list_decisions(outcome.approvals):
            console.print(f"[dim]  {escape(f'standfast approvals {hint} {options}')}[/]")
    elif outcome.error is not None:
        hint = "" if agent is None or Tracebacks.enabled or is_own_error(outcome.error) else " (--debug shows where)"
        shown = f"[bold red]{outcome.status}:[/] {escape_lines(format_problem(outcome.error))}{hint}"
        console.print(shown, soft_wrap=not console.is_terminal)
    elif outcome.status != "completed":
        console.print(f"[yellow]{outcome.status}[/]")
    sys.stderr.flush()
