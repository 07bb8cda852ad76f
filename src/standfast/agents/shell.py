"""Shell tools: the model asks for commands, which the program's executor or the provider runs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from standfast.agents.errors import UserError
from standfast.agents.local_tools import declare_tool, make_local_function
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult, ToolCaller
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper, ToolContext


class ShellToolLocalSkill(TypedDict):
    """A skill in a folder of the machine that runs the commands."""

    description: str
    name: str
    path: str


class ShellToolLocalEnvironment(TypedDict):
    """The program runs the commands."""

    type: Literal["local"]
    skills: NotRequired[list[ShellToolLocalSkill]]


class ShellToolSkillReference(TypedDict):
    """A skill that the provider stores."""

    type: Literal["skill_reference"]
    skill_id: str
    version: NotRequired[str]


class ShellToolInlineSkillSource(TypedDict):
    """The files of a skill, as a zip archive in Base64."""

    data: str
    media_type: Literal["application/zip"]
    type: Literal["base64"]


class ShellToolInlineSkill(TypedDict):
    """A skill that is sent with the request."""

    description: str
    name: str
    source: ShellToolInlineSkillSource
    type: Literal["inline"]


class ShellToolContainerNetworkPolicyDomainSecret(TypedDict):
    """A secret that the container's proxy adds to requests to a domain."""

    domain: str
    name: str
    value: str


class ShellToolContainerNetworkPolicyAllowlist(TypedDict):
    """The container reaches these domains only."""

    allowed_domains: list[str]
    type: Literal["allowlist"]
    domain_secrets: NotRequired[list[ShellToolContainerNetworkPolicyDomainSecret]]


class ShellToolContainerNetworkPolicyDisabled(TypedDict):
    """The container has no network."""

    type: Literal["disabled"]


ShellToolContainerSkill: TypeAlias = ShellToolSkillReference | ShellToolInlineSkill
ShellToolContainerNetworkPolicy: TypeAlias = (
    ShellToolContainerNetworkPolicyAllowlist | ShellToolContainerNetworkPolicyDisabled
)


class ShellToolContainerAutoEnvironment(TypedDict):
    """The provider makes a container for the commands."""

    type: Literal["container_auto"]
    file_ids: NotRequired[list[str]]
    memory_limit: NotRequired[Literal["1g", "4g", "16g", "64g"] | None]
    network_policy: NotRequired[ShellToolContainerNetworkPolicy]
    skills: NotRequired[list[ShellToolContainerSkill]]


class ShellToolContainerReferenceEnvironment(TypedDict):
    """The commands run in an existing container of the provider."""

    type: Literal["container_reference"]
    container_id: str


ShellToolHostedEnvironment: TypeAlias = ShellToolContainerAutoEnvironment | ShellToolContainerReferenceEnvironment
ShellToolEnvironment: TypeAlias = ShellToolLocalEnvironment | ShellToolHostedEnvironment


log = get_logger("standfast.tools")


@dataclass
class ShellActionRequest:
    """The commands that the model asks for, with its limits."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None

    @classmethod
    def parse(cls, action: dict[str, Any]) -> "ShellActionRequest":
        """Return the request in the ``action`` of a call."""
        return cls([str(command) for command in action["commands"]], action.get("timeout_ms"), _get_limit(action))


@dataclass
class ShellCallData:
    """One call; ``raw`` is the item as the model returned it."""

    call_id: str
    action: ShellActionRequest
    status: Literal["in_progress", "completed"] | None = None
    raw: Any | None = None


@dataclass
class ShellCommandRequest:
    """The argument of a shell executor."""

    ctx_wrapper: "RunContextWrapper[Any]"
    data: ShellCallData


@dataclass
class ShellCallOutcome:
    """How a command ended."""

    type: Literal["exit", "timeout"]
    exit_code: int | None = None


@dataclass
class ShellCommandOutput:
    """The output of one command."""

    stdout: str = ""
    stderr: str = ""
    outcome: ShellCallOutcome = field(default_factory=lambda: ShellCallOutcome("exit"))
    command: str | None = None
    provider_data: dict[str, Any] | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, None if it was stopped."""
        return self.outcome.exit_code

    @property
    def status(self) -> Literal["completed", "timeout"]:
        """Whether the command ended or reached its timeout."""
        return "timeout" if self.outcome.type == "timeout" else "completed"


@dataclass
class ShellResult:
    """The outputs of the commands of one call."""

    output: list[ShellCommandOutput]
    max_output_length: int | None = None
    provider_data: dict[str, Any] | None = None


class ShellOnApprovalFunctionResult(TypedDict):
    approve: bool
    reason: NotRequired[str]


ShellExecutor: TypeAlias = Callable[[ShellCommandRequest], MaybeAwaitable[str | ShellResult]]
ShellApprovalFunction: TypeAlias = Callable[["RunContextWrapper[Any]", ShellActionRequest, str], MaybeAwaitable[bool]]
ShellOnApprovalFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", Any], MaybeAwaitable[ShellOnApprovalFunctionResult]
]


