"""Tokens, counted as providers count them: four letters of text, 100 ms heard, 50 ms said."""

from collections.abc import Iterable
from typing import Any

from standfast.realtime.local.conversation import ConversationEntry


def count_text_tokens(text: str) -> int:
    return -(-len(text) // 4)


def count_output_audio_tokens(audio_ms: int) -> int:
    return -(-audio_ms // 50)


def count_input_audio_tokens(audio_ms: int) -> int:
    return -(-audio_ms // 100)


def build_usage(
    context: Iterable[ConversationEntry], output: Iterable[ConversationEntry], instructions: str
) -> dict[str, Any]:
    """What a response consumed, as ``response.done`` reports it."""
    text_in, audio_in = count_text_tokens(instructions), 0
    for entry in context:
        text_in += _count_entry_text_tokens(entry)
        count = count_output_audio_tokens if entry.item.get("role") == "assistant" else count_input_audio_tokens
        audio_in += count(entry.audio_ms)
    spoken = list(output)
    text_out = sum(map(_count_entry_text_tokens, spoken))
    audio_out = sum(count_output_audio_tokens(entry.audio_ms) for entry in spoken)
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


def _count_entry_text_tokens(entry: ConversationEntry) -> int:
    parts = (entry.item.get("arguments"), entry.item.get("output"))
    return count_text_tokens(entry.text) + sum(count_text_tokens(part) for part in parts if isinstance(part, str))
