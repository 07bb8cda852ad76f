"""A chat bot that asks for approval before its agent acts. See demo.py for how to run it.

Points of interest:

- A message starts a durable run with the event id of the chat as its key: delivered twice, it starts once.
- A thread is a session. The answers and approval requests of its runs are posted there.
- The position in each run is stored in the session's metadata, so that a restarted bot resumes there. (A crash between
  posting and storing posts one message twice.)
- Requests without a valid signature of the chat service are rejected, and only approvers can decide.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import httpx2
from fastapi import FastAPI, HTTPException, Request
from releases import agent
from signatures import is_valid

from standfast import (
    Approval,
    Event,
    NotFound,
    RunHandle,
    Runtime,
    StandfastError,
    format_arguments,
    make_visible,
)

BUTTONS = {
    "approval": {"approve": "Approve", "reject": "Reject"},
    "uncertain": {"done": "It happened", "again": "Do it again", "reject": "Do not repeat it"},
}
RETRY_SECONDS = 1.0


class Chat:
    """The methods of the chat service that the bot needs."""

    def __init__(self, http: httpx2.AsyncClient, token: str) -> None:
        self._http, self._headers = http, {"Authorization": f"Bearer {token}"}

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        response = await self._http.post(f"/api/{method}", json=arguments, headers=self._headers)
        result: dict[str, Any] = response.raise_for_status().json()
        if not result["ok"]:
            raise RuntimeError(f"the chat service rejected {method}: {result['error']}")
        return result


class Bot:
    """Connects a runtime to a chat."""

    def __init__(self, rt: Runtime, chat: Chat, approvers: frozenset[str]) -> None:
        self.rt, self.chat, self.approvers = rt, chat, approvers
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def resume_runs(self) -> None:
        """Follow the runs that had not ended when the bot stopped."""
        for info in await self.rt.runs(status=["queued", "running", "waiting"], limit=1000):
            self.follow(await self.rt.run(info.run_id))

    async def stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def on_message(self, event_id: str, message: dict[str, Any]) -> None:
        """Start a run for a message: in the session of its thread, or in a new one."""
        thread = f"{message['channel']}:{message.get('thread_ts') or message['ts']}"
        run = await self.rt.start("releases", message["text"], session_id=thread, key=event_id)
        self.follow(run)

    async def on_button(self, user: str, channel: str, action: dict[str, Any]) -> None:
        """Decide an approval when a user presses a button."""
        problem = None
        if user not in self.approvers:
            problem = "You are not allowed to decide this."
        else:
            details = {"output": "It happened."} if action["action_id"] == "done" else {}
            try:
                await self.rt.decide(action["value"], action["action_id"], by=user, **details)
            except StandfastError as error:
                problem = str(error)
        if problem is not None:
            await self.chat.call("chat.postEphemeral", channel=channel, user=user, text=problem)

    def follow(self, run: RunHandle) -> None:
        if run.id not in self.tasks:
            task = self.tasks[run.id] = asyncio.create_task(self._follow_with_retry(run))
            task.add_done_callback(lambda _: self.tasks.pop(run.id))

    async def _follow_with_retry(self, run: RunHandle) -> None:
        while True:
            try:
                return await self._post_events(run)
            except httpx2.HTTPError as error:
                print(f"The chat service does not answer ({error}); trying again.")
                await asyncio.sleep(RETRY_SECONDS)

    async def _post_events(self, run: RunHandle) -> None:
        """Post the events of a run until it has ended, whichever process drives it."""
        thread = str((await run.info()).session_id)
        seen = (await self._get_metadata(thread)).get(run.id, 0)
        async for event in run.events(after=seen, until="end"):
            if event.seq is not None:
                await self.rt.store.annotate(thread, {**await self._post(thread, event), run.id: event.seq})

    async def _get_metadata(self, thread: str) -> dict[str, Any]:
        try:
            return (await self.rt.store.describe(thread)).metadata
        except NotFound:
            return {}

    async def _post(self, thread: str, event: Event) -> dict[str, Any]:
        """Post an event to the thread and return the metadata to store."""
        channel, _, ts = thread.partition(":")
        location = {"channel": channel, "thread_ts": ts}
        if event.type == "model.answered":
            for text in extract_texts(event.data["items"]):
                await self.chat.call("chat.postMessage", **location, text=make_visible(text, multiline=True))
        elif event.type == "run.failed":
            problem = make_visible(event.data["problem"]["message"], multiline=True)
            await self.chat.call("chat.postMessage", **location, text=f"That failed: {problem}")
        elif event.type == "approval.requested":
            approval = await self.rt.approval(event.data["approval_id"])
            message = await self.chat.call("chat.postMessage", **location, **card(approval))
            return {approval.id: message["ts"]}
        elif event.type == "approval.decided":
            approval = await self.rt.approval(event.data["approval_id"])
            card_ts = (await self._get_metadata(thread)).get(approval.id)
            await self.chat.call("chat.update", channel=channel, ts=card_ts, **card(approval))
        return {}


def extract_texts(items: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for item in items if item.get("type") == "message" for part in item["content"]]


def card(approval: Approval) -> dict[str, Any]:
    """Return the message for an approval, with buttons while it is pending."""
    call = f"{make_visible(approval.tool)}({format_arguments(approval.arguments)})"
    if approval.status != "pending":
        return {"text": f"{call}: {approval.status} by {approval.decided_by}", "actions": []}
    text = f"Approve this call? {call}"
    if approval.kind == "uncertain":
        text = f"The bot was restarted during {call}. It may have happened: please check."
    buttons = BUTTONS[approval.kind].items()
    return {"text": text, "actions": [{"action_id": id, "text": text, "value": approval.id} for id, text in buttons]}


def make_bot(store: str, *, chat_url: str, token: str, secret: str, approvers: frozenset[str]) -> FastAPI:
    """Build the bot as a web app that receives the webhooks of the chat service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            httpx2.AsyncClient(base_url=chat_url, trust_env=False) as http,
            Runtime.open(store, agents=[agent], lease=5.0) as rt,
        ):
            bot = app.state.bot = Bot(rt, Chat(http, token), approvers)
            await bot.resume_runs()
            try:
                yield
            finally:
                await bot.stop()

    app = FastAPI(lifespan=lifespan)

    async def read_verified_body(request: Request) -> bytes:
        body = await request.body()
        if not is_valid(secret, body, request.headers, now=time.time()):
            raise HTTPException(401, "missing, invalid or expired signature")
        return body

    @app.post("/events")
    async def events(request: Request) -> dict[str, Any]:
        payload = json.loads(await read_verified_body(request))
        await app.state.bot.on_message(payload["event_id"], payload["event"])
        return {"ok": True}

    @app.post("/interactions")
    async def interactions(request: Request) -> dict[str, Any]:
        payload = json.loads(parse_qs((await read_verified_body(request)).decode())["payload"][0])
        await app.state.bot.on_button(payload["user"]["id"], payload["channel"]["id"], payload["actions"][0])
        return {"ok": True}

    return app
