"""Workers as the sandbox of openai-agents."""

import io
from pathlib import Path

import agents
import pytest
from agents.items import ModelResponse
from agents.sandbox import ExecTimeoutError, LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from standfast.workers.integrations.openai_agents import WorkerSandboxClient


@pytest.fixture
def client():
    return WorkerSandboxClient()


async def test_commands_and_files_are_in_the_sandbox(client):
    session = await client.create(manifest=Manifest(entries={"greeting.txt": File(content=b"hello")}))
    async with session:
        result = await session.exec("cat greeting.txt; exit 3")
        assert (result.stdout, result.exit_code) == (b"hello", 3)
        await session.write(Path("out/data.bin"), io.BytesIO(b"\x00\xff"))
        assert (await session.read(Path("out/data.bin"))).read() == b"\x00\xff"
        assert (await session.exec("cat /etc/shadow")).exit_code != 0
        network = "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)\""
        assert (await session.exec(network)).exit_code != 0
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 600", timeout=0.5)
        assert await session.running()
    await client.delete(session)
    assert not await session.running()


async def test_a_sandbox_can_be_resumed_elsewhere_with_its_files(client, tmp_path):
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with session:
        await session.exec("mkdir deep && echo kept > deep/file")
    payload = client.serialize_session_state(session.state)
    await client.delete(session)
    other = WorkerSandboxClient()
    resumed = await other.resume(other.deserialize_session_state(payload))
    async with resumed:
        assert (await resumed.exec("cat deep/file")).stdout == b"kept\n"
    await other.delete(resumed)


class Scripted(agents.Model):
    """A model that runs one command and then repeats its output."""

    async def get_response(self, system_instructions, input, model_settings, tools, *args, **kwargs):
        outputs = [item["output"] for item in input if item.get("type") == "function_call_output"]
        if outputs:
            text = ResponseOutputText(type="output_text", text=outputs[-1], annotations=[])
            item = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        else:
            arguments = '{"cmd": "echo written > file; cat file; pwd"}'
            item = ResponseFunctionToolCall(
                type="function_call", call_id="c1", name="exec_command", arguments=arguments
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def test_a_sandbox_agent_runs_commands_in_a_worker(client):
    agents.set_tracing_disabled(True)
    config = agents.RunConfig(sandbox=SandboxRunConfig(client=client))
    result = await agents.Runner.run(SandboxAgent(name="coder", model=Scripted()), "go", run_config=config)
    assert "Process exited with code 0" in result.final_output
    assert "written\n/session/work" in result.final_output
