import asyncio
from pathlib import Path

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message
from openai.types.responses import ResponseCustomToolCall


def patch(call_id, *lines):
    text = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return [ResponseCustomToolCall(call_id=call_id, name="apply_patch", input=text, type="custom_tool_call")]


steps = [
    patch("p1", "*** Update File: a.txt", "@@", " one", "-two", "+TWO", "*** Add File: new/b.txt", "+fresh"),
    patch("p2", "*** Delete File: c.txt"),
    [assistant_message("patched")],
]


async def main() -> None:
    client = UnixLocalSandboxClient()
    manifest = Manifest(entries={"a.txt": File(content=b"one\ntwo\n"), "c.txt": File(content=b"x")})
    session = await client.create(manifest=manifest, options=None)
    agent = SandboxAgent(name="A", model=ScriptedModel(steps), capabilities=[Filesystem()])
    async with session:
        result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(session=session)))
        print(result.final_output, [item.type for item in result.new_items])
        for name in ("a.txt", "new/b.txt"):
            print((await session.read(Path(name))).read())
        print((await session.exec("ls c.txt")).exit_code == 0)


asyncio.run(main())
