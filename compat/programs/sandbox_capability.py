import asyncio
import io
from pathlib import Path

from agents import Runner, function_tool
from agents.run import RunConfig
from agents.sandbox import Capability, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Capabilities, Compaction, Shell, StaticCompactionPolicy
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.testing import ScriptedModel, assistant_message, function_call


class Notes(Capability):
    type: str = "notes"

    def tools(self):
        session = self.session

        @function_tool
        async def add_note(text: str) -> str:
            """Write a note."""
            await session.write(Path("note.txt"), io.BytesIO(text.encode()))
            return "noted"

        return [add_note]

    def process_manifest(self, manifest: Manifest) -> Manifest:
        return manifest.model_copy(update={"entries": {**manifest.entries, "seed.txt": File(content=b"seed")}})

    async def instructions(self, manifest: Manifest) -> str | None:
        return "Use add_note for notes."


async def main() -> None:
    print([capability.type for capability in Capabilities.default()])
    calls = [
        [function_call("add_note", {"text": "remember"}, call_id="c1")],
        [function_call("exec_command", {"cmd": "cat note.txt seed.txt"}, call_id="c2")],
        [assistant_message("done")],
    ]
    model = ScriptedModel(calls)
    capabilities = [Notes(), Shell(), Compaction(policy=StaticCompactionPolicy(threshold=1000))]
    agent = SandboxAgent(
        name="A", instructions="Be brief.", model=model, capabilities=capabilities, default_manifest=Manifest()
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    result = await Runner.run(agent, "go", run_config=config)
    print([item.output.rpartition("\n")[2] for item in result.new_items if item.type == "tool_call_output_item"])
    print([tool.name for tool in model.calls[0].tools], model.calls[0].model_settings.extra_args)
    text = model.calls[0].system_instructions
    print(0 < text.index("Be brief.") < text.index("Use add_note for notes.") < text.index("seed.txt"))
    own = SandboxAgent(
        name="B", base_instructions="Only this.", model=ScriptedModel([[assistant_message("ok")]]), capabilities=[]
    )
    await Runner.run(own, "go", run_config=config)
    print(own.model.calls[0].system_instructions.startswith("Only this."), own.model.calls[0].tools)


asyncio.run(main())
