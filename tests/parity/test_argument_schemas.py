"""Which arguments of a model reach a function, and how its parameters are described."""

import importlib
import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import Field


def get_schema(lib: Any, func: Callable[..., Any], **options: Any) -> Any:
    return importlib.import_module(f"{lib.package}.function_schema").function_schema(func, **options)


def refund(order: int, *, reason: str = "none", **notes: str) -> str:
    return f"{order} {reason} {notes}"


def count(*steps: int, unit: str = "m", **notes: str) -> str:
    return f"{steps} {unit} {notes}"


@pytest.mark.parametrize(
    ("func", "arguments", "name"),
    [
        (refund, {"order": 1, "notes": {"reason": "stolen"}}, "reason"),
        (refund, {"order": 1, "notes": {"order": "2"}}, "order"),
        (count, {"steps": [1], "notes": {"unit": "km"}}, "unit"),
    ],
)
async def test_further_names_do_not_replace_a_parameter(
    lib: Any, func: Callable[..., str], arguments: dict[str, Any], name: str
) -> None:
    seen: list[str] = []

    def explain(context: Any, error: Exception) -> str:
        seen.append(str(error))
        return "refused"

    tool = lib.function_tool(func, strict_mode=False, failure_error_function=explain)
    model = lib.ScriptedModel(
        [[lib.function_call(func.__name__, arguments, call_id="c1")], [lib.assistant_message("done")]]
    )
    result = await lib.Runner.run(lib.Agent(name="a", tools=[tool], model=model), "x")
    assert result.final_output == "done"
    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == ["refused"]
    assert repr(name) in seen[0]


async def test_further_names_may_be_those_of_parameters_without_names(lib: Any) -> None:
    def move(order: int, /, **notes: str) -> str:
        return f"{order} {notes}"

    schema = get_schema(lib, move, strict_json_schema=False)
    positional, named = schema.to_call_args(schema.params_pydantic_model(order=1, notes={"order": "second"}))
    assert move(*positional, **named) == "1 {'order': 'second'}"


def test_a_described_annotation_takes_precedence_over_fields(lib: Any) -> None:
    def plan(
        days: Annotated[int, Field(ge=1, description="from a field"), "from the annotation"],
        hours: Annotated[int, "from the annotation"] = Field(default=2, le=8, description="from the default"),
        minutes: Annotated[int, "from the annotation"] = 0,
    ) -> None:
        """Plan it.

        Args:
            minutes: from the docstring
        """

    properties = get_schema(lib, plan).params_json_schema["properties"]
    assert [each["description"] for each in properties.values()] == [
        "from the annotation",
        "from the annotation",
        "from the docstring",
    ]
    assert (properties["days"]["minimum"], properties["hours"]["maximum"]) == (1, 8)
    assert json.dumps(properties["hours"]["default"]) == "2"
