"""Messages of pydantic-ai become items."""

from pathlib import Path

import pytest

from standfast.base.errors import InvalidInput
from standfast.history.imports.pydantic_ai import read_pydantic_ai

GOLDEN = Path(__file__).parents[1] / "golden" / "pydantic_ai" / "messages_2.66.0.json"


def make_message(text: str) -> dict[str, object]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], "status": "completed"}


def test_a_conversation_with_tools_retries_and_images_is_read() -> None:
    session = read_pydantic_ai("ann", GOLDEN.read_bytes())
    assert session.items == [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "How is order 7?"},
        make_message("One moment."),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"order": "7"}'},
        {"type": "function_call_output", "call_id": "c1", "output": '{"order": "7", "state": "open"}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": '{"order":"8"}'},
        {"type": "function_call_output", "call_id": "c2", "output": "there is no order 8"},
        make_message("Order 7 is open."),
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": "https://example.invalid/cat.png", "detail": "auto"},
                {"type": "input_image", "image_url": "data:image/png;base64,cG5n", "detail": "auto"},
            ],
        },
        make_message("A cat."),
    ]
    assert session.notes == ("1 parts of the kind 'thinking' are left out",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'[{"role": "user"}]',
        b"[1]",
        b'[{"parts": 5}]',
        b'[{"parts": [1]}]',
        b'[{"parts": [{"part_kind": "text"}]}]',
        b'[{"parts": [{"part_kind": "user-prompt", "content": [5]}]}]',
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="it is not"):
        read_pydantic_ai("ann", data)
