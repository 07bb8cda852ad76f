"""What programs print, and small values that they compare."""

from typing import Any

import pytest
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel


class Person(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("answer", "output_type", "lines"),
    [
        ("one\ntwo", None, ["- Final output (str):", "    one", "    two"]),
        ('{"name": "Zoë"}', Person, ["- Final output (Person):", "    {", '      "name": "Zoë"', "    }"]),
        ('{"response": [1, 2]}', list[int], ["- Final output (list):", "    [1, 2]"]),
    ],
)
async def test_a_result_is_printed_with_its_final_output(
    lib: Any, answer: str, output_type: Any, lines: list[str]
) -> None:
    agent = lib.Agent(name="a", model=lib.ScriptedModel([[lib.assistant_message(answer)]] * 2), output_type=output_type)
    counts = [
        "- 1 new item(s)",
        "- 1 raw response(s)",
        "- 0 input guardrail result(s)",
        "- 0 output guardrail result(s)",
    ]
    result = await lib.Runner.run(agent, "hi")
    head = ["RunResult:", '- Last agent: Agent(name="a", ...)']
    assert str(result).splitlines() == [*head, *lines, *counts, "(See `RunResult` for more details)"]
    streamed = lib.Runner.run_streamed(agent, "hi")
    head = [
        "RunResultStreaming:",
        '- Current agent: Agent(name="a", ...)',
        "- Current turn: 0",
        "- Max turns: 10",
        "- Is complete: False",
    ]
    assert str(streamed).splitlines()[:7] == [*head, "- Final output (NoneType):", "    None"]
    async for _ in streamed.stream_events():
        pass
    head[2], head[4] = "- Current turn: 1", "- Is complete: True"
    assert str(streamed).splitlines() == [*head, *lines, *counts, "(See `RunResultStreaming` for more details)"]


async def test_the_data_of_an_error_are_printed(lib: Any) -> None:
    agent = lib.Agent(name="a", model=lib.ScriptedModel([[lib.assistant_message("hi")]]))
    with pytest.raises(lib.MaxTurnsExceeded) as caught:
        await lib.Runner.run(agent, "hi", max_turns=0)
    assert str(caught.value.run_data).splitlines() == [
        "RunErrorDetails:",
        '- Last agent: Agent(name="a", ...)',
        "- 0 new item(s)",
        "- 0 raw response(s)",
        "- 0 input guardrail result(s)",
        "- 0 output guardrail result(s)",
        "- 0 tool input guardrail result(s)",
        "- 0 tool output guardrail result(s)",
        "(See `RunErrorDetails` for more details)",
    ]


def test_token_details_equal_those_of_the_openai_package(lib: Any) -> None:
    cached = InputTokensDetails(cached_tokens=3, cache_write_tokens=0)
    usage = lib.Usage(requests=1, input_tokens_details=cached, output_tokens_details={"reasoning_tokens": 2})
    assert usage.input_tokens_details == cached
    assert usage.output_tokens_details == OutputTokensDetails(reasoning_tokens=2)
    assert usage.input_tokens_details != InputTokensDetails(cached_tokens=4, cache_write_tokens=0)
    assert usage.input_tokens_details.model_dump()["cached_tokens"] == 3


@pytest.mark.parametrize(
    ("value", "output_type", "final"),
    [(2, None, "2"), ({"a": [1]}, None, "{'a': [1]}"), (None, str, "None"), (2, int, 2)],
)
async def test_a_tool_output_as_final_output_is_a_text_unless_there_is_an_output_type(
    lib: Any, value: Any, output_type: Any, final: Any
) -> None:
    @lib.function_tool
    def look() -> Any:
        return value

    async def decide(context: Any, results: Any) -> Any:
        return lib.ToolsToFinalOutputResult(is_final_output=True, final_output=results[0].output)

    for behavior in ("stop_on_first_tool", {"stop_at_tool_names": ["look"]}, decide):
        model = lib.ScriptedModel([[lib.function_call("look", {}, call_id="1")]])
        agent = lib.Agent(name="a", model=model, tools=[look], tool_use_behavior=behavior, output_type=output_type)
        assert (await lib.Runner.run(agent, "hi")).final_output == final


async def test_a_call_of_a_tool_without_docstring_has_an_empty_description(lib: Any) -> None:
    @lib.function_tool(needs_approval=True)
    def look() -> str:
        return "seen"

    model = lib.ScriptedModel([[lib.function_call("look", {}, call_id="1")]])
    result = await lib.Runner.run(lib.Agent(name="a", model=model, tools=[look]), "hi")
    call, approval = result.new_items
    assert call.description == ""
    with pytest.raises(lib.AgentsException):
        approval.to_input_item()


@pytest.mark.parametrize("hooks", [5, "AgentHooks", "RunHooks"])
async def test_hooks_of_the_wrong_kind_are_refused(lib: Any, hooks: Any) -> None:
    value = {"AgentHooks": lib.AgentHooks(), "RunHooks": lib.RunHooks}.get(hooks, hooks)
    with pytest.raises(TypeError):
        await lib.Runner.run(lib.Agent(name="a", model=lib.ScriptedModel()), "hi", hooks=value)


def test_the_docstring_describes_a_parameter_before_its_annotation(lib: Any) -> None:
    from typing import Annotated

    from pydantic import Field

    def find(place: Annotated[str, "noted"], count: Annotated[int, Field(description="field")], day: int) -> str:
        """Find.

        Args:
            place: documented
            count: counted
        """
        return ""

    properties = lib.function_tool(find).params_json_schema["properties"]
    assert [properties[name].get("description") for name in ("place", "count", "day")] == [
        "documented",
        "counted",
        None,
    ]


def test_an_unknown_annotation_is_a_name_error(lib: Any) -> None:
    def find(place: "Unknown") -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    with pytest.raises(NameError):
        lib.function_tool(find)


def test_an_object_without_properties_gets_none_in_its_strict_form(lib: Any) -> None:
    from importlib import import_module

    make_strict = import_module(f"{lib.package}.strict_schema").ensure_strict_json_schema
    assert make_strict({"type": "object"}) == {"type": "object", "additionalProperties": False}


def test_a_timeout_error_function_must_be_a_function(lib: Any) -> None:
    def look() -> str:
        return ""

    with pytest.raises(TypeError):
        lib.FunctionTool(
            name="look",
            description="",
            params_json_schema={},
            on_invoke_tool=look,
            timeout_error_function=3,
            strict_json_schema=False,
        )


@pytest.mark.parametrize(("begun", "turns"), [(False, 0), (True, 1)])
async def test_a_stream_that_is_cancelled_in_its_first_turn_completes_it(lib: Any, begun: bool, turns: int) -> None:
    call = lib.function_call("look", {}, call_id="1")

    @lib.function_tool
    def look() -> str:
        return "seen"

    model = lib.ScriptedModel([[call], [lib.assistant_message("one")]])
    result = lib.Runner.run_streamed(lib.Agent(name="a", model=model, tools=[look]), "hi")
    if not begun:
        result.cancel(mode="after_turn")
    async for _ in result.stream_events():
        result.cancel(mode="after_turn")
    assert len(model.calls) == turns
    assert [item.type for item in result.new_items] == ["tool_call_item", "tool_call_output_item"] * turns
