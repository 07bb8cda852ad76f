"""Defaults, validation and the types of errors."""

from typing import Any

import pytest
from openai import OpenAIError
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputItemDoneEvent,
)
from pydantic import BaseModel


class Person(BaseModel):
    age: int


def get_settings(settings: Any) -> tuple[Any, Any, Any]:
    return getattr(settings.reasoning, "effort", None), settings.verbosity, settings.temperature


@pytest.mark.parametrize(
    "name",
    ["gpt-4.1", "gpt-5", "gpt-5-mini", "gpt-5.2-pro", "gpt-5-chat-latest", "gpt-5.4-2026-01-01", "gpt-5.7", None],
)
async def test_gpt_5_models_get_their_own_settings(lib: Any, name: str | None) -> None:
    import agents

    expected = agents.Agent(name="a", model=name).model_settings
    assert get_settings(lib.Agent(name="a", model=name).model_settings) == get_settings(expected)


async def test_settings_of_the_program_replace_the_defaults(lib: Any) -> None:
    model = lib.ScriptedModel([[lib.assistant_message("x")]] * 9)

    class Provider(lib.ModelProvider):  # type: ignore[misc]
        def get_model(self, model_name: str | None) -> Any:
            return model

    async def ask(agent: Any, **config: Any) -> tuple[Any, Any, Any]:
        await lib.Runner.run(agent, "hi", run_config=lib.RunConfig(model_provider=Provider(), **config))
        return get_settings(model.calls[-1].model_settings)

    warm = lib.ModelSettings(temperature=0.5)
    assert await ask(lib.Agent(name="a"), model="gpt-5") == ("low", "low", None)
    assert await ask(lib.Agent(name="a", model="gpt-5"), model="gpt-4.1") == (None, None, None)
    assert await ask(lib.Agent(name="a", model_settings=warm), model="gpt-5") == (None, None, 0.5)
    assert await ask(lib.Agent(name="a", model="gpt-5"), model_settings=warm) == ("low", "low", 0.5)
    assert get_settings(lib.Agent(name="a", model="gpt-5").clone(model="gpt-4.1").model_settings) == (None, None, None)


def test_strict_outputs_are_not_converted(lib: Any) -> None:
    with pytest.raises(lib.ModelBehaviorError):
        lib.AgentOutputSchema(Person).validate_json('{"age": "25"}')
    assert lib.AgentOutputSchema(Person, strict_json_schema=False).validate_json('{"age": "25"}') == Person(age=25)


def make_response(**parts: Any) -> Response:
    return Response(
        id="r",
        created_at=0,
        model="m",
        object="response",
        output=[],
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
        **parts,
    )


async def test_items_that_the_last_event_lacks_are_taken_from_the_events_before(lib: Any) -> None:
    made: list[int] = []

    @lib.function_tool
    def pay() -> str:
        made.append(1)
        return "paid"

    call = ResponseFunctionToolCall(id="f", type="function_call", name="pay", call_id="c1", arguments="{}")
    events = [
        ResponseOutputItemDoneEvent(item=call, output_index=0, sequence_number=0, type="response.output_item.done"),
        ResponseCompletedEvent(response=make_response(), sequence_number=1, type="response.completed"),
    ]
    model = lib.ScriptedModel([lib.ModelStep.stream(events), [lib.assistant_message("done")]])
    result = lib.Runner.run_streamed(lib.Agent(name="a", model=model, tools=[pay]), "hi")
    assert [event async for event in result.stream_events()]
    assert (made, result.final_output) == ([1], "done")


async def test_an_incomplete_response_is_an_error_of_the_model(lib: Any) -> None:
    response = make_response(status="incomplete")
    event = ResponseIncompleteEvent(response=response, sequence_number=1, type="response.incomplete")
    agent = lib.Agent(name="a", model=lib.ScriptedModel([lib.ModelStep.stream([event])]))
    with pytest.raises(lib.ModelBehaviorError):
        async for _ in lib.Runner.run_streamed(agent, "hi").stream_events():
            pass


