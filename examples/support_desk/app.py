"""A support desk on the web: a customer chats, a person approves refunds, and runs survive a crash of the server.

    pip install '.[examples]'
    python examples/support_desk/app.py              then open http://127.0.0.1:8000
    python examples/support_desk/app.py --model gpt-4.1-mini        (without --model it follows fixed rules)

Ask for a refund of order A7, approve it, and kill the server with ``kill -9`` during the refund. Start it again: the
page reconnects and asks whether the refund happened, which only a person can find out.

The whole server is :func:`standfast.server.create_app`, mounted at ``/api``, beside the files of the page:

- ``POST /api/runs`` starts a durable run. Sent twice with one ``Idempotency-Key``, it starts once.
- ``GET /api/runs/{id}/events`` streams its events. A browser resumes where it stopped.
- ``POST /api/approvals/{id}`` decides: approve, approve with edited arguments, reject; for a call that may have
  happened, report that it has, or have it made again.

There is no login: whoever reaches this machine may do everything. Pass another ``auth`` before you expose the app.
"""

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote

import uvicorn
from desk import make_agent
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from standfast import LocalModel, Runtime
from standfast.server import Principal, Role, create_app

STATIC = Path(__file__).parent / "static"


class Visitors:
    """Believes the name that the page sends, which decisions are recorded with."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        name = unquote(headers.get("x-person", "")) or "anonymous"
        return Principal(subject=name, role=Role.OPERATOR, owner="desk", method="none")


class DeskServer(uvicorn.Server):
    """Ends the streams of open pages before it stops; they reconnect to the next server."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.service.draining.set()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


async def serve(folder: Path, port: int, *, model: Any = None, lease: float = 5.0) -> None:
    """Serve the desk; its store and its ledger are in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    agents = [make_agent(folder / "refunds.txt", model)]
    async with Runtime.open(f"sqlite:///{folder / 'desk.db'}", agents=agents, lease=lease, live=True) as runtime:
        api = create_app(runtime, auth=Visitors())
        app = Starlette(routes=[Mount("/api", api), Mount("/", StaticFiles(directory=STATIC, html=True))])
        app.state.service = api.state.service
        await DeskServer(uvicorn.Config(app, host="127.0.0.1", port=port, timeout_graceful_shutdown=5)).serve()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=Path("support-desk"), help="where the store and ledger are")
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--model", help="a model's name, or `local` for the embedded one")
    options.add_argument(
        "--lease", type=float, default=5.0, help="seconds after which another server may take over runs"
    )
    arguments = options.parse_args()
    print(f"Model: {arguments.model or 'fixed rules, no key needed'}. Store: {arguments.folder}/desk.db", flush=True)
    model = LocalModel() if arguments.model == "local" else arguments.model
    asyncio.run(serve(arguments.folder, arguments.port, model=model, lease=arguments.lease))


if __name__ == "__main__":
    main()
