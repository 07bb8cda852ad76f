"""Shell commands as tools: start one, and write to one that is running."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, Field

from standfast.agents.tools import Tool
from standfast.sandbox.capabilities.capability import Capability, SandboxTool
from standfast.sandbox.errors import ExecTimeoutError, InvalidManifestPathError, PtySessionNotFoundError
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.output import truncate_output
from standfast.sandbox.types import PtyExecUpdate
from standfast.sandbox.workspace_paths import SandboxWorkspaceScope


class ExecCommandArgs(BaseModel):
    cmd: str = Field(min_length=1, description="The shell command to run.")
    workdir: str | None = Field(default=None, description="The directory to run it in; by default the workspace.")
    shell: str | None = Field(default=None, description="The shell to run it with; by default sh.")
    login: bool = Field(default=True, description="Whether the shell is a login shell.")
    tty: bool = Field(
        default=False, description="Whether the command gets a terminal, for programs that ask questions."
    )
    yield_time_ms: int = Field(
        default=10000, ge=0, description="Milliseconds to wait for output; the command may continue afterwards."
    )
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="The most tokens of output to return; the middle of a longer one is cut."
    )


class WriteStdinArgs(BaseModel):
    session_id: int = Field(description="The session ID of the running command.")
    chars: str = Field(default="", description="Characters to write; none, to read further output only.")
    yield_time_ms: int = Field(default=250, ge=0, description="Milliseconds to wait for output.")
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="The most tokens of output to return; the middle of a longer one is cut."
    )


def format_update(update: PtyExecUpdate, started: float) -> str:
    """Return what a model sees of a command."""
    if update.process_id is not None:
        status = f"Process running with session ID {update.process_id}"
    else:
        status = f"Process exited with code {update.exit_code}"
    lines = [f"Chunk ID: {secrets.token_hex(3)}", f"Wall time: {time.monotonic() - started:.4f} seconds", status]
    if update.original_token_count is not None:
        lines.append(f"Original token count: {update.original_token_count}")
    return "\n".join([*lines, "Output:", update.output.decode(errors="replace")])


class ExecCommandTool(SandboxTool):
    """Runs a command in the workspace, in the directory that the run is scoped to."""

    tool_name = "exec_command"
    tool_description = (
        "Runs a shell command in the workspace. Returns its output, and a session ID if it is still running."
    )
    args_model = ExecCommandArgs

    async def run(self, args: ExecCommandArgs) -> str:
        """Run a command and return its output for the model."""
        try:
            directory = self.session.normalize_path(str(self.workspace_scope.anchor(args.workdir or ".")))
        except InvalidManifestPathError:
            return "Invalid workdir. Use a path within the workspace or an explicitly granted path."
        shell = [args.shell or "sh", "-lc" if args.login else "-c"]
        # The shell changes the directory, so that every kind of sandbox can do it.
        line = f"cd {_quote(directory.as_posix())} && {args.cmd}" if self._is_elsewhere(directory) else args.cmd
        started = time.monotonic()
        if self.session.supports_pty():
            update = await self.session.pty_exec_start(
                line,
                shell=shell,
                user=self.user,
                tty=args.tty,
                yield_time_s=args.yield_time_ms / 1000,
                max_output_tokens=args.max_output_tokens,
            )
            return format_update(update, started)
        try:
            result = await self.session.exec(line, shell=shell, user=self.user, timeout=args.yield_time_ms / 1000)
        except ExecTimeoutError as problem:
            return f"The command did not end within {problem.timeout_s} seconds and was killed."
        text, count = truncate_output(result.stdout + result.stderr, args.max_output_tokens)
        return format_update(PtyExecUpdate(None, text, result.exit_code, count), started)

    def _is_elsewhere(self, directory: Any) -> bool:
        return PurePosixPath(directory.as_posix()) != PurePosixPath(self.session.state.manifest.root)


class WriteStdinTool(SandboxTool):
    """Writes to a running command, and returns its further output."""

    tool_name = "write_stdin"
    tool_description = "Writes characters to a running command and returns its output since the last call."
    args_model = WriteStdinArgs

    async def run(self, args: WriteStdinArgs) -> str:
        """Write to a running command and return its output for the model."""
        started = time.monotonic()
        try:
            update = await self.session.pty_write_stdin(
                session_id=args.session_id,
                chars=args.chars,
                yield_time_s=args.yield_time_ms / 1000,
                max_output_tokens=args.max_output_tokens,
            )
        except PtySessionNotFoundError as problem:
            update = PtyExecUpdate(None, f"write_stdin failed: {problem}".encode(), 1)
        return format_update(update, started)


@dataclass
class ShellToolSet:
    """The tools of :class:`Shell`, for ``configure_tools``."""

    exec_command: ExecCommandTool
    write_stdin: WriteStdinTool | None
    workspace_scope: SandboxWorkspaceScope = field(default_factory=SandboxWorkspaceScope)


_INSTRUCTIONS = """\
Shell commands:
- Run commands with `exec_command`; the workspace is their directory.
- A command that is still running has a session ID: read further output or write to it with `write_stdin`.
- Start programs that ask questions with `tty=true`; send Ctrl-C as `\\u0003` to interrupt them.
- There may be no network. Prefer `rg` to search files where it is installed."""


class Shell(Capability):
    """Shell commands. ``configure_tools`` may change the tools, for example let a person approve commands."""

    type: Literal["shell"] = "shell"
    configure_tools: Callable[[ShellToolSet], None] | None = Field(default=None, exclude=True)

    async def instructions(self, manifest: Manifest) -> str | None:
        return _INSTRUCTIONS

    def tools(self) -> list[Tool]:
        session = self.require_session()
        command = ExecCommandTool(session=session, user=self.run_as, workspace_scope=self.workspace_scope)
        stdin = WriteStdinTool(session=session) if session.supports_pty() else None
        tools = ShellToolSet(command, stdin, self.workspace_scope)
        if self.configure_tools is not None:
            self.configure_tools(tools)
        return [tool for tool in (tools.exec_command, tools.write_stdin) if tool is not None]


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
