"""Programs that pause, written once for openai-agents and standfast: ``lib`` is the package to run them with.

Each program is a function that returns its first agent. Models follow a script by the name of their agent, so that a
run can be paused with one package and resumed with the other.
"""

from dataclasses import dataclass, field
from typing import Any

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_output_item import McpApprovalRequest


def say(text: str) -> Any:
    part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id="msg_1", type="message", role="assistant", content=[part], status="completed")


def call(name: str, arguments: str, call_id: str, namespace: str | None = None) -> Any:
    space = {"namespace": namespace} if namespace else {}
    return ResponseFunctionToolCall(
        id=f"fc_{call_id}", type="function_call", call_id=call_id, name=name, arguments=arguments, **space
    )


def ask_hosted(name: str, arguments: str, request_id: str) -> Any:
    return McpApprovalRequest(
        id=request_id, type="mcp_approval_request", name=name, arguments=arguments, server_label="git"
    )


def run_command(command: str, call_id: str) -> Any:
    from openai.types.responses import ResponseFunctionShellToolCall

    action = {"commands": [command], "timeout_ms": None, "max_output_length": None}
    values = {"id": f"sh_{call_id}", "call_id": call_id, "type": "shell_call", "status": "completed"}
    return ResponseFunctionShellToolCall.model_validate({**values, "action": action, "environment": None})


@dataclass
class Program:
    """What a program needs besides its agents.

    ``decisions`` are made in order about the interruptions of each pause: ``approve``, ``reject``, ``always``,
    ``never``, or the reason of a rejection. ``decided`` is the number of pauses whose decisions are made before the run
    is saved.
    """

    scripts: dict[str, list[list[Any]]]
    input: Any = "go"
    decisions: list[list[str]] = field(default_factory=lambda: [["approve"]])
    decided: int = 0
    context: Any = None
    session: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    added_input: Any = None


