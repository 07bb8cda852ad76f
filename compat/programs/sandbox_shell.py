import asyncio

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import Dir, File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

agent = SandboxAgent(
    name="Reviewer",
    instructions="Look at the files first.",
    model="gpt-4.1",
    default_manifest=Manifest(
        entries={
            "notes.txt": File(content=b"two lines\nof text\n"),
            "src": Dir(children={"a.py": File(content=b"1\n")}),
        }
    ),
)


async def main() -> None:
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    result = await Runner.run(agent, 'call exec_command {"cmd": "wc -l notes.txt; ls src"}', run_config=config)
    print(result.final_output)
    print([item.type for item in result.new_items])
    print([item.output for item in result.new_items if item.type == "tool_call_output_item"])
    streamed = Runner.run_streamed(agent, 'call exec_command {"cmd": "exit 3"}', run_config=config)
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name)
    print(streamed.final_output)
    missing = await Runner.run(agent, 'call write_stdin {"session_id": 7, "chars": "x"}', run_config=config)
    print(missing.final_output.splitlines()[-1])


asyncio.run(main())
