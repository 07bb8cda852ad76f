"""The approval bot, between a runtime and a chat service that talk HTTP."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from processes import printed

from ports import free_port

httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("fastapi")


@pytest.fixture
def made(example: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    demo, signing = example("approval_bot/demo.py"), example("approval_bot/signatures.py")
    return SimpleNamespace(demo=demo, signing=signing, store=f"sqlite:///{tmp_path / 'bot.db'}")


def texts(chat: Any, thread: str) -> list[str]:
    return [message["text"] for message in chat.thread(thread)]


async def test_the_demonstration_releases_once(tmp_path: Path) -> None:
    shown = await printed("approval_bot/demo.py", cwd=tmp_path)
    assert "Model: fixed rules" in shown
    assert "You may not decide about this." in shown
    assert shown.count("approved by ann") == 1
    assert shown.count("shop 1.4.2 is live.") == 1
    assert "was approved by 'ann' already" in shown


async def test_each_thread_is_a_conversation_of_its_own_and_a_rejection_is_told_there(made: Any) -> None:
    async with made.demo.chatting() as (chat, url), made.demo.bot_at(made.store, chat, url):
        one = await chat.say("bo", "release shop 1.0")
        other = await chat.say("bo", "what can you do?")
        await chat.press("ann", await made.demo.card_in(chat, one), "reject")
        await made.demo.until(lambda: len(chat.thread(one)) == 3 and len(chat.thread(other)) == 2)
        await chat.say("bo", "release shop 2.0", thread=one)
        again = await made.demo.card_in(chat, one)
        assert "2.0" in again["text"]
        assert "rejected by ann" in texts(chat, one)[1]
        assert texts(chat, other)[1].startswith("Tell me what to release")


async def test_a_restarted_bot_asks_nothing_twice(made: Any) -> None:
    async with made.demo.chatting() as (chat, url):
        async with made.demo.bot_at(made.store, chat, url):
            thread = await chat.say("bo", "release shop 1.0")
            card = await made.demo.card_in(chat, thread)
        for _ in range(2):
            async with made.demo.bot_at(made.store, chat, url):
                pass
        async with made.demo.bot_at(made.store, chat, url):
            await chat.press("ann", card, "approve")
            await made.demo.until(lambda: texts(chat, thread)[-1] == "shop 1.0 is live.")
        assert len(chat.thread(thread)) == 3


async def test_what_could_not_be_posted_is_posted_when_the_chat_is_back(
    made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chat, port = made.demo.ChatService(), free_port()
    async with made.demo.bot_at(made.store, chat, f"http://127.0.0.1:{port}"):
        thread = await chat.say("bo", "release shop 1.0")
        await made.demo.until(lambda: "does not answer" in capsys.readouterr().out)
        async with made.demo.serving(chat.make_app(), port=port):
            assert "release(service=shop" in (await made.demo.card_in(chat, thread))["text"]


async def test_forged_and_recorded_requests_are_refused(made: Any) -> None:
    async with made.demo.chatting() as (chat, url), made.demo.bot_at(made.store, chat, url):
        body = json.dumps(
            {"event_id": "e1", "event": {"channel": "C1", "ts": "1", "text": "release shop 6.6"}}
        ).encode()
        now, sign = time.time(), made.signing.signed
        recorded = sign(chat.secret, body, now=now - 1000)
        refused = [
            {},
            sign("another secret", body, now=now),
            recorded,
            {**recorded, "X-Chat-Request-Timestamp": str(int(now))},
            {**sign(chat.secret, body, now=now), "X-Chat-Signature": "v0=ö".encode()},
        ]
        async with httpx2.AsyncClient(base_url=chat.bot_url, trust_env=False) as http:
            for headers in refused:
                assert (await http.post("/events", content=body, headers=headers)).status_code == 401
            other = body.replace(b"6.6", b"6.7")
            assert (
                await http.post("/events", content=other, headers=sign(chat.secret, body, now=now))
            ).status_code == 401
            assert (
                await http.post("/events", content=body, headers=sign(chat.secret, body, now=now))
            ).status_code == 200
        await made.demo.until(lambda: chat.messages)
        assert "6.6" in chat.messages[0]["text"]


async def test_the_chat_refuses_a_bot_with_another_token(made: Any) -> None:
    async with made.demo.chatting() as (chat, url), httpx2.AsyncClient(base_url=url, trust_env=False) as http:
        told = await http.post("/api/chat.postMessage", json={"channel": "C1", "text": "hello"})
        assert told.json() == {"ok": False, "error": "not_authed"}
        assert chat.messages == []
