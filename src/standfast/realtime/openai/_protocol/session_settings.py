"""Settings of the session: conversion to ``session`` objects, and matching of the server's answers, sans I/O.

The server answers updates in their order, and names an update only when it rejects it. So an acceptance belongs to the
first update without an answer. If that one was abandoned, its answer may come late or never; then the settings that
the server reports decide.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.hosted_tools import HostedMCPTool
from standfast.agents.model_settings import MCPToolChoice
from standfast.agents.tools import FunctionTool
from standfast.realtime.audio import log, parse_audio_format
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import SettingsRejected

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


SettingPath: TypeAlias = tuple[str, ...]

_UNKNOWN = object()


@dataclass(eq=False, slots=True)
class PendingSessionUpdate:
    """An update of the settings. ``answered`` with an ``error`` means that the previous settings still apply."""

    event_id: str
    values: dict[SettingPath, Any]
    """Each value by its path in the session object."""
    awaited: bool = False
    """Whether a task waits for the answer, or did."""
    answered: bool = False
    error: SettingsRejected | None = None
    abandoned: bool = False
    """Whether the waiting task gave up."""


class SessionUpdateTracker:
    """Tracks the updates whose answers may still come, in order."""

    def __init__(self) -> None:
        self._pending: deque[PendingSessionUpdate] = deque()
        self._count = 0
        self.session: Any = None
        """The settings that the server reported last."""

    def create(self, session: Any, event_id: str | None = None) -> PendingSessionUpdate:
        self._count += 1
        return PendingSessionUpdate(event_id or f"standfast_session_{self._count}", dict(_flatten(session)))

    def mark_sent(self, update: PendingSessionUpdate) -> None:
        """Expect an answer to the update. One that was not sent must not take the answer to the next."""
        self._pending.append(update)

    def handle_accepted(self, session: Any) -> None:
        """Handle the acceptance of an update, with the settings that apply now."""
        previous, self.session = self.session, session
        if not self._pending:
            return
        awaited = next((update for update in self._pending if not (update.abandoned or update.answered)), None)
        first = self._pending.popleft()
        if awaited is not None and (
            awaited is first or not _reflects_only_first(session, awaited, previous=previous, first=first)
        ):
            awaited.answered = True

    def handle_rejected(self, error: dict[str, Any]) -> bool:
        """Handle an error. Returns True if a task that waits for an update gets it."""
        event_id = error.get("event_id")
        for update in self._pending:
            if update.event_id == event_id or (event_id is None and str(error.get("param")).startswith("session")):
                self._pending.remove(update)
                too_late, update.answered, update.error = update.answered, True, SettingsRejected(error)
                return update.awaited and not too_late
        return False


def _reflects_only_first(
    session: Any, awaited: PendingSessionUpdate, *, previous: Any, first: PendingSessionUpdate
) -> bool:
    """Whether the settings are those of the ``first`` update, without any effect of the ``awaited`` one."""
    unchanged = False
    for path, value in awaited.values.items():
        old, current = first.values.get(path, _get_at_path(previous, path)), _get_at_path(session, path)
        if value != old:
            if current == value:
                return False
            unchanged = unchanged or (current is not _UNKNOWN and current == old)
    return unchanged


def _flatten(session: Any, path: SettingPath = ()) -> list[tuple[SettingPath, Any]]:
    if not isinstance(session, dict):
        return [(path, session)]
    return [value for name, part in session.items() for value in _flatten(part, (*path, name))]


def _get_at_path(session: Any, path: SettingPath) -> Any:
    for name in path:
        if not isinstance(session, dict) or name not in session:
            return _UNKNOWN
        session = session[name]
    return session
