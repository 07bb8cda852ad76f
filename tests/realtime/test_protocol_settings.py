"""Conversion of the settings of a program to the session object of the protocol."""

from typing import Any

import pytest

from standfast import Agent, HostedMCPTool, WebSearchTool, function_tool, handoff
from standfast.agents.model_settings import MCPToolChoice
from standfast.realtime import DEFAULT_MODEL_SETTINGS
from standfast.realtime.audio import parse_audio_format
from standfast.realtime.openai._protocol.session_settings import build_session_payload

PCM = {"type": "audio/pcm", "rate": 24000}


def test_default_settings_are_sent() -> None:
    assert build_session_payload({}) == {
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": PCM,
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
            },
            "output": {"format": PCM, "voice": "ash"},
        },
    }
    assert DEFAULT_MODEL_SETTINGS["voice"] == "ash"


def test_a_call_keeps_its_formats() -> None:
    audio = build_session_payload({}, joins_call=True)["audio"]
    assert "format" not in audio["input"]
    assert "format" not in audio["output"]
    explicit = build_session_payload({"output_audio_format": "g711_ulaw"}, joins_call=True)["audio"]
    assert explicit["output"]["format"] == {"type": "audio/pcmu"}


def test_flat_keys_are_moved_to_their_nested_positions() -> None:
    payload = build_session_payload(
        {
            "input_audio_format": "g711_alaw",
            "output_audio_format": "g711_ulaw",
            "input_audio_noise_reduction": {"type": "near_field"},
            "input_audio_transcription": {"model": "whisper-1", "language": "de"},
            "turn_detection": {"type": "server_vad", "threshold": 0.4},
            "voice": {"id": "voice_1"},
            "speed": 1.2,
        }
    )["audio"]
    assert payload == {
        "input": {
            "format": {"type": "audio/pcma"},
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "whisper-1", "language": "de"},
            "turn_detection": {"type": "server_vad", "threshold": 0.4},
        },
        "output": {"format": {"type": "audio/pcmu"}, "voice": {"id": "voice_1"}, "speed": 1.2},
    }


def test_nested_keys_override_flat_ones() -> None:
    payload = build_session_payload(
        {
            "voice": "ash",
            "turn_detection": None,
            "audio": {"input": {"turn_detection": {"type": "server_vad"}}, "output": {"voice": "sage"}},
        }
    )["audio"]
    assert payload["input"]["turn_detection"] == {"type": "server_vad"}
    assert payload["output"]["voice"] == "sage"


@pytest.mark.parametrize("key", ["turn_detection", "input_audio_noise_reduction", "input_audio_transcription"])
def test_none_switches_a_feature_off(key: str) -> None:
    nested = key.removeprefix("input_audio_")
    assert build_session_payload({key: None})["audio"]["input"][nested] is None
    assert build_session_payload({"audio": {"input": {nested: None}}})["audio"]["input"][nested] is None


def test_turn_detection_accepts_camel_case() -> None:
    settings = {"type": "server_vad", "createResponse": True, "silenceDurationMs": 300, "idle_timeout_ms": 5}
    assert build_session_payload({"turn_detection": settings})["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "create_response": True,
        "silence_duration_ms": 300,
        "idle_timeout_ms": 5,
    }


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("pcm16", "pcm16"),
        ("PCM", "pcm16"),
        ("audio/pcm", "pcm16"),
        ({"type": "audio/pcm", "rate": 24000}, "pcm16"),
        ("g711_ulaw", "g711_ulaw"),
        ("pcmu", "g711_ulaw"),
        ({"type": "audio/pcmu"}, "g711_ulaw"),
        ("audio/pcma", "g711_alaw"),
        ("mp3", None),
        ({}, None),
        (None, None),
    ],
)
def test_audio_formats_have_several_spellings(value: Any, name: str | None) -> None:
    parsed = parse_audio_format(value)
    assert (parsed.name if parsed else None) == name


def test_an_unknown_format_is_not_sent() -> None:
    assert "format" not in build_session_payload({"output_audio_format": "mp3"})["audio"]["output"]


@pytest.mark.parametrize(("name", "size", "ms"), [("pcm16", 48_000, 1000), ("g711_ulaw", 8_000, 1000)])
def test_the_duration_of_audio_follows_from_its_format(name: str, size: int, ms: float) -> None:
    assert parse_audio_format(name).duration_ms(size) == ms


def test_other_settings_are_passed_through() -> None:
    payload = build_session_payload(
        {
            "model_name": "gpt-realtime",
            "instructions": "Be kind.",
            "prompt": {"id": "p", "version": None},
            "output_modalities": ["text"],
            "max_output_tokens": "inf",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low"},
            "tracing": {"workflow_name": "w"},
        }
    )
    assert {key: value for key, value in payload.items() if key != "audio"} == {
        "type": "realtime",
        "instructions": "Be kind.",
        "prompt": {"id": "p"},
        "output_modalities": ["text"],
        "max_output_tokens": "inf",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "tracing": {"workflow_name": "w"},
    }
    assert build_session_payload({"tracing": None})["tracing"] is None
    assert build_session_payload({"model_name": "gpt-realtime"}, include_model=True)["model"] == "gpt-realtime"


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_tools_and_handoffs_are_functions() -> None:
    transfer = handoff(Agent(name="Billing"))
    server = HostedMCPTool(
        {"type": "mcp", "server_label": "docs", "server_url": "https://x", "require_approval": "never"}
    )
    tools = build_session_payload({"tools": [add, server], "handoffs": [transfer]})["tools"]
    assert [tool.get("name", tool["type"]) for tool in tools] == ["add", "mcp", "transfer_to_billing"]
    assert tools[0]["parameters"]["properties"].keys() == {"a", "b"}
    assert set(tools[0]) == {"type", "name", "description", "parameters"}


def test_an_empty_list_of_tools_is_sent() -> None:
    assert build_session_payload({"tools": []})["tools"] == []
    assert "tools" not in build_session_payload({})


def test_unsupported_tools_are_rejected() -> None:
    with pytest.raises(Exception, match="function tools and hosted MCP"):
        build_session_payload({"tools": [WebSearchTool()]})


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("add", {"type": "function", "name": "add"}),
        (MCPToolChoice("docs", "find"), {"type": "mcp", "server_label": "docs", "name": "find"}),
    ],
)
def test_tool_choice_is_converted(choice: Any, expected: Any) -> None:
    assert build_session_payload({"tool_choice": choice})["tool_choice"] == expected
