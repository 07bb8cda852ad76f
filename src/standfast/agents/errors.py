"""Errors of agents and runs. An error that ends a run has the run in ``run_data``.

AgentsException
├── UserError                       the program uses standfast incorrectly
│   ├── InvalidDeclaration          ... an agent, tool, guardrail or handoff is declared incorrectly
│   ├── AgentMissing                ... a saved run refers to an agent that the agent graph does not have
│   ├── AgentChanged                ... a saved run refers to an agent that has changed since
│   ├── ToolMissing                 ... the agent has no such tool
│   └── UncertainCall               ... a call that may have happened is approved like a new one
├── ModelBehaviorError              the model requested something impossible or its response is malformed
│   └── InvalidArguments            ... the arguments of a call do not fit the tool's schema
├── ModelRefusalError               the model refused to answer
├── ModelTimeoutError               the model did not respond within the time limit
├── MaxTurnsExceeded                the run reached its limit of turns
├── ToolTimeoutError                a tool did not return within its time limit
├── ToolCancelled                   a tool was cancelled, but not by the run
├── MCPToolCancellationError        an MCP server cancelled a call
├── InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered
└── ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered
"""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from standfast.base.errors import InvalidDecision, StandfastError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.agents.agent import Agent
    from standfast.agents.context import RunContextWrapper
    from standfast.agents.guardrails import (
        InputGuardrailResult,
        OutputGuardrailResult,
        ToolGuardrailFunctionOutput,
        ToolInputGuardrail,
        ToolInputGuardrailResult,
        ToolOutputGuardrail,
        ToolOutputGuardrailResult,
    )
    from standfast.base.items import Item


@dataclass
class RunErrorDetails:
    """The run at the time of the error. ``state`` is a :class:`RunState` to resume it from."""

    input: "str | list[Item]"
    new_items: list[Any]
    raw_responses: list[Any]
    last_agent: "Agent[Any]"
    context_wrapper: "RunContextWrapper[Any]"
    input_guardrail_results: "list[InputGuardrailResult]"
    output_guardrail_results: "list[OutputGuardrailResult]"
    tool_input_guardrail_results: "list[ToolInputGuardrailResult]" = field(default_factory=list)
    tool_output_guardrail_results: "list[ToolOutputGuardrailResult]" = field(default_factory=list)
    state: Any = None

    def __str__(self) -> str:
        counted = [part.name for part in fields(self) if part.name.endswith(("_items", "_responses", "_results"))]
        lines = [
            "RunErrorDetails:",
            f'- Last agent: Agent(name="{self.last_agent.name}", ...)',
            *(f"- {len(getattr(self, each))} {each[:-1].replace('_', ' ')}(s)" for each in counted),
            "(See `RunErrorDetails` for more details)",
        ]
        return "\n".join(lines)


class AgentsException(StandfastError):
    """The base class of the errors that a run raises. ``run_data`` is set if a run raised it."""

    code = "agents"
    run_data: RunErrorDetails | None

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.run_data = None


class UserError(AgentsException):
    """The program uses standfast incorrectly; the message says what to change."""

    code = "user-error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class EventLoopRunning(UserError, RuntimeError):
    """A synchronous method was called where only asynchronous ones can be used."""

    code = "event-loop-running"


class InvalidDeclaration(UserError, TypeError, ValueError):
    """An agent, tool, guardrail or handoff is declared incorrectly."""

    code = "invalid-declaration"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where, self.problem = where, problem


class UnresolvedAnnotation(InvalidDeclaration, NameError):
    """A name in an annotation is not known where the function is declared."""

    code = "unresolved-annotation"


class UncertainCall(UserError, InvalidDecision):
    """The call may have happened already, so it cannot be approved like a new one. Nothing was decided.

    Find out whether it happened. Then decide: it did happen ("done"), it did not and shall not be made ("reject"), or
    that it shall be made again ("again").
    """

    code = "uncertain-call"

    def __init__(self, tool_name: str, call_id: str, *, remedy: str) -> None:
        super().__init__(f"the call {call_id!r} of {tool_name} may have happened already: {remedy}")
        self.tool_name, self.call_id = tool_name, call_id


class ModelBehaviorError(AgentsException):
    """The model called an unknown tool, or its arguments or its output are malformed."""

    code = "model-behavior"
    missing_tool: str | None = None
    """The tool that the model called and the agent does not have."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidArguments(ModelBehaviorError):
    """The arguments of a call do not fit the tool's schema. The tool was not called."""

    code = "invalid-arguments"

    def __init__(self, tool_name: str, problem: str) -> None:
        super().__init__(f"invalid arguments for tool {tool_name}: {problem}")
        self.tool_name, self.problem = tool_name, problem


class ModelRefusalError(AgentsException):
    """The model refused to answer; ``refusal`` is its explanation."""

    code = "model-refusal"

    def __init__(self, refusal: str) -> None:
        super().__init__(f"the model refused to answer: {refusal}")
        self.refusal = refusal


class ModelTimeoutError(AgentsException):
    """The model did not respond within ``timeout_seconds``. The attempt has been cancelled and has ended."""

    code = "model-timeout"

    def __init__(self, timeout_seconds: float) -> None:
        super().__init__(f"the model did not respond within {timeout_seconds:g} seconds")
        self.timeout_seconds = timeout_seconds


