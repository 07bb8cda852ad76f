"""Programs that change only their import: names, parameters, order and defaults are those they know."""

import inspect
from dataclasses import fields
from typing import Any

import pytest

import standfast

peer = pytest.importorskip("agents")

# What later versions of the peer added.
NEWER = {"output_guardrail_blocked_message", "error"}
# What they put into traces by default, standfast does not.
SAFER = {"trace_include_sensitive_data"}

CALLABLES = [
    *(f"Runner.{name}" for name in ("run", "run_sync", "run_streamed")),
    *(
        f"RunState.{name}"
        for name in [
            "__init__",
            "approve",
            "reject",
            "get_interruptions",
            "add_input",
            "clear_pending_input",
            "to_json",
            "to_string",
            "from_json",
            "from_string",
            "get_tool_use_tracker_snapshot",
            "set_tool_use_tracker_snapshot",
            "set_trace",
            "set_reasoning_item_id_policy",
        ]
    ),
    *(f"RunResult.{name}" for name in ("final_output_as", "to_input_list", "to_state", "release_agents")),
    *(f"RunResultStreaming.{name}" for name in ("stream_events", "cancel")),
    *(f"ItemHelpers.{name}" for name in ("extract_last_content", "extract_text", "tool_call_output_item")),
    "RunConfig.__init__",
    "ToolExecutionConfig.__init__",
    "RunErrorHandlerResult.__init__",
    "ToolErrorFormatterArgs.__init__",
    "RunItemStreamEvent.__init__",
    "ToolCallOutputItem.__init__",
    "ToolApprovalItem.__init__",
    "MessageOutputItem.__init__",
    "HandoffOutputItem.__init__",
]


@pytest.mark.parametrize("path", CALLABLES)
def test_parameters_are_those_that_programs_use(path: str) -> None:
    name, member = path.split(".")
    ours, theirs = (
        inspect.signature(getattr(getattr(library, name), member)).parameters for library in (standfast, peer)
    )
    known = {key: parameter for key, parameter in theirs.items() if not key.startswith("_") and key not in NEWER}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values()):
        pytest.fail(f"{path} hides its parameters")
    assert [key for key in ours if key in known] == list(known)
    for key, parameter in known.items():
        assert ours[key].kind == parameter.kind, key
        if key in SAFER:
            continue
        assert plain(ours[key].default) == plain(parameter.default), key


TRACING = [
    *("trace", "agent_span", "custom_span", "function_span", "generation_span", "guardrail_span", "handoff_span"),
    *("mcp_tools_span", "response_span", "task_span", "turn_span", "add_trace_processor", "set_trace_processors"),
    *("set_tracing_disabled", "get_current_span", "get_current_trace", "gen_trace_id", "gen_span_id", "flush_traces"),
    *("AgentSpanData", "CustomSpanData", "FunctionSpanData", "GenerationSpanData", "GuardrailSpanData"),
    *("HandoffSpanData", "MCPListToolsSpanData", "ResponseSpanData", "TaskSpanData", "TurnSpanData"),
]


@pytest.mark.parametrize("name", TRACING)
def test_traces_are_made_with_the_parameters_that_programs_use(name: str) -> None:
    ours, theirs = (
        [
            (key, plain(parameter.default))
            for key, parameter in inspect.signature(getattr(library, name)).parameters.items()
        ]
        for library in (standfast, peer)
    )
    assert ours == theirs


def plain(default: Any) -> Any:
    return default if default is None or isinstance(default, bool | int | str) else type(default).__name__


def test_results_have_what_programs_read() -> None:
    wanted = {field.name for field in fields(peer.RunResult) if not field.name.startswith("_")}
    assert wanted <= {field.name for field in fields(standfast.RunResult)}
