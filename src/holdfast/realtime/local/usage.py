"""Tokens, counted as providers count them: four letters of text, 100 ms heard, 50 ms said."""

from collections.abc import Iterable
from typing import Any

from holdfast.realtime.local.conversation import Entry


def tokens_of_text(text: str) -> int:
    return -(-len(text) // 4)


def tokens_said(audio_ms: int) -> int:
    return -(-audio_ms // 50)


def tokens_heard(audio_ms: int) -> int:
    return -(-audio_ms // 100)


def usage_of(context: Iterable[Entry], output: Iterable[Entry], instructions: str) -> dict[str, Any]:
    """What a response consumed, as ``response.done`` reports it."""
    text_in, audio_in = tokens_of_text(instructions), 0
    for entry in context:
        text_in += _text_tokens(entry)
        count = tokens_said if entry.item.get("role") == "assistant" else tokens_heard
        audio_in += count(entry.audio_ms)
    spoken = list(output)
    text_out = sum(map(_text_tokens, spoken))
    audio_out = sum(tokens_said(entry.audio_ms) for entry in spoken)
    cached = {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0}
    return {
        "total_tokens": text_in + audio_in + text_out + audio_out,
        "input_tokens": text_in + audio_in,
        "output_tokens": text_out + audio_out,
        "input_token_details": {
            "text_tokens": text_in,
            "audio_tokens": audio_in,
            "image_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": cached,
        },
        "output_token_details": {"text_tokens": text_out, "audio_tokens": audio_out},
    }


def _text_tokens(entry: Entry) -> int:
    parts = (entry.item.get("arguments"), entry.item.get("output"))
    return tokens_of_text(entry.text) + sum(tokens_of_text(part) for part in parts if isinstance(part, str))
