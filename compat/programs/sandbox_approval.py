import asyncio
import json

from agents import Runner, RunState
from agents.run import RunConfig
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call


def ask(tools) -> None:
    async def check(context, arguments, call_id) -> bool:
        return "rm" in arguments["cmd"]

    tools.exec_command.needs_approval = check


def command(line, call_id):
    return [function_call("exec_command", {"cmd": line}, call_id=call_id)]


steps = [
    command("echo 1 > a; ls", "c1"),
    command("rm a", "c2"),
    command("ls; echo done", "c3"),
    [assistant_message("end")],
]
agent = SandboxAgent(name="A", model=ScriptedModel(steps), capabilities=[Shell(configure_tools=ask)])


async def main() -> None:
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    result = await Runner.run(agent, "go", run_config=config)
    print([(item.name, json.loads(item.arguments)) for item in result.interruptions])
    state = await RunState.from_string(agent, result.to_state().to_string())
    for item in state.get_interruptions():
        state.approve(item)
    result = await Runner.run(agent, state, run_config=config)
    print(result.final_output)
    print([item.output.partition("Output:")[2] for item in result.new_items if item.type == "tool_call_output_item"])


asyncio.run(main())
