import asyncio

from agents import Agent, Runner, function_tool
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def price(name: str) -> str:
    """Return a price."""
    return f"{name}: 3"


manifest = Manifest(entries={"order.txt": File(content=b"tea\n")})
worker_steps = [
    [
        function_call("exec_command", {"cmd": "cat order.txt"}, call_id="c1"),
        function_call("price", {"name": "tea"}, call_id="c2"),
    ],
    [assistant_message("the order is tea")],
]
checker_steps = [[function_call("exec_command", {"cmd": "ls"}, call_id="k1")], [assistant_message("checked")]]


async def main() -> None:
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    worker = SandboxAgent(name="Worker", model=ScriptedModel(worker_steps), default_manifest=manifest, tools=[price])
    first = Agent(
        name="First", model=ScriptedModel([[function_call("transfer_to_worker", {}, call_id="h")]]), handoffs=[worker]
    )
    result = await Runner.run(first, "what is the order?", run_config=config)
    print(result.final_output, result.last_agent.name, [item.type for item in result.new_items])
    checker = SandboxAgent(name="Checker", model=ScriptedModel(checker_steps), default_manifest=manifest)
    tool = checker.as_tool("check", "Check it.", run_config=config)
    steps = [[function_call("check", {"input": "look"}, call_id="t")], [assistant_message("fine")]]
    outer = Agent(name="Outer", model=ScriptedModel(steps), tools=[tool])
    result = await Runner.run(outer, "check")
    print(
        result.final_output,
        [getattr(item, "output", None) for item in result.new_items if item.type == "tool_call_output_item"],
    )


asyncio.run(main())
