import asyncio
import io
from pathlib import Path

from agents import Runner
from agents.run import RunConfig
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient


async def main() -> None:
    client = UnixLocalSandboxClient()
    manifest = Manifest(entries={"a.txt": File(content=b"one\n"), "tmp.txt": File(content=b"x", ephemeral=True)})
    snapshot = LocalSnapshotSpec(base_path=Path("snapshots").absolute())
    session = await client.create(manifest=manifest, snapshot=snapshot, options=None)
    async with session:
        await session.write(Path("b.txt"), io.BytesIO(b"two\n"))
        await session.exec("ln -s b.txt link; rm a.txt; echo changed > tmp.txt")
    payload = client.serialize_session_state(session.state)
    print(payload["type"], payload["snapshot"]["type"], sorted(payload["manifest"]["entries"]))
    print(len(list(Path("snapshots").iterdir())))
    resumed = await client.resume(client.deserialize_session_state(payload))
    async with resumed:
        print((await resumed.exec("ls; cat link tmp.txt")).stdout)
    agent = SandboxAgent(name="A", model="gpt-4.1")
    state = client.deserialize_session_state(payload)
    config = RunConfig(sandbox=SandboxRunConfig(client=client, session_state=state))
    print((await Runner.run(agent, 'call exec_command {"cmd": "ls"}', run_config=config)).final_output)
    config = RunConfig(sandbox=SandboxRunConfig(client=client, snapshot=state.snapshot))
    print((await Runner.run(agent, 'call exec_command {"cmd": "cat b.txt"}', run_config=config)).final_output)


asyncio.run(main())
