"""An approval bot in a chat, offline: the chat service is the small one next to this file.

    pip install '.[examples]'
    python examples/approval_bot/demo.py

Bo asks the bot to release something. The bot asks in the thread, with buttons. Bo may not decide; Ann does, after the
bot was restarted in the meantime. All requests are real HTTP with signatures; the agent follows fixed rules.
"""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from bot import make_bot
from chat_server import ChatService
from fastapi import FastAPI

ANN, BO = "ann", "bo"


@asynccontextmanager
async def serving(app: FastAPI, *, port: int = 0) -> AsyncIterator[str]:
    """The app on this machine, at a free port unless one is given, while the block lasts."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        running = asyncio.create_task(server.serve([listener]))
        try:
            await until(lambda: server.started or running.done())
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


@asynccontextmanager
async def chatting() -> AsyncIterator[tuple[ChatService, str]]:
    chat = ChatService()
    async with serving(chat.make_app()) as url:
        yield chat, url


@asynccontextmanager
async def bot_at(store: str, chat: ChatService, chat_url: str) -> AsyncIterator[None]:
    bot = make_bot(store, chat_url=chat_url, token=chat.token, secret=chat.secret, approvers=frozenset({ANN}))
    async with serving(bot) as chat.bot_url:
        yield


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.02)


async def card_in(chat: ChatService, thread: str) -> dict[str, Any]:
    """The question with buttons, once the bot has posted it."""
    await until(lambda: any(one.get("actions") for one in chat.thread(thread)))
    return dict(next(one for one in chat.thread(thread) if one.get("actions")))


def show(chat: ChatService, thread: str) -> None:
    for message in chat.thread(thread):
        indent = "  " if message["thread_ts"] else ""
        buttons = "".join(f"  [{action['text']}]" for action in message.get("actions", ()))
        print(f"   {indent}{message['user']:>3}  {message['text']}{buttons}")


async def main() -> None:
    print("Model: fixed rules, no key needed. The chat service and the bot talk HTTP on this machine.\n")
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'bot.db'}"
        async with chatting() as (chat, url):
            async with bot_at(store, chat, url):
                thread = await chat.say(BO, "please release shop 1.4.2", deliveries=2)
                card = await card_in(chat, thread)
                print("Bo's message was delivered twice; the bot took it once and asks:")
                show(chat, thread)
                await chat.press(BO, card, "approve")
                print(f"\nBo presses Approve and is told: {chat.whispers[-1]['text']}")
            print("The bot is stopped and started again. Ann presses Approve:")
            async with bot_at(store, chat, url):
                await chat.press(ANN, card, "approve")
                await until(lambda: "live" in chat.thread(thread)[-1]["text"])
                show(chat, thread)
                await chat.press(ANN, card, "reject")
                print(f"\nAnn changes her mind, too late: {chat.whispers[-1]['text']}")


if __name__ == "__main__":
    asyncio.run(main())
