"""The harness id of a program, with which OpenAI's dashboard groups traces: it is added to the metadata of traces."""

import os
from dataclasses import dataclass
from typing import Any

HARNESS_ID_KEY = "agent_harness_id"


@dataclass
class OpenAIAgentRegistrationConfig:
    """The registration of the agents of a program. An empty ``harness_id`` means ``None``."""

    harness_id: str | None


@dataclass
class RegistrationDefault:
    """The registration for providers without their own."""

    config: OpenAIAgentRegistrationConfig | None = None


_default = RegistrationDefault()


def set_default_openai_agent_registration(config: OpenAIAgentRegistrationConfig | dict[str, Any] | None) -> None:
    """Set the registration for providers that have none; without it, ``OPENAI_AGENT_HARNESS_ID`` counts."""
    _default.config = parse_agent_registration(config)


def set_default_openai_harness(harness_id: str | None) -> None:
    """Set the harness id for providers that have none."""
    set_default_openai_agent_registration(OpenAIAgentRegistrationConfig(harness_id))


def parse_agent_registration(
    config: OpenAIAgentRegistrationConfig | dict[str, Any] | None,
) -> OpenAIAgentRegistrationConfig | None:
    """Return the registration, made of a dict if it is one."""
    if isinstance(config, dict):
        config = OpenAIAgentRegistrationConfig(**config)
    if config is None or isinstance(config, OpenAIAgentRegistrationConfig):
        return config
    raise TypeError(f"expected an OpenAIAgentRegistrationConfig or a dict, got {type(config).__name__}")


def add_harness_id(metadata: dict[str, Any] | None, model_provider: Any) -> dict[str, Any] | None:
    """Return the metadata with the harness id of the provider, of the process, or of the environment, if there is one.

    A harness id that the metadata have already stays.
    """
    harness = _find_harness_id(model_provider)
    if harness is None or HARNESS_ID_KEY in (metadata or {}):
        return metadata
    return {**(metadata or {}), HARNESS_ID_KEY: harness}


def _find_harness_id(model_provider: Any) -> str | None:
    openai_provider = getattr(model_provider, "openai_provider", model_provider)
    for config in (getattr(openai_provider, "agent_registration", None), _default.config):
        if config is not None and (harness := (config.harness_id or "").strip()):
            return harness
    return os.environ.get("OPENAI_AGENT_HARNESS_ID", "").strip() or None
