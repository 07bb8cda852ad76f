"""A chat service in small, so that the bot runs offline: channels, threads, buttons, and signed webhooks to a bot.

Its methods, its webhooks and the way they are signed are those of Slack in all that matters here.
"""

import itertools
import json
import secrets
import time
from typing import Annotated, Any
from urllib.parse import urlencode

import httpx2
from fastapi import FastAPI, Header
from signatures import signed


class ChatService:
    """Everything that was posted, the secrets shared with the bot, and what people can do."""

    def __init__(self) -> None:
        self.token, self.secret = secrets.token_hex(16), secrets.token_hex(16)
        self.messages: list[dict[str, Any]] = []
        self.whispers: list[dict[str, Any]] = []
        self.bot_url = ""
        self._numbers = itertools.count(1)

    # --- what people do -----------------------------------------------------------------------------------------

    async def say(self, user: str, text: str, *, thread: str | None = None, deliveries: int = 1) -> str:
        """Write into the channel, or into a thread. Like all webhooks, the bot may get it more than once."""
        message = self.posted({"channel": "C1", "user": user, "text": text, "thread_ts": thread})
        event = {"type": "event_callback", "event_id": secrets.token_hex(8), "event": {"type": "message", **message}}
        for _ in range(deliveries):
            await self.deliver("/events", json.dumps(event).encode())
        return str(message["ts"])

    async def press(self, user: str, message: dict[str, Any], action_id: str) -> None:
        action = next(one for one in message["actions"] if one["action_id"] == action_id)
        told = {"type": "block_actions", "user": {"id": user}, "channel": {"id": "C1"}, "actions": [action]}
        await self.deliver("/interactions", urlencode({"payload": json.dumps(told)}).encode())

    async def deliver(self, path: str, body: bytes) -> None:
        async with httpx2.AsyncClient(base_url=self.bot_url, trust_env=False) as http:
            answer = await http.post(path, content=body, headers=signed(self.secret, body, now=time.time()))
            answer.raise_for_status()

    # --- what bots do -------------------------------------------------------------------------------------------

    def posted(self, message: dict[str, Any]) -> dict[str, Any]:
        message["ts"] = f"{int(time.time())}.{next(self._numbers):06}"
        self.messages.append(message)
        return message

    def thread(self, ts: str) -> list[dict[str, Any]]:
        return [one for one in self.messages if ts in (one["ts"], one["thread_ts"])]

    def make_app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/api/{method}")
        async def call(
            method: str, given: dict[str, Any], authorization: Annotated[str, Header()] = ""
        ) -> dict[str, Any]:
            if not secrets.compare_digest(authorization, f"Bearer {self.token}"):
                return {"ok": False, "error": "not_authed"}
            if method == "chat.postMessage":
                return {"ok": True, "ts": self.posted({"user": "bot", "thread_ts": None, **given})["ts"]}
            if method == "chat.postEphemeral":
                self.whispers.append(given)
                return {"ok": True}
            found = [one for one in self.messages if one["ts"] == given.get("ts")]
            if method == "chat.update" and found:
                found[0].update(given)
                return {"ok": True}
            return {"ok": False, "error": "message_not_found" if method == "chat.update" else "unknown_method"}

        return app
