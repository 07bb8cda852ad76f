"""The default model, and the settings that a model gets unless the program sets them."""

import os
import re
from typing import Any

from standfast.agents.model_settings import ModelSettings, Reasoning

DEFAULT_MODEL = "gpt-5.6-luna"

_EFFORT_BY_MODEL = {
    "gpt-5": "low",
    "gpt-5.1": "none",
    "gpt-5.2": "none",
    "gpt-5.2-codex": "low",
    "gpt-5.2-pro": "medium",
    "gpt-5.3-codex": "none",
    "gpt-5.4": "none",
    "gpt-5.4-mini": "none",
    "gpt-5.4-nano": "none",
    "gpt-5.4-pro": "medium",
    "gpt-5.5": "none",
    "gpt-5.6": "none",
    "gpt-5.6-luna": "none",
    "gpt-5.6-sol": "none",
    "gpt-5.6-terra": "none",
}
_DATE = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_CHAT_MODEL = re.compile(r"gpt-5(\.\d+)?-chat-latest")


def get_default_model() -> str:
    """Return the name of the model for agents without one: ``OPENAI_DEFAULT_MODEL``, or the built-in default."""
    return os.environ.get("OPENAI_DEFAULT_MODEL") or DEFAULT_MODEL


def gpt_5_reasoning_settings_required(model_name: str) -> bool:
    """Return whether the model is one of the GPT-5 family that reasons."""
    return model_name.startswith("gpt-5") and _CHAT_MODEL.fullmatch(model_name) is None


def is_gpt_5_default() -> bool:
    """Return whether the default model is one of the GPT-5 family that reasons."""
    return gpt_5_reasoning_settings_required(get_default_model())


def get_default_model_settings(model: str | None = None) -> ModelSettings:
    """Return the settings that a model gets unless the program sets them: short answers and little reasoning."""
    name = get_default_model() if model is None else model
    if not gpt_5_reasoning_settings_required(name):
        return ModelSettings()
    effort = _EFFORT_BY_MODEL.get(_DATE.sub("", name))
    return ModelSettings(reasoning=None if effort is None else Reasoning(effort=effort), verbosity="low")


def get_implicit_settings(model: Any) -> ModelSettings:
    """Return the settings of an agent that declares none; ``model`` is a name, a model object or ``None``."""
    return get_default_model_settings(model) if model is None or isinstance(model, str) else ModelSettings()
