"""The encoding of items as JSON."""

import datetime
import decimal
import enum
import json
import types
import uuid
from typing import Any

import pytest
from hypothesis import given, settings

from factories.base import json_objects
from standfast.base.errors import InvalidItem
from standfast.base.items import decode_item, encode_item, encode_items


@pytest.mark.parametrize("examples", [25, pytest.param(2000, marks=pytest.mark.soak)])
def test_an_item_is_encoded_as_json_and_decoded_unchanged(examples: int) -> None:
    @settings(derandomize=True, deadline=None, max_examples=examples)
    @given(json_objects)
    def check(item: dict[str, Any]) -> None:
        data = encode_item(item)
        decoded = decode_item(data)
        assert decoded == item
        assert list(decoded) == list(item)
        assert encode_item(decoded) == data
        assert json.loads(data) == item

    check()


class Colour(enum.StrEnum):
    RED = "red"


class Count(enum.IntEnum):
    TWO = 2


def test_subclasses_of_json_types_are_converted() -> None:
    item = {"colour": Colour.RED, "count": Count.TWO, "pair": (1, (2**64,)), "more": types.MappingProxyType({"a": 1})}
    expected = {"colour": "red", "count": 2, "pair": [1, [2**64]], "more": {"a": 1}}
    assert decode_item(encode_item(item)) == expected
    assert decode_item(encode_item(types.MappingProxyType(item))) == expected


def make_recursive_item() -> dict[str, Any]:
    item: dict[str, Any] = {}
    item["self"] = item
    return item


def nest(levels: int) -> dict[str, Any]:
    item: dict[str, Any] = {}
    for _ in range(levels):
        item = {"in": item}
    return item


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ("text", "item"),
        (None, "item"),
        ([], "item"),
        (7, "item"),
        (b"{}", "item"),
        ({"a": float("nan")}, "item.a"),
        ({"a": [1, float("inf")]}, "item.a[1]"),
        ({"a": {"b": float("-inf")}}, "item.a.b"),
        ({1: "a"}, "item"),
        ({"a": {None: 1}}, "item.a"),
        ({"a": {True: 1}}, "item.a"),
        ({"a": b"bytes"}, "item.a"),
        ({"a": {1, 2}}, "item.a"),
        ({"a": object()}, "item.a"),
        ({"a": datetime.datetime(2024, 1, 1)}, "item.a"),
        ({"a": uuid.UUID(int=1)}, "item.a"),
        ({"a": decimal.Decimal("1.5")}, "item.a"),
        ({"a": 10**5000}, "item"),
        ({"a": "\ud800"}, "item.a"),
        ({"\ud800": 1}, "item"),
        ({"a": {"\udfff": 1}}, "item.a"),
        (make_recursive_item(), None),
        (nest(5000), None),
    ],
)
def test_a_value_that_json_cannot_represent_is_rejected_with_its_path(item: Any, path: str | None) -> None:
    with pytest.raises(InvalidItem) as caught:
        encode_item(item)
    if path is not None:
        assert caught.value.path == path


@pytest.mark.parametrize("batch", ["text", b"bytes", {"role": "user"}, 7, None, iter([]), {1}])
def test_a_batch_must_be_a_list(batch: Any) -> None:
    with pytest.raises(InvalidItem):
        encode_items(batch)


def test_the_error_of_a_batch_names_the_invalid_item() -> None:
    with pytest.raises(InvalidItem) as caught:
        encode_items([{"a": 1}, {"b": {"c": float("nan")}}])
    assert caught.value.path == "items[1].b.c"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff\xfe", b'{"a": NaN}', b"{}x", b"\x00"]
)
def test_decoding_anything_but_a_json_object_raises(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_item(data)


def test_decoding_deeply_nested_json_raises() -> None:
    with pytest.raises(ValueError):
        decode_item(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
