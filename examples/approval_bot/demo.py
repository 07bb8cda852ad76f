"""An approval bot in a chat, offline: the chat service is the small one next to this file.

    pip install '.[examples]'
    python examples/approval_bot/demo.py

Bo asks the bot to release something. The bot requests an approval in the thread, with buttons. Bo is not allowed to
decide; Ann does, after a restart of the bot. All requests are real HTTP with signatures; the agent follows fixed rules.
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
async def serve_app(app: FastAPI, *, port: int = 0) -> AsyncIterator[str]:
    """Serve the app on the loopback interface inside the block, on a free port by default."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve([listener]))
        try:
            await wait_until(lambda: server.started or task.done())
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def start_chat() -> AsyncIterator[tuple[ChatService, str]]:
    chat = ChatService()
    async with serve_app(chat.make_app()) as url:
        yield chat, url


@asynccontextmanager
async def start_bot(store: str, chat: ChatService, chat_url: str) -> AsyncIterator[None]:
    bot = make_bot(store, chat_url=chat_url, token=chat.token, secret=chat.secret, approvers=frozenset({ANN}))
    async with serve_app(bot) as chat.bot_url:
        yield


async def wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def wait_for_card(chat: ChatService, thread: str) -> dict[str, Any]:
    """Return the message with buttons once the bot has posted it."""
    await wait_until(lambda: any(message.get("actions") for message in chat.thread(thread)))
    return dict(next(message for message in chat.thread(thread) if message.get("actions")))


def show(chat: ChatService, thread: str) -> None:
    for message in chat.thread(thread):
        indent = "  " if message["thread_ts"] else ""
        buttons = "".join(f"  [{action['text']}]" for action in message.get("actions", ()))
        print(f"   {indent}{message['user']:>3}  {message['text']}{buttons}")


async def main() -> None:
    print("Model: fixed rules, no key needed. The chat service and the bot talk HTTP on this machine.\n")
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'bot.db'}"
        async with start_chat() as (chat, url):
            async with start_bot(store, chat, url):
                thread = await chat.send_message(BO, "please release shop 1.4.2", deliveries=2)
                card = await wait_for_card(chat, thread)
                print("Bo's message was delivered twice; the bot handled it once and asks:")
                show(chat, thread)
                await chat.press_button(BO, card, "approve")
                print(f"\nBo presses Approve and gets: {chat.ephemeral_messages[-1]['text']}")
            print("The bot is stopped and started again. Ann presses Approve:")
            async with start_bot(store, chat, url):
                await chat.press_button(ANN, card, "approve")
                await wait_until(lambda: "live" in chat.thread(thread)[-1]["text"])
                show(chat, thread)
                await chat.press_button(ANN, card, "reject")
                print(f"\nAnn changes her mind, too late: {chat.ephemeral_messages[-1]['text']}")


if __name__ == "__main__":
    asyncio.run(main())
