"""The approval bot with a runtime and a chat service over HTTP."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from example_processes import run_example

from ports import free_port
from standfast import Approval

httpx2 = pytest.importorskip("httpx2")
pytest.importorskip("fastapi")


@pytest.fixture
def made(example: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    demo, signatures = example("approval_bot/demo.py"), example("approval_bot/signatures.py")
    return SimpleNamespace(demo=demo, signatures=signatures, store=f"sqlite:///{tmp_path / 'bot.db'}")


def texts(chat: Any, thread: str) -> list[str]:
    return [message["text"] for message in chat.thread(thread)]


async def test_the_demo_releases_once(tmp_path: Path) -> None:
    output = await run_example("approval_bot/demo.py", cwd=tmp_path)
    assert "Model: fixed rules" in output
    assert "You are not allowed to decide this." in output
    assert output.count("approved by ann") == 1
    assert output.count("shop 1.4.2 is live.") == 1
    assert "is already approved (by 'ann')" in output


async def test_each_thread_is_a_session_and_shows_its_rejections(made: Any) -> None:
    async with made.demo.start_chat() as (chat, url), made.demo.start_bot(made.store, chat, url):
        one = await chat.send_message("bo", "release shop 1.0")
        other = await chat.send_message("bo", "what can you do?")
        await chat.press_button("ann", await made.demo.wait_for_card(chat, one), "reject")
        await made.demo.wait_until(lambda: len(chat.thread(one)) == 3 and len(chat.thread(other)) == 2)
        await chat.send_message("bo", "release shop 2.0", thread=one)
        again = await made.demo.wait_for_card(chat, one)
        assert "2.0" in again["text"]
        assert "rejected by ann" in texts(chat, one)[1]
        assert texts(chat, other)[1].startswith("Tell me what to release")


async def test_a_restarted_bot_asks_no_question_twice(made: Any) -> None:
    async with made.demo.start_chat() as (chat, url):
        async with made.demo.start_bot(made.store, chat, url):
            thread = await chat.send_message("bo", "release shop 1.0")
            card = await made.demo.wait_for_card(chat, thread)
        for _ in range(2):
            async with made.demo.start_bot(made.store, chat, url):
                pass
        async with made.demo.start_bot(made.store, chat, url):
            await chat.press_button("ann", card, "approve")
            await made.demo.wait_until(lambda: texts(chat, thread)[-1] == "shop 1.0 is live.")
        assert len(chat.thread(thread)) == 3


async def test_messages_are_posted_once_the_chat_is_reachable_again(
    made: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chat, port = made.demo.ChatService(), free_port()
    async with made.demo.start_bot(made.store, chat, f"http://127.0.0.1:{port}"):
        thread = await chat.send_message("bo", "release shop 1.0")
        await made.demo.wait_until(lambda: "does not answer" in capsys.readouterr().out)
        async with made.demo.serve_app(chat.make_app(), port=port):
            assert 'release({"service":"shop"' in (await made.demo.wait_for_card(chat, thread))["text"]


async def test_forged_and_replayed_requests_are_rejected(made: Any) -> None:
    async with made.demo.start_chat() as (chat, url), made.demo.start_bot(made.store, chat, url):
        body = json.dumps(
            {"event_id": "e1", "event": {"channel": "C1", "ts": "1", "text": "release shop 6.6"}}
        ).encode()
        now, sign = time.time(), made.signatures.make_headers
        recorded = sign(chat.secret, body, now=now - 1000)
        refused = [
            {},
            sign("another secret", body, now=now),
            recorded,
            {**recorded, "X-Chat-Request-Timestamp": str(int(now))},
            {**sign(chat.secret, body, now=now), "X-Chat-Signature": "v0=ö".encode()},
        ]
        async with httpx2.AsyncClient(base_url=chat.bot_url, trust_env=False, verify=False) as http:
            for headers in refused:
                assert (await http.post("/events", content=body, headers=headers)).status_code == 401
            other = body.replace(b"6.6", b"6.7")
            assert (
                await http.post("/events", content=other, headers=sign(chat.secret, body, now=now))
            ).status_code == 401
            assert (
                await http.post("/events", content=body, headers=sign(chat.secret, body, now=now))
            ).status_code == 200
        await made.demo.wait_until(lambda: chat.messages)
        assert "6.6" in chat.messages[0]["text"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"service": "\u202eshop", "version": "1"}', r'release({"service":"\u202eshop","version":"1"})'),
        ("no \x1b[2J JSON", r'release(not JSON: "no \u001b[2J JSON")'),
    ],
)
def test_a_card_shows_the_arguments_as_they_are(example: Any, arguments: str, shown: str) -> None:
    approval = Approval(
        id="approval_1", kind="approval", status="pending", run_id="run_x", session_id=None, agent="releases",
        tool="release", call_id="c", arguments=arguments, digest="", requested_at=0.0,
    )  # fmt: skip
    assert example("approval_bot/bot.py").card(approval)["text"] == f"Approve this call? {shown}"


async def test_the_chat_rejects_a_bot_with_a_wrong_token(made: Any) -> None:
    async with (
        made.demo.start_chat() as (chat, url),
        httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as http,
    ):
        response = await http.post("/api/chat.postMessage", json={"channel": "C1", "text": "hello"})
        assert response.json() == {"ok": False, "error": "not_authed"}
        assert chat.messages == []
