"""The commands, gathered. What each does is in the module named after it."""

import logging
import sys
from typing import Annotated

import typer

from standfast import __version__
from standfast.cli.commands._output import AsJson, CommandOutput, Tracebacks
from standfast.cli.lazy_commands import LazyGroup


class Standfast(LazyGroup):
    lazy_commands = (
        (
            "demo",
            "standfast.cli.commands.demo:demo",
            "Watch a payment survive a killed process, and a call that is interrupted.",
        ),
        ("chat", "standfast.cli.commands.chat:chat", "Talk to an agent."),
        ("run", "standfast.cli.commands.chat:run", "Let an agent answer one input."),
        (
            "sessions",
            "standfast.cli.commands.sessions:app",
            "Look into conversations, search, branch, move and mend them.",
        ),
        ("runs", "standfast.cli.commands.runs:app", "Look into durable runs, resume, cancel and fork them."),
        ("approvals", "standfast.cli.commands.approvals:app", "Answer what agents ask."),
        ("workers", "standfast.cli.commands.workers:app", "Run Python in sandboxed workers."),
        (
            "doctor",
            "standfast.cli.commands.doctor:doctor",
            "Say what works on this machine and what to install for the rest.",
        ),
    )


app = typer.Typer(
    name="standfast",
    cls=Standfast,
    help="Agent sessions that survive crashes and stay consistent.",
    epilog="Begin with: standfast demo. Exit codes: 0 done, 1 failed, 2 wrong use, 3 waits for an approval, "
    "4 conflict, 5 not found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version_and_exit(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit


@app.callback()
def configure(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="STANDFAST_DEBUG", help="Show the traceback when something fails.")
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version_and_exit, help="Print the version.")
    ] = False,
) -> None:
    Tracebacks.enabled = debug


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version.

    standfast version --json
    """
    CommandOutput(as_json).print_result({"version": __version__}, f"standfast {__version__}")


def main() -> None:
    """Run ``standfast``. A program that asked for JSON is also told in JSON that it asked wrongly."""
    words = move_debug_first(sys.argv[1:])
    # A failed run is told in one line, unless somebody asks for more.
    logging.getLogger("standfast.failures").addFilter(lambda _: Tracebacks.enabled)
    try:
        if "--json" not in words:
            app(words)
        code = app(words, standalone_mode=False)
    except OSError as error:  # the disk is full, or whatever standard output goes to
        from standfast.cli.commands._errors import FAILED, discard_stdout, format_error, get_error_code, print_error

        print_error(get_error_code(error), format_error(error), as_json="--json" in words)
        discard_stdout()
        code = FAILED
    except Exception as wrong:
        if not hasattr(wrong, "format_message"):
            raise
        from standfast.cli.commands._errors import USAGE, print_error

        print_error("usage", wrong.format_message(), as_json=True)
        code = USAGE
    sys.exit(code)


def move_debug_first(args: list[str]) -> list[str]:
    """``--debug`` is for all commands: it may stand anywhere among the options."""
    end = args.index("--") if "--" in args else len(args)
    if "--debug" not in args[:end]:
        return args
    return ["--debug", *(word for word in args[:end] if word != "--debug"), *args[end:]]
