"""The spans of models, and what they say about failures."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import BaseModel


class Order(BaseModel):
    number: int


@pytest.fixture
def spans(lib: Any) -> Iterator[list[tuple[str, Any, Any]]]:
    """The spans that end: their type, their data without the type, and their error."""
    seen: list[tuple[str, Any, Any]] = []

    class Processor(lib.TracingProcessor):  # type: ignore[misc]
        def on_trace_start(self, trace: Any) -> None: ...

        def on_trace_end(self, trace: Any) -> None: ...

        def on_span_start(self, span: Any) -> None: ...

        def on_span_end(self, span: Any) -> None:
            data = span.export()["span_data"]
            kind = data.pop("type")
            seen.append((data["name"] if kind == "custom" else kind, data, span.error))

        def shutdown(self) -> None: ...

        def force_flush(self) -> None: ...

    lib.set_tracing_disabled(False)
    lib.set_trace_processors([Processor()])
    yield seen
    lib.set_trace_processors([])


async def run_traced(lib: Any, steps: Any, **options: Any) -> Any:
    agent = lib.Agent(name="a", model=lib.ScriptedModel(steps, emit_traces=True), **options)
    return await lib.Runner.run(agent, "hi", run_config=lib.RunConfig(trace_include_sensitive_data=True))


async def test_a_run_with_settings_for_reasoning_is_traced(lib: Any, spans: list[Any]) -> None:
    settings = lib.ModelSettings(reasoning={"effort": "low"})
    assert settings.to_json_dict()["reasoning"]["effort"] == "low"
    await run_traced(lib, [[lib.assistant_message("x")]], model_settings=settings)
    assert [kind for kind, _, _ in spans] == ["generation", "turn", "agent", "task"]


@pytest.mark.parametrize("makes_span", [True, False])
async def test_a_model_of_the_program_makes_its_own_spans(lib: Any, spans: list[Any], makes_span: bool) -> None:
    answer = lib.ModelResponse([lib.assistant_message("x")], lib.Usage(), None)

    class OwnModel(lib.Model):  # type: ignore[misc]
        async def get_response(self, *_: Any, **__: Any) -> Any:
            if makes_span:
                with lib.generation_span(model="own"):
                    return answer
            return answer

        async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            yield answer

    await lib.Runner.run(lib.Agent(name="a", model=OwnModel()), "hi")
    kinds = [kind for kind, _, _ in spans]
    assert kinds == ["generation"] * makes_span + ["turn", "agent", "task"]
    assert [data["model"] for kind, data, _ in spans if kind == "generation"] == ["own"] * makes_span
    assert not any(data["data"].get("usage") for kind, data, _ in spans if kind == "turn")


async def test_an_output_that_is_no_json_is_an_error_of_its_turn(lib: Any, spans: list[Any]) -> None:
    with pytest.raises(lib.ModelBehaviorError):
        await run_traced(lib, [[lib.assistant_message('{"number": "x"}')]], output_type=Order)
    errors = {kind: error for kind, _, error in spans if error}
    assert errors == {"turn": {"message": "Invalid JSON provided", "data": {}}}


async def test_a_turn_with_an_unknown_tool_has_its_usage(lib: Any, spans: list[Any]) -> None:
    with pytest.raises(lib.ModelBehaviorError):
        await run_traced(lib, [[lib.function_call("lost", {}, call_id="1")]])
    (turn,) = [data["data"] for kind, data, _ in spans if kind == "turn"]
    assert turn["usage"]["input_tokens"] == 0


async def test_several_handoffs_in_a_response_are_an_error_of_the_handoff(lib: Any, spans: list[Any]) -> None:
    others = [lib.Agent(name=name, model=lib.ScriptedModel([[lib.assistant_message("hi")]])) for name in "bc"]
    calls = [lib.function_call(f"transfer_to_{name}", {}, call_id=name) for name in "bc"]
    await run_traced(lib, [calls], handoffs=others)
    (error,) = [error for kind, _, error in spans if kind == "handoff"]
    assert error == {"message": "Multiple handoffs requested", "data": {"requested_agents": ["b", "c"]}}
