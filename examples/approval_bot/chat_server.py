"""A minimal chat service, so that the bot runs offline: channels, threads, buttons and signed webhooks.

Its methods, webhooks and signatures follow those of Slack as far as the bot uses them.
"""

import itertools
import json
import secrets
import time
from typing import Annotated, Any
from urllib.parse import urlencode

import httpx2
from fastapi import FastAPI, Header
from signatures import make_headers


class ChatService:
    """The messages, the secrets shared with the bot, and the actions of users."""

    def __init__(self) -> None:
        self.token, self.secret = secrets.token_hex(16), secrets.token_hex(16)
        self.messages: list[dict[str, Any]] = []
        self.ephemeral_messages: list[dict[str, Any]] = []
        self.bot_url = ""
        self._numbers = itertools.count(1)

    # --- actions of users ----------------------------------------------------------------------------------------

    async def send_message(self, user: str, text: str, *, thread: str | None = None, deliveries: int = 1) -> str:
        """Post to the channel or to a thread. As with all webhooks, the bot may receive it more than once."""
        message = self.add_message({"channel": "C1", "user": user, "text": text, "thread_ts": thread})
        event = {"type": "event_callback", "event_id": secrets.token_hex(8), "event": {"type": "message", **message}}
        for _ in range(deliveries):
            await self.deliver("/events", json.dumps(event).encode())
        return str(message["ts"])

    async def press_button(self, user: str, message: dict[str, Any], action_id: str) -> None:
        action = next(action for action in message["actions"] if action["action_id"] == action_id)
        payload = {"type": "block_actions", "user": {"id": user}, "channel": {"id": "C1"}, "actions": [action]}
        await self.deliver("/interactions", urlencode({"payload": json.dumps(payload)}).encode())

    async def deliver(self, path: str, body: bytes) -> None:
        async with httpx2.AsyncClient(base_url=self.bot_url, trust_env=False) as http:
            response = await http.post(path, content=body, headers=make_headers(self.secret, body, now=time.time()))
            response.raise_for_status()

    # --- actions of bots ------------------------------------------------------------------------------------------

    def add_message(self, message: dict[str, Any]) -> dict[str, Any]:
        message["ts"] = f"{int(time.time())}.{next(self._numbers):06}"
        self.messages.append(message)
        return message

    def thread(self, ts: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if ts in (message["ts"], message["thread_ts"])]

    def make_app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/api/{method}")
        async def call(
            method: str, arguments: dict[str, Any], authorization: Annotated[str, Header()] = ""
        ) -> dict[str, Any]:
            if not secrets.compare_digest(authorization, f"Bearer {self.token}"):
                return {"ok": False, "error": "not_authed"}
            if method == "chat.postMessage":
                return {"ok": True, "ts": self.add_message({"user": "bot", "thread_ts": None, **arguments})["ts"]}
            if method == "chat.postEphemeral":
                self.ephemeral_messages.append(arguments)
                return {"ok": True}
            matching = [message for message in self.messages if message["ts"] == arguments.get("ts")]
            if method == "chat.update" and matching:
                matching[0].update(arguments)
                return {"ok": True}
            return {"ok": False, "error": "message_not_found" if method == "chat.update" else "unknown_method"}

        return app
