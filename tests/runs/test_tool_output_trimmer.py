"""ToolOutputTrimmer shortens old tool outputs in what the model is shown, and nothing else."""

import copy
from typing import Any

import pytest
from standfast.run import CallModelData, ModelInputData

from standfast import Agent, RunConfig, Runner, ToolOutputTrimmer
from standfast.testing import ScriptedModel, assistant_message


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_conversation(output: Any, **call: Any) -> list[dict[str, Any]]:
    asked = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}", **call}
    return [user("1"), asked, {"type": "function_call_output", "call_id": "c1", "output": output}, user("2"), user("3")]


def trim(items: list[dict[str, Any]], **options: Any) -> Any:
    """Return the output of the tool after the filter; the items themselves must stay as they are."""
    before = copy.deepcopy(items)
    data = CallModelData(ModelInputData(items, "be kind"), Agent("a"), None)
    result = ToolOutputTrimmer(**options)(data)
    assert items == before
    assert result.instructions == "be kind"
    return next(item for item in result.input if str(item.get("type")).endswith("_output"))


def test_a_long_output_of_an_older_turn_is_shortened() -> None:
    output = trim(make_conversation("x" * 1000))["output"]
    assert output == "[Trimmed: search output — 1000 chars → 200 char preview]\n" + "x" * 200 + "..."


def test_recent_and_short_outputs_stay() -> None:
    assert trim(make_conversation("x" * 1000), recent_turns=3)["output"] == "x" * 1000
    assert trim(make_conversation("x" * 500))["output"] == "x" * 500
    assert trim(make_conversation("abc" * 10), max_output_chars=10)["output"] == "abc" * 10  # the note is longer


def test_only_the_listed_tools_are_shortened() -> None:
    assert trim(make_conversation("x" * 1000), trimmable_tools="other")["output"] == "x" * 1000
    assert "Trimmed" in trim(make_conversation("x" * 1000), trimmable_tools=["search"])["output"]
    namespaced = make_conversation("x" * 1000, namespace="crm")
    assert "Trimmed: crm.search" in trim(namespaced, trimmable_tools=["crm.search"])["output"]


def test_texts_are_kept_before_images_which_are_dropped_and_counted() -> None:
    parts = [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": "data:" + "z" * 900}]
    output = trim(make_conversation(parts))["output"]
    assert output == "[Trimmed: search; payload 909; preview 4; dropped 1 input_image]\nseen"


@pytest.mark.parametrize("limit", [1, 9, 12, 21, 40, 70, 200])
@pytest.mark.parametrize("text", ["", "seen " * 200])
def test_a_summary_fits_the_limit_and_is_not_shortened_again(limit: int, text: str) -> None:
    parts: list[dict[str, Any]] = [{"type": "input_image", "image_url": "data:" + "z" * 900}]
    parts += [{"type": "input_text", "text": text}] if text else []
    items = make_conversation(parts)
    output = trim(items, max_output_chars=limit, preview_chars=20)["output"]
    assert len(output) <= limit
    assert "data:" not in output
    if text and limit >= 40:
        assert "seen seen seen seen " in output
    items[2]["output"] = output
    assert trim(items, max_output_chars=limit, preview_chars=20)["output"] == output


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "output_text", "text": "x" * 1000}],
        [{"type": "input_text", "text": "x" * 1000, "annotations": "y"}],
        [{"type": "input_image", "image_url": "x" * 1000, "detail": "sharp"}],
        ["x" * 1000],
    ],
)
def test_parts_that_are_not_known_stay(parts: list[Any]) -> None:
    assert trim(make_conversation(parts))["output"] == parts


def test_values_in_a_schema_keep_their_titles_and_descriptions() -> None:
    parameters = {
        "type": "object",
        "description": "d" * 900,
        "properties": {
            "report": {"type": "object", "title": "t", "default": {"title": "Untitled", "description": "auto"}},
            "kind": {"enum": [{"title": "A"}], "anyOf": [{"type": "string", "description": "prose"}]},
        },
        "$defs": {"description": {"type": "string", "title": "t"}},
        "x-tool": {"description": "data"},
    }
    tool = {"type": "function", "name": "f", "parameters": parameters}
    found = {"type": "tool_search_output", "call_id": None, "tools": [tool]}
    (short,) = trim([user("1"), found, user("2"), user("3")])["tools"]
    assert short["parameters"] == {
        "type": "object",
        "properties": {
            "report": {"type": "object", "default": {"title": "Untitled", "description": "auto"}},
            "kind": {"enum": [{"title": "A"}], "anyOf": [{"type": "string"}]},
        },
        "$defs": {"description": {"type": "string"}},
        "x-tool": {"description": "data"},
    }


def test_results_of_an_older_search_are_shortened() -> None:
    found = {"type": "tool_search_output", "call_id": "s1", "results": [{"text": "x" * 2000}]}
    (short,) = trim([user("1"), found, user("2"), user("3")])["results"]
    assert short["text"].startswith("[Trimmed: tool_search output")
    assert len(short["text"]) < 300


def test_bytes_are_no_names() -> None:
    with pytest.raises(ValueError, match="trimmable_tools"):
        ToolOutputTrimmer(trimmable_tools=b"search")  # type: ignore[arg-type]


def test_declarations_that_a_search_found_lose_their_prose() -> None:
    parameters = {"type": "object", "properties": {"q": {"type": "string", "description": "e" * 500}}}
    tool = {"type": "function", "name": "f", "description": "d" * 700, "parameters": parameters}
    found = {"type": "tool_search_output", "call_id": None, "tools": [tool]}
    (short,) = trim([user("1"), found, user("2"), user("3")])["tools"]
    assert short["description"] == "d" * 200 + "..."
    assert short["parameters"] == {"type": "object", "properties": {"q": {"type": "string"}}}


@pytest.mark.parametrize("options", [{"recent_turns": 0}, {"max_output_chars": 0}, {"preview_chars": -1}])
def test_impossible_limits_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ToolOutputTrimmer(**options)


async def test_a_run_shows_the_model_the_short_output_and_keeps_the_long_one() -> None:
    model = ScriptedModel([[assistant_message("ok")]])
    config = RunConfig(call_model_input_filter=ToolOutputTrimmer())
    result = await Runner.run(Agent("a", model=model), make_conversation("x" * 1000), run_config=config)
    assert "Trimmed" in model.calls[0].input[2]["output"]
    assert result.to_input_list()[2]["output"] == "x" * 1000
