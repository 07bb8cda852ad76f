"""The support desk as a server process with an HTTP client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from example_processes import start_example

from ports import free_port, wait_for_port

httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("starlette")


class DeskClient:
    """The server, its folder, and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.http = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}/api", timeout=60, trust_env=False, verify=False
        )
        self._running = AsyncExitStack()

    async def start(self) -> None:
        arguments = ["--folder", str(self.folder), "--port", str(self.port), "--lease", "0.5"]
        self.process = await self._running.enter_async_context(
            start_example("support_desk/app.py", *arguments, cwd=self.folder)
        )
        await wait_for_port(self.port, self.process)

    async def kill(self) -> None:
        """Kill the server with SIGKILL."""
        await self._running.aclose()

    async def close(self) -> None:
        await self.kill()
        await self.http.aclose()

    @property
    def ledger(self) -> list[str]:
        file = self.folder / "refunds.txt"
        return file.read_text().splitlines() if file.exists() else []

    async def send_message(self, text: str, *, key: str = "k1") -> str:
        body = {"agent": "desk", "input": text, "session_id": "user-7"}
        response = await self.http.post("/runs", json=body, headers={"Idempotency-Key": key})
        assert response.status_code == 201, response.text
        return str(response.json()["run_id"])

    async def wait_for_approval(self, kind: str = "approval") -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                for approval in (await self.http.get("/approvals?status=pending")).json()["items"]:
                    if approval["kind"] == kind:
                        return dict(approval)
                await asyncio.sleep(0.05)

    async def decide(self, approval: dict[str, Any], decision: str, **fields: Any) -> Any:
        path, body = f"/approvals/{approval['id']}", {"decision": decision, **fields}
        return await self.http.post(path, json=body, headers={"X-Person": "ann"})

    async def events(
        self, run_id: str, *, until: str = "end", headers: dict[str, str] | None = None, **query: Any
    ) -> list[tuple[int | None, dict[str, Any]]]:
        """Return the numbers and data of the streamed events, up to the first of this type."""
        events: list[tuple[int | None, dict[str, Any]]] = []
        async with self.http.stream("GET", f"/runs/{run_id}/events", params=query, headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            fields: dict[str, str] = {}
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                    continue
                if "data" in fields:
                    data = json.loads(fields["data"])
                    data.setdefault("type", fields.get("event"))
                    number = fields.get("id", "")  # that of a word has a place after the number
                    events.append((int(number) if number.isdigit() else None, data))
                    if data["type"] == until:
                        break
                fields = {}
        return events


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[DeskClient]:
    desk = DeskClient(tmp_path)
    try:
        await desk.start()
        yield desk
    finally:
        await desk.close()
