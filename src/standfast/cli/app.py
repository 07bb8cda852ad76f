"""The ``standfast`` program: its commands, each in the module of the same name, imported when it runs; its help."""

import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Self

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from standfast import __version__
from standfast.cli.commands._output import AsJson, CommandPrinter, Tracebacks

PROGRAM = "standfast "


def join_lines(text: str) -> str:
    """Return the help of a command with one line for each paragraph, which the terminal wraps, and for each example."""
    return "\n\n".join(
        re.sub(f"^{PROGRAM}", f"$ {PROGRAM}", paragraph, flags=re.M)
        if paragraph.startswith(PROGRAM)
        else " ".join(map(str.strip, paragraph.split("\n")))
        for paragraph in text.split("\n\n")
    )


def shorten_types() -> None:
    """Let the help name the types of values by one word, and none for flags, which have no value."""
    describe = getattr(TyperOption, "display_type_rich", None)
    if describe is None:  # an older version of typer
        return

    def describe_value(option: TyperOption, ctx: Any) -> str | None:
        if option.is_bool_flag:
            return None
        return str(describe(option, ctx)).replace(" range>", ">")

    TyperOption.display_type_rich = describe_value  # type: ignore[method-assign, assignment]


shorten_types()


class LazyCommand(TyperCommand):
    """A placeholder in the list of commands; loads the command when it is invoked."""

    def __init__(self, name: str, import_path: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self.import_path = import_path

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        module, _, attribute = self.import_path.partition(":")
        named = getattr(importlib.import_module(module), attribute)
        if not isinstance(named, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(self.name)(named)
            named = single
        loaded: Any = typer.main.get_command(named)
        loaded.name, loaded.help = self.name, loaded.help or self.help
        for command in (loaded, *getattr(loaded, "commands", {}).values()):
            command.help = join_lines(inspect.cleandoc(command.help))
        return loaded


class LazyGroup(TyperGroup):
    """A group of lazy commands, given as ``(name, "module:attribute", help)``."""

    lazy_commands: tuple[tuple[str, str, str], ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            **{name: LazyCommand(name, path, help) for name, path, help in self.lazy_commands},
            **self.commands,
        }

    def load_all(self) -> Self:
        """Replace every placeholder by its command, for code that inspects all commands."""
        self.commands = {
            name: one.load() if isinstance(one, LazyCommand) else one for name, one in self.commands.items()
        }
        return self


class Standfast(LazyGroup):
    lazy_commands = (
        (
            "demo",
            "standfast.cli.commands.demo:demo",
            "Show a payment and variables that survive a killed process, and an interrupted call.",
        ),
        ("new", "standfast.cli.commands.new:new", "Write a small project with an agent, a test and a README."),
        ("serve", "standfast.cli.commands.serve:serve", "Serve agents over HTTP."),
        ("work", "standfast.cli.commands.work:work", "Execute the runs of agents in this process, and nothing else."),
        ("chat", "standfast.cli.commands.chat:chat", "Talk to an agent."),
        ("run", "standfast.cli.commands.chat:run", "Run an agent on one input."),
        (
            "sessions",
            "standfast.cli.commands.sessions:app",
            "List, show, search, fork, export and repair sessions.",
        ),
        (
            "import",
            "standfast.cli.commands.imports:app",
            "Copy the conversations of another framework into a store.",
        ),
        (
            "adopt",
            "standfast.cli.commands.adopt:adopt",
            "Take over the tables of openai-agents in their own database, or give them back.",
        ),
        (
            "export",
            "standfast.cli.commands.exports:app",
            "Write sessions in the format of another framework, and runs as pages.",
        ),
        ("runs", "standfast.cli.commands.runs:app", "List, show, resume, cancel and fork durable runs."),
        ("schedules", "standfast.cli.commands.schedules:app", "Start runs at given times."),
        ("budgets", "standfast.cli.commands.budgets:app", "Limit what runs may spend."),
        ("webhooks", "standfast.cli.commands.webhooks:app", "Tell other servers when runs stop and approvals change."),
        ("usage", "standfast.cli.commands.usage:usage", "Add up requests and tokens by owner, session, model or day."),
        ("approvals", "standfast.cli.commands.approvals:app", "List and decide pending approvals."),
        ("workers", "standfast.cli.commands.workers:app", "Run Python in sandboxed workers."),
        (
            "workspaces",
            "standfast.cli.commands.workspaces:app",
            "Show, restore and prune the variables and files of conversations.",
        ),
        (
            "fleet",
            "standfast.cli.commands.fleet:app",
            "Show the queues and nodes of a cluster, and start processes on it.",
        ),
        ("keys", "standfast.cli.commands.keys:app", "Create, list and revoke the API keys of a server."),
        ("owners", "standfast.cli.commands.owners:app", "Let PostgreSQL keep the data of owners apart."),
        ("audit", "standfast.cli.commands.audit:app", "Show and prune the audit log of a server."),
        (
            "migrate",
            "standfast.cli.commands.migrate:migrate",
            "Move a program from openai-agents: rewrite its imports and list what is left.",
        ),
        (
            "doctor",
            "standfast.cli.commands.doctor:doctor",
            "Check what works on this machine and what to install for the rest.",
        ),
        ("version", "standfast.cli.app:version", "Print the version."),
    )


app = typer.Typer(
    name="standfast",
    cls=Standfast,
    help="Durable agent runs, sessions, approvals and sandboxed Python.",
    epilog="Start with: standfast demo. Exit codes: 0 success, 1 failure, 2 usage error, 3 waiting for approval, "
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
        bool, typer.Option("--debug", envvar="STANDFAST_DEBUG", help="Show the traceback of an error.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", envvar="STANDFAST_SERVER", help="Use the server at this URL in place of a store; see `serve`."
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version_and_exit, help="Print the version.")
    ] = False,
) -> None:
    Tracebacks.enabled = debug
    if server is not None:
        os.environ["STANDFAST_STORE"] = server


def version(as_json: AsJson = False) -> None:
    """Print the version.

    standfast version --json
    """
    CommandPrinter(as_json).print_result({"version": __version__}, f"standfast {__version__}")


def main() -> None:
    """Run ``standfast``. With ``--json``, usage errors are printed as JSON, too."""
    words = move_debug_first(sys.argv[1:])
    with log_failures_only_in_debug_mode(words):
        sys.exit(run_command(words))


@contextmanager
def log_failures_only_in_debug_mode(words: list[str]) -> Iterator[None]:
    """Report a failed run in one line: its traceback is logged only with ``--debug``.

    Take-overs of runs are logged by processes that serve others; elsewhere the run itself shows them.
    """
    names = ["standfast.failures", *([] if {"work", "serve"} & set(words[:2]) else ["standfast.takeovers"])]

    def is_logged(record: logging.LogRecord) -> bool:
        return Tracebacks.enabled

    for name in names:
        logging.getLogger(name).addFilter(is_logged)
    try:
        yield
    finally:
        for name in names:
            logging.getLogger(name).removeFilter(is_logged)


def run_command(words: list[str]) -> int | None:
    """Return the exit code. Raises SystemExit for a command without ``--json``."""
    try:
        if "--json" not in words:
            app(words)
        code: int | None = app(words, standalone_mode=False)
    except OSError as error:  # for example, standard output is on a full disk
        from standfast.cli.commands._errors import FAILED, discard_stdout, format_error, get_error_code, print_error

        print_error(get_error_code(error), format_error(error), as_json="--json" in words)
        discard_stdout()
        code = FAILED
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        from standfast.cli.commands._errors import USAGE, print_error

        print_error("usage", error.format_message(), as_json=True)
        code = USAGE
    return code


def move_debug_first(args: list[str]) -> list[str]:
    """Move ``--debug``, which may stand anywhere among the options, to the front, where the parser expects it."""
    end = args.index("--") if "--" in args else len(args)
    if "--debug" not in args[:end]:
        return args
    return ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
