"""Tool outputs as items, and the arguments of calls."""

import dataclasses
import math
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from standfast import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from standfast.tool_calls.output import format_output, make_output_item, to_plain_value

URL = "data:image/png;base64,AA=="


class Price(BaseModel):
    amount: float


@dataclasses.dataclass
class Box:
    width: int
    tags: set[str]


def test_an_output_becomes_an_item_of_its_call() -> None:
    assert make_output_item("call_1", 42) == {"type": "function_call_output", "call_id": "call_1", "output": "42"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("text", "text"),
        ("cut \ud83d", "cut �"),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        ([], "[]"),
        (ToolOutputText(text="a"), [{"type": "input_text", "text": "a"}]),
        (ToolOutputImage(image_url=URL), [{"type": "input_image", "image_url": URL}]),
        (ToolOutputFileContent(file_id="f"), [{"type": "input_file", "file_id": "f"}]),
        (
            [{"type": "text", "text": "a"}, {"type": "image", "file_id": "f", "detail": None}],
            [{"type": "input_text", "text": "a"}, {"type": "input_image", "file_id": "f"}],
        ),
    ],
)
def test_outputs_are_text_or_a_list_of_parts(output: Any, expected: Any) -> None:
    assert format_output(output) == expected


@pytest.mark.parametrize("output", [{"type": "image"}, {"type": "text", "text": 3}, [{"type": "text", "text": "a"}, 1]])
def test_a_value_that_is_not_a_part_becomes_text(output: Any) -> None:
    assert format_output(output) == str(output)


def test_an_output_type_is_dumped_as_json() -> None:
    assert format_output(Price(amount=1.5), adapter=TypeAdapter(Price)) == '{"amount":1.5}'


def test_values_are_converted_to_json_values() -> None:
    value = {1: (True, None, 2), "price": Price(amount=1), "box": Box(2, {"a"}), "huge": math.inf, "other": 1j}
    assert to_plain_value(value) == {
        "1": [True, None, 2],
        "price": {"amount": 1.0},
        "box": {"width": 2, "tags": ["a"]},
        "huge": "inf",
        "other": "1j",
    }


@pytest.mark.parametrize(
    ("value", "adapter", "text"),
    [
        ("a\ud800", None, "a�"),
        ({"a": "\ud800"}, TypeAdapter(dict[str, str]), '{"a":"�"}'),
        (["\udfff", "ß"], TypeAdapter(list[str]), '["�","ß"]'),
    ],
)
def test_lone_surrogates_are_replaced(value: Any, adapter: Any, text: str) -> None:
    assert format_output(value, adapter=adapter) == text
