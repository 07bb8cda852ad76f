"""The commands, gathered. What each does is in the module named after it."""

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import approvals, doctor, runs, sessions, talking, workers
from holdfast.cli.output import AsJson, Output, failing

app = typer.Typer(
    name="holdfast",
    help="Agent sessions that stay alive and true.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(sessions.app, name="sessions", help="Look into conversations, search, branch, move and mend them.")
app.add_typer(workers.app, name="workers", help="Run Python in sandboxed workers.")
app.add_typer(runs.app, name="runs", help="Look into durable runs, resume, cancel and fork them.")
app.add_typer(approvals.app, name="approvals", help="Answer what agents ask.")


@app.command()
def demo() -> None:
    """Watch a payment survive a killed process, and a call that is interrupted. No key, no network, ten seconds."""
    from holdfast.cli.demo import show_demo  # all of realtime, which no other command should wait for

    show_demo()


app.command("chat")(talking.chat)
app.command("run")(talking.run)
app.command("doctor")(doctor.doctor)


@app.callback()
def begin(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="HOLDFAST_DEBUG", help="Show the traceback when something fails.")
    ] = False,
) -> None:
    failing.debug = debug


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    Output(as_json).value({"version": __version__}, f"holdfast {__version__}")