async def test_a_filter_may_repeat_items(lib: Any) -> None:
    call = {"type": "function_call", "name": "t", "call_id": "c", "arguments": "{}"}
    old, new = ({"type": "function_call_output", "call_id": "c", "output": text} for text in ("old", "new"))
    model = lib.ScriptedModel([[lib.assistant_message("x")]])

    def add(data: Any) -> Any:
        data.model_data.input += [old, call, call, new]
        return data.model_data

    config = lib.RunConfig(call_model_input_filter=add)
    await lib.Runner.run(lib.Agent(name="a", model=model), "hi", run_config=config)
    assert model.calls[0].input[1:] == [call, new]


async def test_errors_around_a_tool_are_user_errors(lib: Any) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("broken")

    class Hooks(lib.RunHooks):  # type: ignore[misc]
        async def on_tool_end(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("broken")

    def make(**options: Any) -> Any:
        tool = lib.function_tool(lambda: "x", name_override="t", **options)
        return lib.Agent(name="a", model=lib.ScriptedModel([[lib.function_call("t", {}, call_id="c")]]), tools=[tool])

    guarded = make(tool_input_guardrails=[lib.tool_input_guardrail(fail)])
    for agent, hooks in ((make(), Hooks()), (guarded, None), (make(needs_approval=fail), None)):
        with pytest.raises(lib.UserError, match="Error running tool t: broken") as raised:
            await lib.Runner.run(agent, "hi", hooks=hooks)
        assert isinstance(raised.value.__cause__, RuntimeError)


async def test_instructions_of_the_wrong_shape_are_a_type_error(lib: Any) -> None:
    model = lib.ScriptedModel([[lib.assistant_message("x")]])
    with pytest.raises(TypeError):
        lib.Agent(name="a", instructions=5)
    with pytest.raises(TypeError):
        await lib.Runner.run(lib.Agent(name="a", instructions=lambda context: "x", model=model), "hi")


async def test_custom_data_is_json_and_changes_nothing_else(lib: Any) -> None:
    def extract(context: Any) -> dict[str, int]:
        context.raw_item["renderer"] = "chart"
        return {"k": 1}

    def make(extractor: Any) -> Any:
        tool = lib.function_tool(lambda: "x", name_override="t", custom_data_extractor=extractor)
        script = [[lib.function_call("t", {}, call_id="c")], [lib.assistant_message("x")]]
        return lib.Agent(name="a", model=lib.ScriptedModel(script), tools=[tool])

    (output,) = [
        item for item in (await lib.Runner.run(make(extract), "hi")).new_items if item.type == "tool_call_output_item"
    ]
    assert output.custom_data == {"k": 1}
    assert output.tool_origin.type == "function"
    assert "renderer" not in output.to_input_item()
    with pytest.raises(lib.UserError):
        await lib.Runner.run(make(lambda context: {"bad": object()}), "hi")


async def test_an_agent_tool_can_be_called_by_hand(lib: Any) -> None:
    import importlib

    context_class = importlib.import_module(f"{lib.package}.tool_context").ToolContext
    events: list[Any] = []
    inner = lib.Agent(name="b", model=lib.ScriptedModel([[lib.assistant_message("inner")]]))
    tool = inner.as_tool("ask", "asks", on_stream=lambda event: events.append(event["event"]))
    arguments = '{"input": "hi"}'
    context = context_class(None, tool_name="ask", tool_call_id="c", tool_arguments=arguments)
    assert await tool.on_invoke_tool(context, arguments) == "inner"
    assert len(events) == 11


def test_settings_of_a_wrong_type_are_refused(lib: Any) -> None:
    for wrong in ({"tool_choice": 5}, {"metadata": 5}, {"truncation": "none"}, {"verbosity": "loud"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            lib.ModelSettings(**wrong)


async def test_missing_credentials_are_an_error_of_the_openai_package(
    lib: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(OpenAIError, match="OPENAI_API_KEY"):
        lib.OpenAIProvider().get_model("gpt-4.1")


def test_audio_of_another_type_is_refused(lib: Any) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(lib.UserError):
        lib.AudioInput(buffer=numpy.zeros(3, dtype=numpy.int32)).to_base64()
