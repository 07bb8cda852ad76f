import asyncio
import json
from pathlib import Path

from agents import RunConfig, Runner, SQLiteSession
from agents.sandbox import LocalSnapshotSpec, MemoryGenerateConfig, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Memory, Shell
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call

notes = {"rollout_slug": "say_hello", "rollout_summary": "# Hello", "raw_memory": "- likes tea"}
extraction = ScriptedModel([[assistant_message(json.dumps(notes))]])
write = (
    "cat memories/raw_memories.md | tail -n 1; echo INDEX > memories/MEMORY.md; echo TIPS > memories/memory_summary.md"
)
consolidation = ScriptedModel([[function_call("exec_command", {"cmd": write}, call_id="x")], [assistant_message("ok")]])


async def main() -> None:
    memory = Memory(generate=MemoryGenerateConfig(phase_one_model=extraction, phase_two_model=consolidation))
    print(sorted(memory.required_capability_types()), memory.layout, memory.read)
    steps = [
        [function_call("exec_command", {"cmd": "echo hi"}, call_id="c")],
        [assistant_message("one")],
        [assistant_message("two")],
    ]
    agent = SandboxAgent(name="A", model=ScriptedModel(steps), capabilities=[memory, Filesystem(), Shell()])
    client = UnixLocalSandboxClient()
    sandbox = await client.create(snapshot=LocalSnapshotSpec(base_path=Path("kept").absolute()), options=None)
    conversation = SQLiteSession("chat-1")
    async with sandbox:
        config = RunConfig(sandbox=SandboxRunConfig(session=sandbox))
        for text in ("hello", "again"):
            print((await Runner.run(agent, text, session=conversation, run_config=config)).final_output)
        segments = (await sandbox.read(Path("sessions/chat-1.jsonl"))).read().decode().splitlines()
        for segment in map(json.loads, segments):
            segment.pop("updated_at")
            items = [item.get("type") for item in segment.pop("generated_items")]
            print(json.dumps(segment, sort_keys=True), items)
    print(len(extraction.calls), len(consolidation.calls))
    resumed = await client.resume(client.deserialize_session_state(client.serialize_session_state(sandbox.state)))
    reader = ScriptedModel([[assistant_message("three")]])
    agent = SandboxAgent(name="B", model=reader, capabilities=[Memory(generate=None), Filesystem(), Shell()])
    async with resumed:
        print((await resumed.exec("find . -type f | sort; tail -n 1 memories/raw_memories.md")).stdout.decode())
        await Runner.run(agent, "more", run_config=RunConfig(sandbox=SandboxRunConfig(session=resumed)))
        instructions = reader.calls[0].system_instructions
        print("TIPS" in instructions, "memories/MEMORY.md" in instructions)
    for broken in ({"read": None, "generate": None}, {"layout": {"memories_dir": "/x"}}):
        try:
            Memory(**broken)
        except ValueError as error:
            print(isinstance(error, ValueError))


asyncio.run(main())