class MaxTurnsExceeded(AgentsException):
    """The run reached ``max_turns`` without a final output."""

    code = "max-turns"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ToolTimeoutError(AgentsException):
    """The tool did not return within ``timeout_seconds`` and was cancelled."""

    code = "tool-timeout"

    def __init__(self, tool_name: str, timeout_seconds: float) -> None:
        super().__init__(f"Tool '{tool_name}' timed out after {timeout_seconds:g} seconds.")
        self.tool_name, self.timeout_seconds = tool_name, timeout_seconds


class ToolCancelled(AgentsException):
    """The tool ended with ``asyncio.CancelledError``, although the run was not cancelled."""

    code = "tool-cancelled"

    def __init__(self, tool_name: str, reason: str) -> None:
        super().__init__(f"Tool '{tool_name}' was cancelled{f': {reason}' if reason else '.'}")
        self.tool_name, self.reason = tool_name, reason


class MCPToolCancellationError(AgentsException):
    """An MCP server cancelled the call; whether it had an effect is unknown."""

    code = "mcp-cancelled"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InputGuardrailTripwireTriggered(AgentsException):
    """An input guardrail rejected the user's input."""

    code = "input-guardrail"

    def __init__(self, guardrail_result: "InputGuardrailResult") -> None:
        super().__init__(f"Guardrail {type(guardrail_result.guardrail).__name__} triggered tripwire")
        self.add_note(f"the input guardrail {guardrail_result.guardrail.get_name()!r} was triggered")
        self.guardrail_result = guardrail_result


class OutputGuardrailTripwireTriggered(AgentsException):
    """An output guardrail rejected the agent's final output."""

    code = "output-guardrail"

    def __init__(self, guardrail_result: "OutputGuardrailResult") -> None:
        super().__init__(f"Guardrail {type(guardrail_result.guardrail).__name__} triggered tripwire")
        self.add_note(f"the output guardrail {guardrail_result.guardrail.get_name()!r} was triggered")
        self.guardrail_result = guardrail_result


class ToolInputGuardrailTripwireTriggered(AgentsException):
    """A guardrail of a tool rejected the arguments and ended the run. The tool was not called."""

    code = "tool-input-guardrail"

    def __init__(self, guardrail: "ToolInputGuardrail[Any]", output: "ToolGuardrailFunctionOutput") -> None:
        super().__init__(f"Tool input guardrail {type(guardrail).__name__} triggered tripwire")
        self.add_note(f"the tool input guardrail {guardrail.get_name()!r} was triggered")
        self.guardrail, self.output = guardrail, output


class ToolOutputGuardrailTripwireTriggered(AgentsException):
    """A guardrail of a tool rejected the output and ended the run. The tool was called."""

    code = "tool-output-guardrail"

    def __init__(self, guardrail: "ToolOutputGuardrail[Any]", output: "ToolGuardrailFunctionOutput") -> None:
        super().__init__(f"Tool output guardrail {type(guardrail).__name__} triggered tripwire")
        self.add_note(f"the tool output guardrail {guardrail.get_name()!r} was triggered")
        self.guardrail, self.output = guardrail, output


class AgentMissing(UserError):
    """A saved run refers to an agent that the agent graph does not have. No other agent is used in its place."""

    code = "agent-missing"

    def __init__(self, path: str, name: str, *, other_paths: "Sequence[str]" = ()) -> None:
        hint = f"; the same agent is now at {', '.join(other_paths)}" if other_paths else ""
        super().__init__(f"there is no agent {name!r} at {path!r} in the agent graph{hint}")
        self.path, self.name, self.other_paths = path, name, tuple(other_paths)


class AgentChanged(UserError):
    """The agent at this path differs from the one that the run was saved with, in ``changed_parts``."""

    code = "agent-changed"

    def __init__(self, path: str, name: str, *, changed_parts: "Sequence[str]") -> None:
        super().__init__(
            f"the agent {name!r} at {path!r} has changed since the run was saved: {', '.join(changed_parts)}. "
            f"To resume the run anyway, load it with tolerate={list(changed_parts)}"
        )
        self.path, self.name, self.changed_parts = path, name, tuple(changed_parts)


class RecipientChanged(UserError):
    """The tool of this name is not the one that a person was asked about: its MCP server is another one."""

    code = "recipient-changed"

    def __init__(self, key: str, *, agent_name: str) -> None:
        super().__init__(
            f"the approval of {key!r} was asked for a different recipient than the agent {agent_name!r} has now: "
            "reject the call, or give MCP servers names of their own that stay the same"
        )
        self.key, self.agent_name = key, agent_name


class ToolMissing(UserError, ModelBehaviorError):
    """The agent has no such tool or handoff. ``known_tools`` are the tools that it has."""

    code = "tool-missing"

    def __init__(self, key: str, *, agent_name: str, known_tools: "Sequence[str]" = ()) -> None:
        super().__init__(f"the agent {agent_name!r} has no tool {key!r}; it has {', '.join(known_tools) or 'none'}")
        self.key, self.agent_name, self.known_tools = key, agent_name, tuple(known_tools)