@dataclass
class ShellTool(LocalTool):
    """Runs commands: with ``executor`` in the program, with a container as ``environment`` at the provider.

    An executor decides where commands run and how they are confined. An exception of it is a failed command, whose
    message the model receives.
    """

    executor: ShellExecutor | None = None
    name: str = "shell"
    needs_approval: bool | ShellApprovalFunction = False
    on_approval: ShellOnApprovalFunction | None = None
    environment: ShellToolEnvironment | None = None
    allowed_callers: list[ToolCaller] | None = field(default=None, kw_only=True)

    call_type: ClassVar[str] = "shell_call"

    def __post_init__(self) -> None:
        if self.environment is None:
            self.environment = {"type": "local"}
        hosted = self.is_run_by_provider()
        if hosted and self.executor is not None:
            raise UserError("ShellTool with hosted environment does not accept an executor.")
        if hosted and (self.needs_approval is not False or self.on_approval is not None):
            raise UserError("ShellTool with hosted environment does not support needs_approval or on_approval.")
        if not hosted and self.executor is None:
            raise UserError("ShellTool with local environment requires an executor.")

    @property
    def type(self) -> str:
        """The type of the tool in requests to a model."""
        return "shell"

    def is_run_by_provider(self) -> bool:
        return self.environment is not None and self.environment["type"] != "local"

    def to_declaration(self, model: str | None) -> dict[str, Any]:
        return declare_tool(self, "shell", environment=self.environment)

    def as_function_tool(self) -> FunctionTool:
        return make_local_function(
            self, self._invoke, needs_approval=self.needs_approval, parse_request=ShellActionRequest.parse
        )

    async def _invoke(self, context: "ToolContext[Any]", arguments: str) -> LocalToolResult:
        action = ShellActionRequest.parse(json.loads(arguments))
        call: Any = context.tool_call
        status = call.get("status") if isinstance(call, dict) else getattr(call, "status", None)
        request = ShellCommandRequest(context, ShellCallData(context.tool_call_id, action, status, call))
        try:
            result = await maybe_await(self.executor(request))  # type: ignore[misc]
        except Exception as error:
            log.exception("the executor of the shell tool %r failed", self.name)
            return _make_text_result(str(error), 1, action.max_output_length)
        if not isinstance(result, ShellResult):
            return _make_text_result(str(result), 0, action.max_output_length)
        limits = [limit for limit in (result.max_output_length, action.max_output_length) if limit is not None]
        return _make_shell_result(result.output, min(limits) if limits else None)


def _get_limit(action: dict[str, Any]) -> int | None:
    limit = action.get("max_output_length")
    return limit if isinstance(limit, int) and limit >= 0 else None


def _make_text_result(text: str, exit_code: int, limit: int | None) -> LocalToolResult:
    return _make_shell_result([ShellCommandOutput(text, outcome=ShellCallOutcome("exit", exit_code))], limit, text)


def _make_shell_result(
    outputs: list[ShellCommandOutput], limit: int | None, text: str | None = None
) -> LocalToolResult:
    if not outputs:
        return _make_text_result("(no output)", 0, limit)
    text = "\n\n".join(map(_render_output, outputs)) if text is None else text
    item: dict[str, Any] = {
        "type": "shell_call_output",
        "output": [_to_wire(output) for output in _truncate_outputs(outputs, limit)],
    }
    if limit is not None:
        item["max_output_length"] = limit
    return LocalToolResult(text if limit is None else text[:limit], item)


def _truncate_outputs(outputs: list[ShellCommandOutput], limit: int | None) -> list[ShellCommandOutput]:
    """Return the outputs cut to ``limit`` characters altogether."""
    if limit is None:
        return outputs
    cut, left = [], limit
    for output in outputs:
        stdout = output.stdout[:left]
        stderr = output.stderr[: left - len(stdout)]
        left -= len(stdout) + len(stderr)
        cut.append(replace(output, stdout=stdout, stderr=stderr))
    return cut


def _to_wire(output: ShellCommandOutput) -> dict[str, Any]:
    ending: dict[str, Any] = {"type": output.outcome.type}
    if output.outcome.type == "exit":
        ending["exit_code"] = output.outcome.exit_code
    return {"stdout": output.stdout, "stderr": output.stderr, "outcome": ending}


def _render_output(output: ShellCommandOutput) -> str:
    """Return the output of a command as text, for programs and traces."""
    stdout, stderr, lines = output.stdout.rstrip("\n"), output.stderr.rstrip("\n"), []
    if output.command:
        lines.append(f"$ {output.command}")
    if stdout:
        lines.append(stdout)
    if stderr:
        lines.append(f"\nstderr:\n{stderr}" if lines else f"stderr:\n{stderr}")
    if output.exit_code:
        lines.append(f"exit code: {output.exit_code}")
    if output.status == "timeout":
        lines.append("status: timeout")
    return "\n".join(lines)


@dataclass
class LocalShellCommandRequest:
    """The argument of a local shell executor; ``data`` is the call as the model returned it."""

    ctx_wrapper: "RunContextWrapper[Any]"
    data: Any


LocalShellExecutor: TypeAlias = Callable[[LocalShellCommandRequest], MaybeAwaitable[str]]


@dataclass
class LocalShellTool(LocalTool):
    """The older shell tool of ``codex-mini-latest``: one command per call, run by ``executor``."""

    executor: LocalShellExecutor

    call_type: ClassVar[str] = "local_shell_call"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of this kind of tool."""
        return "local_shell"

    def to_declaration(self, model: str | None) -> dict[str, Any]:
        return {"type": "local_shell"}

    def as_function_tool(self) -> FunctionTool:
        return make_local_function(self, self._invoke)

    async def _invoke(self, context: "ToolContext[Any]", arguments: str) -> LocalToolResult:
        output = str(await maybe_await(self.executor(LocalShellCommandRequest(context, context.tool_call))))
        return LocalToolResult(output, {"type": "local_shell_call_output", "output": output})
