"""The support desk as a process, and a client of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import started

from ports import free_port, wait_for_port

httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("fastapi")


class Desk:
    """The server, its folder, and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20, trust_env=False)
        self._running = AsyncExitStack()

    async def start(self) -> None:
        words = ["--folder", str(self.folder), "--port", str(self.port), "--lease", "0.5"]
        self.process = await self._running.enter_async_context(started("support_desk/app.py", *words, cwd=self.folder))
        await wait_for_port(self.port, self.process)

    async def kill(self) -> None:
        """As ``kill -9``."""
        await self._running.aclose()

    async def close(self) -> None:
        await self.kill()
        await self.http.aclose()

    @property
    def ledger(self) -> list[str]:
        file = self.folder / "refunds.txt"
        return file.read_text().splitlines() if file.exists() else []

    async def say(self, text: str, *, key: str = "k1") -> str:
        told = await self.http.post("/runs", json={"conversation": "user-7", "text": text, "key": key})
        assert told.status_code == 202, told.text
        return str(told.json()["run_id"])

    async def pending(self, kind: str = "approval") -> dict[str, Any]:
        async with asyncio.timeout(15):
            while True:
                for found in (await self.http.get("/approvals")).json():
                    if found["kind"] == kind:
                        return dict(found)
                await asyncio.sleep(0.05)

    async def decide(self, approval: dict[str, Any], decision: str, **more: Any) -> Any:
        body = {"decision": decision, "by": "ann", **more}
        return await self.http.post(f"/approvals/{approval['id']}", json=body)

    async def events(
        self, run_id: str, *, until: str = "end", headers: dict[str, str] | None = None, **query: Any
    ) -> list[tuple[int | None, dict[str, Any]]]:
        """The numbers and contents of the stream's events, up to the first of that type."""
        found: list[tuple[int | None, dict[str, Any]]] = []
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
                    found.append((int(fields["id"]) if "id" in fields else None, data))
                    if data["type"] == until:
                        break
                fields = {}
        return found


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    try:
        await desk.start()
        yield desk
    finally:
        await desk.close()
