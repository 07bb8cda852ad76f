"""What a program may get wrong before anything is said: refused, or told, where it happens."""

from collections.abc import Mapping
from difflib import get_close_matches
from math import isnan
from typing import Any, cast

from standfast.agents.errors import UserError
from standfast.realtime._session.item_conversion import MAX_TEXT_BYTES, count_bytes
from standfast.realtime.audio import log
from standfast.realtime.config import (
    RealtimeGuardrailsSettings,
    RealtimeReconnectConfig,
    RealtimeRunConfig,
    RealtimeSessionModelSettings,
    RealtimeToolExecutionConfig,
)
from standfast.realtime.model import RealtimeModelConfig

_NUMERIC_KEYS = {
    "reconnect": ("attempts", "first_delay", "longest_delay", "roll_over_after"),
    "guardrails_settings": ("debounce_text_length", "timeout"),
    "tool_execution": ("approval_timeout",),
}
_MESSAGE_FORMAT_HELP = (
    "a message is a text or {'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': '...'}]}"
)


def check_message(message: Any) -> None:
    """Raises unless it is a text, or a message in parts, that a server can be told."""
    parts = [{"text": message}] if isinstance(message, str) else None
    if isinstance(message, Mapping):
        parts = message.get("content")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise UserError(f"{_MESSAGE_FORMAT_HELP}, not {message!r}"[:400])
    length = sum(count_bytes(value) for part in parts for value in part.values() if isinstance(value, str))
    if length > MAX_TEXT_BYTES:
        raise UserError(
            f"a realtime model cannot be told a message of {length:,} bytes; {MAX_TEXT_BYTES:,} are the most"
        )


def check_audio(audio: Any) -> None:
    if not isinstance(audio, bytes | bytearray | memoryview):
        raise UserError(f"audio is bytes as they were recorded, not {type(audio).__name__}; base64 is not needed")


def check_model_and_session(model: Any, session: Any) -> None:
    """Raises unless these are a realtime model, and a history if there is one."""
    if not hasattr(model, "add_listener"):
        raise UserError(
            f"a realtime session needs a RealtimeModel, not {model!r}; "
            "the name of one goes into the settings: {'model_settings': {'model_name': '...'}}"
        )
    if session is not None and not hasattr(session, "add_items"):
        raise UserError(f"session must be a history, such as SQLiteSession('caller-7', 'calls.db'), not {session!r}")


def check_numbers(config: RealtimeRunConfig) -> None:
    """Raises where a number is something else: that would be found out in the middle of a call, if at all."""
    for section, keys in _NUMERIC_KEYS.items():
        for key, value in cast("Mapping[str, Any]", config.get(section, {})).items():
            if key in keys and value is not None and (not isinstance(value, int | float) or isnan(value)):
                raise UserError(f"{section}: {key!r} is a number, not {value!r}")


def warn_unknown_keys(config: RealtimeRunConfig, model_config: RealtimeModelConfig) -> None:
    """Log the keys that nobody reads: what they were to switch on stays off.

    A model may have settings of its own, so of those only the ones that look like a slip are told.
    """
    _warn_unknown("the config", config, RealtimeRunConfig)
    _warn_unknown("guardrails_settings", config.get("guardrails_settings"), RealtimeGuardrailsSettings)
    _warn_unknown("tool_execution", config.get("tool_execution"), RealtimeToolExecutionConfig)
    _warn_unknown("reconnect", config.get("reconnect"), RealtimeReconnectConfig)
    _warn_unknown("the model config", model_config, RealtimeModelConfig, only_typos=True)
    for settings in (config.get("model_settings"), model_config.get("initial_model_settings")):
        _warn_unknown("the model settings", settings, RealtimeSessionModelSettings, only_typos=True)


def _warn_unknown(where: str, config: Mapping[str, Any] | None, schema: Any, *, only_typos: bool = False) -> None:
    known = schema.__required_keys__ | schema.__optional_keys__
    for key in [key for key in config or () if key not in known]:
        near = get_close_matches(key, known, 1)
        if near or not only_typos:
            log.warning(
                "%s: the key %r is unknown and ignored%s", where, key, f"; did you mean {near[0]!r}?" if near else ""
            )
