"""A sandbox agent that works on a small project: files in the manifest, commands, patches, a handoff back."""

import asyncio
from pathlib import Path

from agents import Agent, ModelSettings, Runner, function_tool
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Capabilities
from agents.sandbox.entries import Dir, File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call

PATCH = """*** Begin Patch
*** Update File: app/main.py
@@
-print("hello")
+print("goodbye")
*** End Patch
"""


@function_tool
def price(item: str) -> int:
    """The price of an item."""
    return len(item)


def command(line, call_id):
    return function_call("exec_command", {"cmd": line}, call_id=call_id)


worker = SandboxAgent(
    name="Worker",
    instructions="Mend the program.",
    default_manifest=Manifest(
        entries={
            "app": Dir(children={"main.py": File(content=b'print("hello")\n')}),
            "README.md": File(content=b"A program.\n"),
        }
    ),
    tools=[price],
    model_settings=ModelSettings(tool_choice="auto"),
    model=ScriptedModel(
        [
            [command("cat README.md && python3 app/main.py", "c1")],
            [function_call("price", {"item": "lamp"}, call_id="c2"), command("ls app | wc -l; exit 3", "c3")],
            [assistant_message("The program says hello.")],
        ]
    ),
)
desk = Agent(
    name="Desk",
    handoffs=[worker],
    model=ScriptedModel([[function_call("transfer_to_worker", {}, call_id="h1")]]),
)


async def main() -> None:
    print([type(one).__name__ for one in Capabilities.default()])
    client = UnixLocalSandboxClient()
    config = RunConfig(sandbox=SandboxRunConfig(client=client), workflow_name="Project")
    result = await Runner.run(desk, "Mend it.", run_config=config)
    print(result.final_output, result.last_agent.name)
    for item in result.new_items:
        if item.type == "tool_call_output_item":
            print(item.agent.name, str(item.output).partition("Output:\n")[2] or item.output)
    session = await client.create(manifest=worker.default_manifest)
    async with session:
        print((await session.read(Path("app/main.py"))).read())
        done = await session.exec("python3 app/main.py; whoami > /dev/null; echo $?")
        print(done.stdout.decode(), done.exit_code)
    await client.delete(session)


asyncio.run(main())
