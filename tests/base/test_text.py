"""The text of items: repair, extraction and search terms."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings

from factories.base import json_values, texts
from standfast.base.text import (
    extract_text,
    extract_words,
    format_arguments,
    make_visible,
    matches_terms,
    sanitize_json,
    sanitize_text,
)

few_examples = settings(derandomize=True, deadline=None, max_examples=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tea", "tea"), ("a\ud800b", "a\ufffdb"), ("\ud83c\udf75", "\U0001f375"), ("\udf75\ud83c", "\ufffd\ufffd")],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, expected: str) -> None:
    assert sanitize_text(text) == expected
    assert sanitize_json({text: [text, 1, None, (text,)]}) == {expected: [expected, 1, None, [expected]]}


def test_the_text_of_an_item_contains_messages_and_arguments() -> None:
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


@few_examples
@given(json_values)
def test_every_item_has_a_text(value: Any) -> None:
    assert isinstance(extract_text({"content": value}), str)


@few_examples
@given(texts)
def test_words_are_distinct_and_case_folded(text: str) -> None:
    words = extract_words(text)
    assert len(words) == len(set(words))
    assert all(word and len(word) <= 64 for word in words)
    assert matches_terms(text, words)


def test_the_number_of_words_is_bounded() -> None:
    words = extract_words(" ".join(f"word{n}" for n in range(100_000)))
    assert sum(len(word.encode()) for word in words) <= 400_000


@pytest.mark.parametrize(
    ("text", "terms", "expected"),
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
def test_every_term_must_be_a_prefix_of_a_word(text: str, terms: list[str], expected: bool) -> None:
    assert matches_terms(text, terms) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Grüße, 你好 ❤️", "Grüße, 你好 ❤️"),
        ("\x1b[2J\x07\x7f\x9b", r"\u001b[2J\u0007\u007f\u009b"),
        ("\u202eevil\u2066\u200b\u200d\ufeff\u2028", r"\u202eevil\u2066\u200b\u200d\ufeff\u2028"),
        ("\U000e0041 \ud800", r"\udb40\udc41 \ud800"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
    ],
)
def test_what_cannot_be_seen_is_escaped(text: str, expected: str) -> None:
    assert make_visible(text) == expected
    assert make_visible(expected) == expected


def test_text_of_several_lines_keeps_its_lines() -> None:
    assert make_visible("a\r\n\tb\n\rc\x0b", multiline=True) == "a\n\tb\n\\rc\\u000b"


@few_examples
@given(json_values)
def test_escaped_json_has_the_same_value(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(make_visible(text)) == value


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a":1,\r\n "b" : "\u202ex"}', r'{"a":1,"b":"\u202ex"}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ("", ""),
        ('\x1b[2J"', r'not JSON: "\u001b[2J\""'),
        ("[" * 100_000, 'not JSON: "' + "[" * 100_000 + '"'),
    ],
)
def test_arguments_are_shown_as_the_value_that_they_have(arguments: str, shown: str) -> None:
    assert format_arguments(arguments) == shown


def test_no_control_of_unicode_is_shown_as_it_is():
    """Except for signs that Unicode counts among the format characters but that are drawn, as those for numbers."""
    controls = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN", "B", "S"}
    shown = [
        unicodedata.name(char, repr(char))
        for char in map(chr, range(0x110000))
        if (unicodedata.category(char) in controls or unicodedata.bidirectional(char) in directions)
        and make_visible(char) == char
    ]
    drawn = ("NUMBER", "SIGN ", "MARKER", "AYAH", "MARK ABOVE")
    assert [name for name in shown if not any(word in name for word in drawn)] == []
