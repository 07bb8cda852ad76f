"""How items become bytes and text."""

import datetime
import decimal
import enum
import json
import types
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.base.errors import InvalidItem
from standfast.base.items import decode_item, encode_item, encode_items, extract_text, extract_words, matches_terms

often = settings(derandomize=True, deadline=None, max_examples=200)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
items = st.dictionaries(texts, values, max_size=5)


@often
@given(items)
def test_an_item_comes_back_as_it_went_in(item: dict[str, Any]) -> None:
    data = encode_item(item)
    again = decode_item(data)
    assert again == item
    assert list(again) == list(item)
    assert encode_item(again) == data


@often
@given(items)
def test_the_bytes_are_json_to_everybody(item: dict[str, Any]) -> None:
    assert json.loads(encode_item(item)) == item


class Colour(enum.StrEnum):
    RED = "red"


class Count(enum.IntEnum):
    TWO = 2


def test_types_that_json_has_a_word_for_become_that() -> None:
    odd = {"colour": Colour.RED, "count": Count.TWO, "pair": (1, (2**64,)), "more": types.MappingProxyType({"a": 1})}
    expected = {"colour": "red", "count": 2, "pair": [1, [2**64]], "more": {"a": 1}}
    assert decode_item(encode_item(odd)) == expected
    assert decode_item(encode_item(types.MappingProxyType(odd))) == expected


def endless() -> dict[str, Any]:
    item: dict[str, Any] = {}
    item["self"] = item
    return item


def deep(levels: int) -> dict[str, Any]:
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
        (endless(), None),
        (deep(5000), None),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(item: Any, path: str | None) -> None:
    with pytest.raises(InvalidItem) as refused:
        encode_item(item)
    if path is not None:
        assert refused.value.path == path


@pytest.mark.parametrize("batch", ["text", b"bytes", {"role": "user"}, 7, None, iter([]), {1}])
def test_a_batch_is_a_list(batch: Any) -> None:
    with pytest.raises(InvalidItem):
        encode_items(batch)


def test_a_batch_names_the_item_that_spoils_it() -> None:
    with pytest.raises(InvalidItem) as refused:
        encode_items([{"a": 1}, {"b": {"c": float("nan")}}])
    assert refused.value.path == "items[1].b.c"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff\xfe", b'{"a": NaN}', b"{}x", b"\x00"]
)
def test_bytes_without_an_item_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_item(data)


def test_deeply_nested_bytes_are_a_value_error() -> None:
    with pytest.raises(ValueError):
        decode_item(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_the_text_of_an_item_is_what_was_said() -> None:
    item = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "The refund", "annotations": [{"url": "https://x"}]},
            {"type": "refusal", "refusal": "not this"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        ],
    }
    assert extract_text(item) == "The refund\nnot this"
    assert (
        extract_text({"type": "function_call", "call_id": "c", "name": "pay", "arguments": '{"sum": 7}'})
        == 'pay\n{"sum": 7}'
    )
    assert extract_text({"role": "user", "content": "data:image/png;base64,AAAA"}) == ""


@often
@given(values)
def test_every_item_has_a_text(value: Any) -> None:
    assert isinstance(extract_text({"content": value}), str)


@often
@given(texts)
def test_words_are_distinct_and_folded(text: str) -> None:
    found = extract_words(text)
    assert len(found) == len(set(found))
    assert all(word and len(word) <= 64 for word in found)
    assert matches_terms(text, found)


def test_a_huge_text_gives_a_bounded_number_of_words() -> None:
    found = extract_words(" ".join(f"word{n}" for n in range(100_000)))
    assert sum(len(word.encode()) for word in found) <= 400_000


@pytest.mark.parametrize(
    ("text", "terms", "found"),
    [
        ("Alphabet soup", ["alpha"], True),
        ("Alphabet soup", ["alpha", "so"], True),
        ("Alphabet soup", ["alpha", "beta"], False),
        ("Alphabet soup", ["bet"], False),
        ("snake_case", ["case"], True),
        ("STRASSE Straße", ["strasse"], True),
        ("anything", [], True),
    ],
)
def test_every_term_begins_some_word(text: str, terms: list[str], found: bool) -> None:
    assert matches_terms(text, terms) == found
