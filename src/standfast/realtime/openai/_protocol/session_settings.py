"""Conversion of session settings to the ``session`` objects of the protocol. Pure functions on dicts."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.hosted_tools import HostedMCPTool
from standfast.agents.model_settings import MCPToolChoice
from standfast.agents.tools import FunctionTool
from standfast.realtime.audio import log, parse_audio_format
from standfast.realtime.config import RealtimeSessionModelSettings

DEFAULT_REALTIME_MODEL = "gpt-realtime-2.1"
DEFAULT_MODEL_SETTINGS: RealtimeSessionModelSettings = {
    "voice": "ash",
    "modalities": ["audio"],
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "input_audio_transcription": {"model": "gpt-4o-mini-transcribe"},
    "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
}

_PASSED_THROUGH_KEYS = ("instructions", "max_output_tokens", "parallel_tool_calls")
# Nested keys and their flat equivalents.
_INPUT_KEYS = {
    "format": "input_audio_format",
    "noise_reduction": "input_audio_noise_reduction",
    "transcription": "input_audio_transcription",
    "turn_detection": "turn_detection",
}
_OUTPUT_KEYS = {"format": "output_audio_format", "voice": "voice", "speed": "speed"}
_FORMAT_KEYS = frozenset(["input_audio_format", "output_audio_format"])
# Keys of server_vad, which semantic_vad does not have.
_SERVER_VAD_KEYS = frozenset(["threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms"])


def build_session_payload(
    settings: Mapping[str, Any], *, joins_call: bool = False, include_model: bool = False
) -> dict[str, Any]:
    """Build the ``session`` of a ``session.update``.

    With ``joins_call``, audio formats are sent only if they are set: a call already has formats. ``include_model``
    adds the model, which is needed to create a session; an existing one keeps its model.
    """
    omitted = _FORMAT_KEYS if joins_call else ()
    defaults = {key: value for key, value in DEFAULT_MODEL_SETTINGS.items() if key not in omitted}
    flat = {**defaults, **settings}
    nested: Mapping[str, Any] = settings.get("audio") or {}
    session: dict[str, Any] = {"type": "realtime"}
    if include_model:
        session["model"] = settings.get("model_name") or DEFAULT_REALTIME_MODEL
    session |= {key: flat[key] for key in _PASSED_THROUGH_KEYS if flat.get(key) is not None}
    modalities = settings.get("output_modalities") or flat.get("modalities")
    if modalities:
        session["output_modalities"] = list(modalities)
    audio = {
        "input": _build_audio_settings(_INPUT_KEYS, nested.get("input") or {}, flat),
        "output": _build_audio_settings(_OUTPUT_KEYS, nested.get("output") or {}, flat),
    }
    session |= {"audio": {way: parts for way, parts in audio.items() if parts}} if any(audio.values()) else {}
    for key in ("prompt", "reasoning"):
        if flat.get(key):
            session[key] = _drop_none(flat[key])
    if "tools" in flat or "handoffs" in flat:
        session["tools"] = tools_to_wire(flat.get("tools") or (), flat.get("handoffs") or ())
    if (choice := tool_choice_to_wire(flat.get("tool_choice"))) is not None:
        session["tool_choice"] = choice
    if "tracing" in flat:
        tracing = flat["tracing"]
        session["tracing"] = _drop_none(tracing) or "auto" if isinstance(tracing, Mapping) else tracing
    return session


def _build_audio_settings(
    keys: Mapping[str, str], nested: Mapping[str, Any], flat: Mapping[str, Any]
) -> dict[str, Any]:
    """Build one direction of the audio settings: nested keys win over flat ones, and ``None`` switches off."""
    result: dict[str, Any] = {}
    for key, flat_key in keys.items():
        if key in nested:
            value = nested[key]
        elif flat_key in flat:
            value = flat[flat_key]
        else:
            continue
        if key == "format":
            if (format := parse_audio_format(value)) is not None:
                result[key] = format.as_wire()
            elif value is not None:
                log.warning("unknown audio format %r is not sent; the server uses its default", value)
        elif key == "turn_detection" and isinstance(value, Mapping):
            result[key] = _build_turn_detection({_to_snake_case(name): part for name, part in value.items()})
        elif value is not None or key in ("noise_reduction", "transcription", "turn_detection"):
            result[key] = dict(value) if isinstance(value, Mapping) else value
    return result


def _build_turn_detection(settings: dict[str, Any]) -> dict[str, Any]:
    """Add the ``type`` that the protocol requires; if the program omits it, its other keys decide."""
    return {"type": "semantic_vad" if _SERVER_VAD_KEYS.isdisjoint(settings) else "server_vad", **settings}


def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def _drop_none(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if value is not None}


def tools_to_wire(tools: Iterable[Any], handoffs: Iterable[Handoff[Any, Any]]) -> list[dict[str, Any]]:
    """Convert tools and handoffs. Raises :class:`UserError` for anything but functions and hosted MCP servers."""
    converted = []
    for tool in tools:
        if isinstance(tool, FunctionTool):
            converted.append(_function_to_wire(tool.name, tool.description, tool.params_json_schema))
        elif isinstance(tool, HostedMCPTool):
            converted.append(_mcp_server_to_wire(tool))
        else:
            raise UserError(f"a realtime model can call function tools and hosted MCP servers only, got {tool!r}")
    return converted + [
        _function_to_wire(handoff.tool_name, handoff.tool_description, handoff.input_json_schema)
        for handoff in handoffs
    ]


def _mcp_server_to_wire(tool: HostedMCPTool) -> dict[str, Any]:
    config = dict(tool.tool_config)
    if config.get("require_approval") != "never":
        raise UserError(
            f"the hosted MCP server {config.get('server_label')!r} may request approvals, which a realtime session "
            'cannot decide: set its require_approval to "never", or use the server through mcp_servers'
        )
    return config


def _function_to_wire(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


def tool_choice_to_wire(choice: Any) -> Any:
    """Convert a tool choice; ``None`` stays ``None``."""
    if isinstance(choice, MCPToolChoice):
        return {"type": "mcp", "server_label": choice.server_label, "name": choice.name}
    if choice is None or choice in ("auto", "required", "none") or not isinstance(choice, str):
        return choice
    return {"type": "function", "name": choice}
