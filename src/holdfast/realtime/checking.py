"""What a program may get wrong before anything is said: refused, or told, where it happens."""

from collections.abc import Mapping
from difflib import get_close_matches
from math import isnan
from typing import Any, cast

from holdfast.agents.errors import UserError
from holdfast.realtime.audio import log
from holdfast.realtime.config import (
    RealtimeGuardrailsSettings,
    RealtimeReconnectConfig,
    RealtimeRunConfig,
    RealtimeSessionModelSettings,
    RealtimeToolExecutionConfig,
)
from holdfast.realtime.model import RealtimeModelConfig
from holdfast.realtime.wire_items import LONGEST, size

_NUMBERS = {
    "reconnect": ("attempts", "first_delay", "longest_delay", "roll_over_after"),
    "guardrails_settings": ("debounce_text_length", "timeout"),
    "tool_execution": ("approval_timeout",),
}
_MESSAGE = (
    "a message is a text or {'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': '...'}]}"
)


def check_message(message: Any) -> None:
    """Raises unless it is a text, or a message in parts, that a server can be told."""
    parts = [{"text": message}] if isinstance(message, str) else None
    if isinstance(message, Mapping):
        parts = message.get("content")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise UserError(f"{_MESSAGE}, not {message!r}"[:400])
    length = sum(size(value) for part in parts for value in part.values() if isinstance(value, str))
    if length > LONGEST:
        raise UserError(f"a realtime model cannot be told a message of {length:,} bytes; {LONGEST:,} are the most")


def check_audio(audio: Any) -> None:
    if not isinstance(audio, bytes | bytearray | memoryview):
        raise UserError(f"audio is bytes as they were recorded, not {type(audio).__name__}; base64 is not needed")


def check_parts(model: Any, history: Any) -> None:
    """Raises unless these are a realtime model, and a history if there is one."""
    if not hasattr(model, "add_listener"):
        raise UserError(
            f"a realtime session needs a RealtimeModel, not {model!r}; "
            "the name of one goes into the settings: {'model_settings': {'model_name': '...'}}"
        )
    if history is not None and not hasattr(history, "add_items"):
        raise UserError(f"session must be a history, such as SQLiteSession('caller-7', 'calls.db'), not {history!r}")


def check_numbers(config: RealtimeRunConfig) -> None:
    """Raises where a number is something else: that would be found out in the middle of a call, if at all."""
    for section, keys in _NUMBERS.items():
        for key, value in cast("Mapping[str, Any]", config.get(section, {})).items():
            if key in keys and value is not None and (not isinstance(value, int | float) or isnan(value)):
                raise UserError(f"{section}: {key!r} is a number, not {value!r}")


def tell_unknown_keys(config: RealtimeRunConfig, model_config: RealtimeModelConfig) -> None:
    """Log the keys that nobody reads: what they were to switch on stays off.

    A model may have settings of its own, so of those only the ones that look like a slip are told.
    """
    _tell("the config", config, RealtimeRunConfig)
    _tell("guardrails_settings", config.get("guardrails_settings"), RealtimeGuardrailsSettings)
    _tell("tool_execution", config.get("tool_execution"), RealtimeToolExecutionConfig)
    _tell("reconnect", config.get("reconnect"), RealtimeReconnectConfig)
    _tell("the model config", model_config, RealtimeModelConfig, slips=True)
    for settings in (config.get("model_settings"), model_config.get("initial_model_settings")):
        _tell("the model settings", settings, RealtimeSessionModelSettings, slips=True)


def _tell(where: str, given: Mapping[str, Any] | None, kind: Any, *, slips: bool = False) -> None:
    known = kind.__required_keys__ | kind.__optional_keys__
    for key in [key for key in given or () if key not in known]:
        near = get_close_matches(key, known, 1)
        if near or not slips:
            log.warning(
                "%s: the key %r is unknown and ignored%s", where, key, f"; did you mean {near[0]!r}?" if near else ""
            )
