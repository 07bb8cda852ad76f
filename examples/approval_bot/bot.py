"""A bot that asks in the chat before its agent does something. See demo.py for how to run it.

What to look at:

- A message becomes a durable run, with the id of the chat's event as its key: delivered twice, it is started once.
- A thread is a conversation. Whatever its runs say or ask is posted there.
- What was posted is noted in the store, so that a bot that was restarted goes on where it was. (Killed between
  posting and noting, it posts one message twice.)
- Requests that are not signed by the chat service are refused, and only approvers decide.
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
from signatures import is_genuine

from standfast import Approval, Event, NotFound, RunHandle, Runtime, StandfastError

BUTTONS = {
    "approval": {"approve": "Approve", "reject": "Reject"},
    "uncertain": {"done": "It happened", "approve": "Do it again", "reject": "Leave it"},
}
RETRY_SECONDS = 1.0


class Chat:
    """The methods of the chat service that the bot needs."""

    def __init__(self, http: httpx2.AsyncClient, token: str) -> None:
        self._http, self._headers = http, {"Authorization": f"Bearer {token}"}

    async def call(self, method: str, **given: Any) -> dict[str, Any]:
        answer = await self._http.post(f"/api/{method}", json=given, headers=self._headers)
        told: dict[str, Any] = answer.raise_for_status().json()
        if not told["ok"]:
            raise RuntimeError(f"the chat service refused {method}: {told['error']}")
        return told


class Bot:
    """Between a runtime and a chat."""

    def __init__(self, rt: Runtime, chat: Chat, approvers: frozenset[str]) -> None:
        self.rt, self.chat, self.approvers = rt, chat, approvers
        self.following: dict[str, asyncio.Task[None]] = {}

    async def go_on(self) -> None:
        """Follow the runs that were under way when the bot stopped."""
        for info in await self.rt.runs(status=["queued", "running", "waiting"], limit=1000):
            self.follow(await self.rt.run(info.run_id))

    async def stop(self) -> None:
        for task in self.following.values():
            task.cancel()
        await asyncio.gather(*self.following.values(), return_exceptions=True)

    async def said(self, event_id: str, message: dict[str, Any]) -> None:
        """Somebody wrote something: in a thread it goes on with that conversation, elsewhere it begins one."""
        thread = f"{message['channel']}:{message.get('thread_ts') or message['ts']}"
        run = await self.rt.start("releases", message["text"], session_id=thread, key=event_id)
        self.follow(run)

    async def pressed(self, user: str, channel: str, action: dict[str, Any]) -> None:
        """Somebody pressed a button."""
        problem = None
        if user not in self.approvers:
            problem = "You may not decide about this."
        else:
            given = {"output": "It happened."} if action["action_id"] == "done" else {}
            try:
                await self.rt.decide(action["value"], action["action_id"], by=user, **given)
            except StandfastError as refused:
                problem = str(refused)
        if problem is not None:
            await self.chat.call("chat.postEphemeral", channel=channel, user=user, text=problem)

    def follow(self, run: RunHandle) -> None:
        if run.id not in self.following:
            task = self.following[run.id] = asyncio.create_task(self._tell_all(run))
            task.add_done_callback(lambda _: self.following.pop(run.id))

    async def _tell_all(self, run: RunHandle) -> None:
        while True:
            try:
                return await self._tell(run)
            except httpx2.HTTPError as problem:
                print(f"The chat service does not answer ({problem}); trying again.")
                await asyncio.sleep(RETRY_SECONDS)

    async def _tell(self, run: RunHandle) -> None:
        """Post what happens to the run, wherever it is decided and driven, until it has ended."""
        thread = str((await run.info()).session_id)
        seen = (await self._noted(thread)).get(run.id, 0)
        while True:
            async for event in run.events(after=seen):
                if event.seq is not None:
                    seen = event.seq
                    await self.rt.store.annotate(thread, {**await self._post(thread, event), run.id: seen})
            if (await run.info()).status in ("completed", "failed", "cancelled"):
                return
            while (await run.info()).steps == seen:  # it waits for a person
                await asyncio.sleep(0.1)

    async def _noted(self, thread: str) -> dict[str, Any]:
        try:
            return (await self.rt.store.describe(thread)).metadata
        except NotFound:
            return {}

    async def _post(self, thread: str, event: Event) -> dict[str, Any]:
        """Say in the thread what happened; gives what has to be remembered of it."""
        channel, _, ts = thread.partition(":")
        place = {"channel": channel, "thread_ts": ts}
        if event.type == "model.answered":
            for text in spoken(event.data["items"]):
                await self.chat.call("chat.postMessage", **place, text=text)
        elif event.type == "run.failed":
            await self.chat.call("chat.postMessage", **place, text=f"That failed: {event.data['problem']['message']}")
        elif event.type == "approval.requested":
            approval = await self.rt.approval(event.data["approval_id"])
            posted = await self.chat.call("chat.postMessage", **place, **card(approval))
            return {approval.id: posted["ts"]}
        elif event.type == "approval.decided":
            approval = await self.rt.approval(event.data["approval_id"])
            card_ts = (await self._noted(thread)).get(approval.id)
            await self.chat.call("chat.update", channel=channel, ts=card_ts, **card(approval))
        return {}


def spoken(items: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for item in items if item.get("type") == "message" for part in item["content"]]


def card(approval: Approval) -> dict[str, Any]:
    """A question with buttons, or without them when it was answered."""
    call = f"{approval.tool}({', '.join(f'{k}={v}' for k, v in json.loads(approval.arguments).items())})"
    if approval.status != "pending":
        return {"text": f"{call}: {approval.status} by {approval.decided_by}", "actions": []}
    text = f"May I do this? {call}"
    if approval.kind == "uncertain":
        text = f"I was restarted during {call}. It may have happened: please look."
    buttons = BUTTONS[approval.kind].items()
    return {"text": text, "actions": [{"action_id": id, "text": text, "value": approval.id} for id, text in buttons]}


def make_bot(store: str, *, chat_url: str, token: str, secret: str, approvers: frozenset[str]) -> FastAPI:
    """The bot as a web app that takes the chat service's webhooks."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            httpx2.AsyncClient(base_url=chat_url, trust_env=False) as http,
            Runtime.open(store, agents=[agent], lease=5.0) as rt,
        ):
            bot = app.state.bot = Bot(rt, Chat(http, token), approvers)
            await bot.go_on()
            try:
                yield
            finally:
                await bot.stop()

    app = FastAPI(lifespan=lifespan)

    async def genuine(request: Request) -> bytes:
        body = await request.body()
        if not is_genuine(secret, body, request.headers, now=time.time()):
            raise HTTPException(401, "not signed by the chat service, or too old")
        return body

    @app.post("/events")
    async def events(request: Request) -> dict[str, Any]:
        told = json.loads(await genuine(request))
        await app.state.bot.said(told["event_id"], told["event"])
        return {"ok": True}

    @app.post("/interactions")
    async def interactions(request: Request) -> dict[str, Any]:
        told = json.loads(parse_qs((await genuine(request)).decode())["payload"][0])
        await app.state.bot.pressed(told["user"]["id"], told["channel"]["id"], told["actions"][0])
        return {"ok": True}

    return app
