"""Workers as workspaces of pydantic-ai: its public conformance suite, and an agent."""

import pytest

pytest.importorskip("pydantic_ai.workspaces")

from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from standfast.workers.integrations.pydantic_ai import SandboxWorkspaces


@pytest.fixture
async def workspaces():
    async with SandboxWorkspaces() as workspaces:
        yield workspaces


# Without the mark that makes anyio run the tests: the fixtures and the tests have one event loop, that of pytest-asyncio.
Rules = type(
    "Rules",
    (),
    {name: rule for name, rule in vars(WorkspaceBackendSuite).items() if name[:2] != "__" and name != "pytestmark"},
)


class TestConformance(Rules):
    @pytest.fixture
    def backend(self, workspaces):
        return workspaces.backend()

    @pytest.fixture
    def fresh_backend(self, workspaces):
        return workspaces.backend

    @pytest.fixture
    def attach_backend(self, workspaces):
        return workspaces.backend

    @pytest.fixture
    def destroy_environment(self, workspaces):
        async def destroy(backend):
            await workspaces.destroy(backend.ref)

        return destroy


async def test_commands_have_no_network(workspaces):
    command = ["python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"]
    result = await workspaces.backend().run(command)
    assert result.exit_code != 0
    assert "Network is unreachable" in result.stderr or "Permission" in result.stderr


async def test_files_of_the_host_are_out_of_reach(workspaces, tmp_path):
    (tmp_path / "secret").write_text("secret")
    backend = workspaces.backend()
    with pytest.raises(OSError):
        await backend.read_bytes(str(tmp_path / "secret"))
    directory = await backend.working_dir()
    await backend.run(["ln", "-s", str(tmp_path), f"{directory}/link"])
    with pytest.raises(OSError):
        await backend.read_bytes(f"{directory}/link/secret")
