"""``standfast serve`` as a process that tests of pages can stop, kill and start again."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from ports import free_port

TOKEN = "token-of-the-tests"
SHOP = Path(__file__).parent / "shop.py"


class ConsoleServer:
    """One store and one port, and the process that serves them at the moment."""

    def __init__(self, store: str, *options: str, agents: Path | str = SHOP) -> None:
        self.store, self.options, self.agents, self.port = store, options, agents, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        headers, limits = {"authorization": f"Bearer {TOKEN}"}, httpx2.Limits(max_keepalive_connections=0)
        self.http = httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, limits=limits)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = ["serve", str(self.agents), "--store", self.store, "--port", str(self.port), "--lease", "2"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "standfast", *arguments, *self.options],
            env=os.environ | {"STANDFAST_SERVER_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"http://")
        while not self.answers():
            assert self.process.poll() is None
            time.sleep(0.05)

    def answers(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.wait_for_exit()

    def wait_for_exit(self) -> None:
        assert self.process is not None
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        if self.process is not None:
            self.wait_for_exit()

    def post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def start_run(
        self,
        text: str,
        session_id: str,
        *,
        until: tuple[str, ...] = ("waiting", "completed"),
        agent: str = "support",
    ) -> str:
        """Start a run and return its id once it waits or has ended."""
        new = {"agent": agent, "input": text, "session_id": session_id, "max_turns": None}
        run_id = self.post("/runs", new)["run_id"]
        while until and (run := self.http.get(f"/runs/{run_id}").json())["status"] not in until:
            assert run["status"] in ("queued", "running"), run
            time.sleep(0.02)
        return str(run_id)

    def create_key(self, name: str, role: str) -> str:
        return str(self.post("/keys", {"name": name, "role": role, "owner": name})["secret"])

    def list_approvals(self, **query: str) -> list[dict[str, Any]]:
        return list(self.http.get("/approvals", params=query).json()["items"])


@contextmanager
def run_console(store: str, *options: str, agents: Path | str = SHOP):
    server = ConsoleServer(store, *options, agents=agents)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.http.close()