@dataclass
class Scripts:
    """The scripts of a program, what is left of them, and the requests that were made."""

    lib: Any
    turns: dict[str, list[list[Any]]]
    used: dict[str, int] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def model(self, name: str) -> Any:
        lib, scripts = self.lib, self

        class ScriptedModel(lib.Model):  # type: ignore[misc, name-defined]
            async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
                position = scripts.used.get(name, 0)
                scripts.used[name] = position + 1
                items = [{"role": "user", "content": input}] if isinstance(input, str) else input
                plain = [dict(item) if isinstance(item, dict) else item.model_dump() for item in items]
                known = {key: kwargs.get(key) for key in ("previous_response_id", "conversation_id")}
                scripts.requests.append({"agent": name, "input": plain, **{k: v for k, v in known.items() if v}})
                return lib.ModelResponse(
                    output=scripts.turns[name][position],
                    usage=lib.Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15),
                    response_id=f"resp_{name}_{position}",
                )

            def stream_response(self, *args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError

        return ScriptedModel()


def make_tools(lib: Any, made: list[str]) -> dict[str, Any]:
    def pay(amount: int) -> str:
        """Pay an amount."""
        made.append(f"pay {amount}")
        return f"paid {amount}"

    def look(order: str) -> str:
        """Look up an order."""
        made.append(f"look {order}")
        return f"order {order} is open"

    return {
        "pay": lib.function_tool(pay, needs_approval=True),
        "look": lib.function_tool(look),
    }


PAY = '{"amount":5}'
LOOK = '{"order":"7"}'


def plain(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    return lib.Agent(name="front", instructions="Help.", tools=[tools["look"]], model=scripts.model("front"))


def approval(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    return lib.Agent(
        name="front", instructions="Help.", tools=[tools["pay"], tools["look"]], model=scripts.model("front")
    )


def nested(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    worker = lib.Agent(name="worker", instructions="Work.", tools=[tools["pay"]], model=scripts.model("worker"))
    ask = worker.as_tool("ask_worker", "Asks the worker.")
    return lib.Agent(name="front", instructions="Help.", tools=[ask, tools["look"]], model=scripts.model("front"))


def nested_twice(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    worker = lib.Agent(name="worker", tools=[tools["pay"]], model=scripts.model("worker"))
    chief = lib.Agent(name="chief", tools=[worker.as_tool("ask_worker", "Asks.")], model=scripts.model("chief"))
    return lib.Agent(name="front", tools=[chief.as_tool("ask_chief", "Asks.")], model=scripts.model("front"))


def handoff(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    billing = lib.Agent(
        name="billing", handoff_description="Money.", tools=[tools["pay"]], model=scripts.model("billing")
    )
    return lib.Agent(name="front", instructions="Help.", handoffs=[billing], model=scripts.model("front"))


def hosted(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    config = {
        "type": "mcp",
        "server_label": "git",
        "server_url": "https://example.invalid/mcp",
        "require_approval": "always",
    }
    return lib.Agent(name="front", tools=[lib.HostedMCPTool(tool_config=config)], model=scripts.model("front"))


def guarded(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    async def check_input(context: Any, agent: Any, input: Any) -> Any:
        return lib.GuardrailFunctionOutput(output_info={"seen": "input"}, tripwire_triggered=False)

    async def check_output(context: Any, agent: Any, output: Any) -> Any:
        return lib.GuardrailFunctionOutput(output_info={"seen": "output"}, tripwire_triggered=False)

    return lib.Agent(
        name="front",
        tools=[tools["pay"]],
        model=scripts.model("front"),
        input_guardrails=[lib.InputGuardrail(check_input, name="check_input")],
        output_guardrails=[lib.OutputGuardrail(check_output, name="check_output")],
    )


def namesakes(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    """Two agents of the same name; the run waits in the second."""
    last = lib.Agent(name="helper", instructions="Last.", tools=[tools["pay"]], model=scripts.model("last"))
    first = lib.Agent(name="helper", instructions="First.", handoffs=[last], model=scripts.model("first"))
    return lib.Agent(
        name="front",
        handoffs=[lib.handoff(first, tool_name_override="to_first")],
        model=scripts.model("front"),
    )


def filtered(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    def keep_no_calls(data: Any) -> Any:
        return lib.HandoffInputData(
            input_history=data.input_history, pre_handoff_items=(), new_items=(), run_context=data.run_context
        )

    billing = lib.Agent(name="billing", tools=[tools["pay"]], model=scripts.model("billing"))
    handed = lib.handoff(billing, input_filter=keep_no_calls)
    return lib.Agent(name="front", tools=[tools["look"]], handoffs=[handed], model=scripts.model("front"))


def namespaced(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    bank = lib.tool_namespace(name="bank", description="Money.", tools=[tools["pay"]])
    return lib.Agent(name="front", tools=[*bank], model=scripts.model("front"))


def chain(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    """The agent that a handoff led to calls an agent that waits."""
    worker = lib.Agent(name="worker", tools=[tools["pay"]], model=scripts.model("worker"))
    billing = lib.Agent(name="billing", tools=[worker.as_tool("ask", "Asks.")], model=scripts.model("billing"))
    return lib.Agent(name="front", handoffs=[billing], model=scripts.model("front"))


def shell(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    async def execute(request: Any) -> str:
        return f"ran {request.data.action.commands[0]}"

    tool = lib.ShellTool(executor=execute, needs_approval=True)
    return lib.Agent(name="front", tools=[tool], model=scripts.model("front"))


def structured(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    return lib.Agent(name="front", tools=[tools["pay"]], output_type=list[int], model=scripts.model("front"))


def stopping(lib: Any, scripts: Scripts, tools: dict[str, Any]) -> Any:
    """The output of the tool is the final output."""
    return lib.Agent(
        name="front", tools=[tools["pay"]], model=scripts.model("front"), tool_use_behavior="stop_on_first_tool"
    )


_ONE_PAYMENT = {"front": [[call("pay", PAY, "c1")], [say("done")]]}

PROGRAMS: dict[str, tuple[Any, Program]] = {
    "plain": (plain, Program({"front": [[call("look", LOOK, "c1")], [say("done")]]}, decisions=[])),
    "approval": (approval, Program(_ONE_PAYMENT)),
    "rejected": (approval, Program(_ONE_PAYMENT, decisions=[["reject"]])),
    "two_approvals": (
        approval,
        Program(
            {"front": [[call("pay", PAY, "c1"), call("look", LOOK, "c2"), call("pay", PAY, "c3")], [say("done")]]},
            decisions=[["approve", "reject"]],
        ),
    ),
    "decided": (
        approval,
        Program(
            {"front": [[call("pay", PAY, "c1"), call("pay", PAY, "c2")], [say("done")]]},
            decisions=[["approve", "reject"]],
            decided=1,
        ),
    ),
    "always": (
        approval,
        Program(
            {"front": [[call("pay", PAY, "c1")], [call("pay", PAY, "c2")], [say("done")]]},
            decisions=[["always"]],
            decided=1,
        ),
    ),
    "never": (
        approval,
        Program(
            {"front": [[call("pay", PAY, "c1")], [call("pay", PAY, "c2")], [say("done")]]},
            decisions=[["never"]],
            decided=1,
        ),
    ),
    "nested": (
        nested,
        Program(
            {
                "front": [[call("ask_worker", '{"input":"pay it"}', "n1"), call("look", LOOK, "c2")], [say("done")]],
                "worker": [[call("pay", PAY, "w1")], [say("worked")]],
            }
        ),
    ),
    "nested_rejected": (
        nested,
        Program(
            {
                "front": [[call("ask_worker", '{"input":"pay it"}', "n1")], [say("done")]],
                "worker": [[call("pay", PAY, "w1")], [say("worked")]],
            },
            decisions=[["reject"]],
        ),
    ),
    "nested_twice": (
        nested_twice,
        Program(
            {
                "front": [[call("ask_chief", '{"input":"a"}', "n1")], [say("done")]],
                "chief": [[call("ask_worker", '{"input":"b"}', "n2")], [say("led")]],
                "worker": [[call("pay", PAY, "w1")], [say("worked")]],
            }
        ),
    ),
    "handoff": (
        handoff,
        Program(
            {
                "front": [[call("transfer_to_billing", "{}", "h1")]],
                "billing": [[call("pay", PAY, "c1")], [say("done")]],
            }
        ),
    ),
    "turns": (
        approval,
        Program(
            {
                "front": [
                    [say("let me see"), call("look", LOOK, "c1")],
                    [call("look", '{"order":"8"}', "c2")],
                    [call("pay", PAY, "c3")],
                    [call("pay", '{"amount":6}', "c4")],
                    [say("done")],
                ]
            },
            decisions=[["approve"], ["approve"]],
        ),
    ),
    "context": (approval, Program(_ONE_PAYMENT, context={"customer": "ann", "limits": [1, 2]})),
    "list_input": (
        approval,
        Program(
            _ONE_PAYMENT,
            input=[
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "hi"},
                {"role": "user", "content": [{"type": "input_text", "text": "pay"}]},
            ],
        ),
    ),
    "session": (approval, Program(_ONE_PAYMENT, session=True)),
    "session_turns": (
        approval,
        Program(
            {"front": [[call("look", LOOK, "c1")], [call("pay", PAY, "c2"), call("look", LOOK, "c3")], [say("done")]]},
            session=True,
        ),
    ),
    "conversation": (approval, Program(_ONE_PAYMENT, settings={"conversation_id": "conv_1"})),
    "previous_response": (approval, Program(_ONE_PAYMENT, settings={"previous_response_id": "resp_0"})),
    "auto_previous_response": (approval, Program(_ONE_PAYMENT, settings={"auto_previous_response_id": True})),
    "hosted": (
        hosted,
        Program({"front": [[ask_hosted("push", '{"branch":"main"}', "mcpr_1")], [say("done")]]}),
    ),
    "guarded": (guarded, Program(_ONE_PAYMENT)),
    "namesakes": (
        namesakes,
        Program(
            {
                "front": [[call("to_first", "{}", "h1")]],
                "first": [[call("transfer_to_helper", "{}", "h2")]],
                "last": [[call("pay", PAY, "c1")], [say("done")]],
            }
        ),
    ),
    "filtered_handoff": (
        filtered,
        Program(
            {
                "front": [[call("look", LOOK, "c0")], [call("transfer_to_billing", "{}", "h1")]],
                "billing": [[call("pay", PAY, "c1")], [say("done")]],
            }
        ),
    ),
    "nested_history": (
        handoff,
        Program(
            {
                "front": [[say("I hand over"), call("transfer_to_billing", "{}", "h1")]],
                "billing": [[call("pay", PAY, "c1")], [say("done")]],
            },
            config={"nest_handoff_history": True},
        ),
    ),
    "namespaced": (
        namespaced,
        Program(
            {"front": [[call("pay", PAY, "c1", "bank"), call("pay", PAY, "c2", "bank")], [say("done")]]},
            decisions=[["approve", "reject"]],
            decided=1,
        ),
    ),
    "chain": (
        chain,
        Program(
            {
                "front": [[call("transfer_to_billing", "{}", "h1")]],
                "billing": [[call("ask", '{"input":"a"}', "n1")], [say("done")]],
                "worker": [[call("pay", PAY, "w1")], [call("pay", PAY, "w2")], [say("worked")]],
            },
            decisions=[["approve"], ["reject"]],
        ),
    ),
    "shell": (
        shell,
        Program(
            {"front": [[run_command("date", "s1"), run_command("ls", "s2")], [say("done")]]},
            decisions=[["approve", "reject"]],
        ),
    ),
    "shell_decided": (
        shell,
        Program({"front": [[run_command("date", "s1")], [say("done")]]}, decided=1),
    ),
    "structured": (structured, Program({"front": [[call("pay", PAY, "c1")], [say('{"response":[1,2]}')]]})),
    "stopping": (stopping, Program(_ONE_PAYMENT)),
    "session_guarded": (guarded, Program(_ONE_PAYMENT, session=True)),
    "nested_decided": (
        nested,
        Program(
            {
                "front": [[call("ask_worker", '{"input":"pay it"}', "n1")], [say("done")]],
                "worker": [[call("pay", PAY, "w1")], [say("worked")]],
            },
            decided=1,
        ),
    ),
    "hosted_decided": (
        hosted,
        Program({"front": [[ask_hosted("push", '{"branch":"main"}', "mcpr_1")], [say("done")]]}, decided=1),
    ),
    "told_why": (approval, Program(_ONE_PAYMENT, decisions=[["too much"]], decided=1)),
    "added_input": (approval, Program(_ONE_PAYMENT, added_input="and hurry")),
}


def decide(state: Any, words: list[str]) -> None:
    """Decide about the interruptions of a paused run."""
    for item, word in zip(state.get_interruptions(), words, strict=True):
        if word in ("approve", "always"):
            state.approve(item, always_approve=word == "always")
        elif word in ("reject", "never"):
            state.reject(item, always_reject=word == "never")
        else:
            state.reject(item, rejection_message=word)


async def resume_to_the_end(
    lib: Any, agent: Any, state: Any, program: Program, *, session: Any = None
) -> tuple[Any, list[list[str | None]]]:
    """Resume a run until it ends. Returns its result, and the names of the tools that each pause was about."""
    paused_for = []
    config = lib.RunConfig(**program.config)
    for words in program.decisions[program.decided :]:
        paused_for.append(
            [item.tool_name if hasattr(item, "tool_name") else None for item in state.get_interruptions()]
        )
        decide(state, words)
        result = await lib.Runner.run(agent, state, session=session, run_config=config)
        if not result.interruptions:
            return result, paused_for
        state = result.to_state()
    return await lib.Runner.run(agent, state, session=session, run_config=config), paused_for


def describe(result: Any, scripts: Scripts, made: list[str]) -> dict[str, Any]:
    """Return what a resumed run did, in plain JSON."""
    usage = result.context_wrapper.usage
    return {
        "final_output": result.final_output,
        "last_agent": result.last_agent.name,
        "items": [item.type for item in result.new_items],
        "agents": [item.agent.name for item in result.new_items],
        "outputs": [item.output for item in result.new_items if item.type == "tool_call_output_item"],
        "input_list": [dict(item) if isinstance(item, dict) else item.model_dump() for item in result.to_input_list()],
        "responses": [response.response_id for response in result.raw_responses],
        "requests": scripts.requests,
        "made": made,
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens],
        "context": result.context_wrapper.context,
        "guardrails": [
            [found.guardrail.get_name() for found in result.input_guardrail_results],
            [found.guardrail.get_name() for found in result.output_guardrail_results],
        ],
    }
