"""Validation of the arguments and the configuration of a realtime session."""

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
    "reconnect": ("attempts", "initial_delay", "max_delay", "roll_over_after"),
    "guardrails_settings": ("debounce_text_length", "timeout"),
    "tool_execution": ("approval_timeout",),
}
_MESSAGE_FORMAT_HELP = (
    "a message must be a string or "
    "{'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': '...'}]}"
)


def check_message(message: Any) -> None:
    """Raise :class:`UserError` unless it is a string or a message in parts, of a size that servers accept."""
    parts = [{"text": message}] if isinstance(message, str) else None
    if isinstance(message, Mapping):
        parts = message.get("content")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise UserError(f"{_MESSAGE_FORMAT_HELP}, got {message!r}"[:400])
    length = sum(count_bytes(value) for part in parts for value in part.values() if isinstance(value, str))
    if length > MAX_TEXT_BYTES:
        raise UserError(f"the message has {length:,} bytes; a realtime model takes at most {MAX_TEXT_BYTES:,}")


def check_audio(audio: Any) -> None:
    if not isinstance(audio, bytes | bytearray | memoryview):
        raise UserError(f"audio must be raw bytes, got {type(audio).__name__}; do not encode it as base64")


def check_model_and_session(model: Any, session: Any) -> None:
    """Raise :class:`UserError` unless these are a realtime model and, if given, a history session."""
    if not hasattr(model, "add_listener"):
        raise UserError(
            f"a realtime session needs a RealtimeModel, got {model!r}; "
            "set the name of a model in the config: {'model_settings': {'model_name': '...'}}"
        )
    if session is not None and not hasattr(session, "add_items"):
        raise UserError(
            f"session must be a history session such as SQLiteSession('caller-7', 'calls.db'), got {session!r}"
        )


def check_numbers(config: RealtimeRunConfig) -> None:
    """Raise :class:`UserError` for values that must be numbers and are not, before the session opens."""
    for section, keys in _NUMERIC_KEYS.items():
        for key, value in cast("Mapping[str, Any]", config.get(section, {})).items():
            if key in keys and value is not None and (not isinstance(value, int | float) or isnan(value)):
                raise UserError(f"{section}: {key!r} must be a number, got {value!r}")


def warn_unknown_keys(config: RealtimeRunConfig, model_config: RealtimeModelConfig) -> None:
    """Log a warning for unknown keys, which are ignored.

    A model may have settings of its own, so unknown model settings are logged only if they look like a typo.
    """
    _warn_unknown("config", config, RealtimeRunConfig)
    _warn_unknown("guardrails_settings", config.get("guardrails_settings"), RealtimeGuardrailsSettings)
    _warn_unknown("tool_execution", config.get("tool_execution"), RealtimeToolExecutionConfig)
    _warn_unknown("reconnect", config.get("reconnect"), RealtimeReconnectConfig)
    _warn_unknown("model config", model_config, RealtimeModelConfig, only_typos=True)
    for settings in (config.get("model_settings"), model_config.get("initial_model_settings")):
        _warn_unknown("model settings", settings, RealtimeSessionModelSettings, only_typos=True)


def _warn_unknown(where: str, config: Mapping[str, Any] | None, schema: Any, *, only_typos: bool = False) -> None:
    known = schema.__required_keys__ | schema.__optional_keys__
    for key in [key for key in config or () if key not in known]:
        near = get_close_matches(key, known, 1)
        if near or not only_typos:
            log.warning("%s: unknown key %r is ignored%s", where, key, f"; did you mean {near[0]!r}?" if near else "")
