"""A support desk on the web: a customer chats, a person approves refunds, and runs survive a crash of the server.

    pip install '.[examples]'
    python examples/support_desk/app.py              then open http://127.0.0.1:8000
    python examples/support_desk/app.py --model gpt-4.1-mini        (without --model it follows fixed rules)

Ask for a refund of order A7, approve it, and kill the server with ``kill -9`` during the refund. Start it again: the
page reconnects and asks whether the refund happened, which only a person can find out.

Points of interest:

- ``POST /runs`` starts a durable run. Sent twice with one ``key``, it starts once.
- ``GET /runs/{id}/events`` streams server-sent events. Their ids are the sequence numbers of the run's events, so that
  a browser resumes where it stopped: by ``Last-Event-ID`` or by ``?after=``.
- ``POST /approvals/{id}`` decides: approve, approve with edited arguments, reject; for a call that may have happened,
  report that it has, or have it made again.

There is no login. Add one before you expose the app, and take ``by`` from it.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from desk import make_agent
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from standfast import (
    Approval,
    ApprovalSettled,
    InvalidInput,
    KeyReused,
    LocalModel,
    NotFound,
    RunHandle,
    Runtime,
    StandfastError,
)

STATIC = Path(__file__).parent / "static"
HTTP_STATUS = {NotFound: 404, ApprovalSettled: 409, KeyReused: 409, InvalidInput: 422}

RETRY_MS = 500
"""The delay after which a browser reconnects to a lost server."""


class NewRun(BaseModel):
    conversation: str
    text: str
    key: str


class Decision(BaseModel):
    decision: Literal["approve", "reject", "done", "again"]
    by: str
    arguments: dict[str, Any] | None = None
    message: str | None = None
    output: str | None = None


def runtime(request: Request) -> Runtime:
    return request.app.state.runtime


async def get_run(run_id: str, rt: Annotated[Runtime, Depends(runtime)]) -> RunHandle:
    return await rt.run(run_id)


RuntimeDependency = Annotated[Runtime, Depends(runtime)]
RunDependency = Annotated[RunHandle, Depends(get_run)]


def make_app(folder: Path, *, model: Any = None, lease: float = 5.0) -> FastAPI:
    """Build the web app; its store and its ledger are in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        agents = [make_agent(folder / "refunds.txt", model)]
        async with Runtime.open(f"sqlite:///{folder / 'desk.db'}", agents=agents, lease=lease) as rt:
            app.state.runtime = rt
            yield

    app = FastAPI(title="Support desk", lifespan=lifespan)
    app.state.stopping = lambda: False
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])

    @app.exception_handler(StandfastError)
    async def handle_error(request: Request, error: StandfastError) -> JSONResponse:
        status = next((status for kind, status in HTTP_STATUS.items() if isinstance(error, kind)), 500)
        return JSONResponse({"code": error.code, "detail": str(error)}, status)

    @app.post("/runs", status_code=202)
    async def start(new: NewRun, rt: RuntimeDependency) -> dict[str, str]:
        run = await rt.start("desk", new.text, session_id=new.conversation, key=new.key)
        return {"run_id": run.id}

    @app.get("/runs")
    async def runs(conversation: str, rt: RuntimeDependency) -> list[dict[str, Any]]:
        return [{"run_id": run.run_id, "status": run.status} for run in await rt.runs(session_id=conversation)]

    @app.get("/runs/{run_id}/events", response_class=EventSourceResponse)
    async def events(
        run: RunDependency, after: int = 0, last_event_id: Annotated[int | None, Header()] = None
    ) -> AsyncIterator[ServerSentEvent]:
        seen = after if last_event_id is None else last_event_id
        yield ServerSentEvent(comment="reconnect delay", retry=RETRY_MS)
        while True:
            async for event in run.events(after=seen):
                seen = event.seq or seen  # deltas of a model have no number
                number = None if event.seq is None else str(event.seq)
                yield ServerSentEvent(id=number, data={"type": event.type, "data": event.data})
            info = await run.info()
            if info.status in ("completed", "failed", "cancelled"):
                yield ServerSentEvent(event="end", data={"status": info.status})
                return
            while (await run.info()).steps == seen:  # it waits for a decision, which another process may receive
                if app.state.stopping():
                    return  # the browser reconnects to the next server
                await asyncio.sleep(0.25)

    @app.get("/approvals")
    async def approvals(rt: RuntimeDependency, conversation: str | None = None) -> list[dict[str, Any]]:
        return [
            approval_to_json(approval) for approval in await rt.approvals(status="pending", session_id=conversation)
        ]

    @app.post("/approvals/{approval_id}")
    async def decide(approval_id: str, decision: Decision, rt: RuntimeDependency) -> dict[str, Any]:
        details = decision.model_dump(exclude={"decision"})
        return approval_to_json(await rt.decide(approval_id, decision.decision, **details))

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def approval_to_json(approval: Approval) -> dict[str, Any]:
    names = ("id", "kind", "status", "run_id", "agent", "tool", "arguments", "edited", "decided_by", "message")
    return {name: getattr(approval, name) for name in names}


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
    app = make_app(arguments.folder, model=model, lease=arguments.lease)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=arguments.port, timeout_graceful_shutdown=1))
    app.state.stopping = lambda: server.should_exit
    with suppress(KeyboardInterrupt):
        server.run()


if __name__ == "__main__":
    main()
