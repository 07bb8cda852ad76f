"""The files in ``deploy/``: what they start works, as far as that can be seen without an engine for containers."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import yaml

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
APP = """
from standfast import Agent, FunctionModel

helper = Agent("helper", model=FunctionModel(lambda request: "hello"))
"""


def read_dockerfile():
    """Return the instructions of the Dockerfile by name; of several with one name, the last."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.findall(r"^([A-Z]+) +(.+)$", text, re.MULTILINE)
    return dict(found)


async def test_the_command_of_the_image_serves_and_its_health_check_passes(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    instructions = read_dockerfile()
    assert json.loads(instructions["CMD"])[:2] == ["sh", "-c"]
    command = json.loads(instructions["CMD"])[2].replace("--port 8000", "--port 0 --json")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ALLOWED_HOST": "agents.example.com",
        "STANDFAST_STORE": f"sqlite:///{tmp_path}/app.db",
    }
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command),
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        line = await process.stdout.readline()
        assert line, await errors
        announced = json.loads(line)
        assert announced["token"] is None  # other machines can reach it: a key is needed
        port = announced["url"].rpartition(":")[2]
        check = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])[2].replace(":8000/", f":{port}/")
        checked = await asyncio.create_subprocess_exec(sys.executable, "-c", check)
        assert await checked.wait() == 0
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            assert (await http.get("/agents", headers={"host": "agents.example.com"})).status_code == 401
            assert (await http.get("/healthz", headers={"host": "other.example.com"})).status_code == 421
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0
    assert all(json.loads(entry)["level"] for entry in (await errors).splitlines() if entry.startswith(b"{"))
    process._transport.close()


def test_the_unit_is_accepted_by_systemd_and_its_options_exist(tmp_path, command_process):
    unit = (DEPLOY / "standfast.service").read_text()
    [command] = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    words = shlex.split(command)
    assert Path(words[0]).name == "standfast"
    options = [word for word in words if word.startswith("--")]
    shown = command_process.run(
        *("-m", "standfast", "serve", "--help"), directory=tmp_path, environment=os.environ | {"COLUMNS": "200"}
    )
    assert options
    assert [option for option in options if option not in shown.stdout] == []
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    installed = tmp_path / "standfast.service"
    installed.write_text(unit.replace(words[0], "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_compose_file_starts_two_servers_that_the_balancer_knows():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    server = services["server"]
    assert server["deploy"]["replicas"] == 2
    assert server["environment"]["STANDFAST_STORE"].startswith("postgresql+asyncpg://standfast:")
    assert (DEPLOY.parent / server["build"]["dockerfile"]).is_file()
    [mounted] = services["balancer"]["volumes"]
    balancer = (DEPLOY / mounted.partition(":")[0]).read_text()
    assert "server server:8000" in balancer
    assert "proxy_buffering off" in balancer
    drain = int(re.search(r"--drain-delay (\d+)", read_dockerfile()["CMD"])[1])
    assert int(server["stop_grace_period"].removesuffix("s")) > drain + 20  # requests get 20 seconds to end
