"""Arguments are checked before anyone decides about a call, and everybody sees the values that the tool will get."""

import functools
import json
import re
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field

from standfast import (
    Agent,
    FunctionTool,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    UserError,
    function_tool,
    tool_input_guardrail,
)
from standfast.testing import ScriptedModel, assistant_message, function_call


class Refunds:
    """A tool, the person's rule about it, and what each of them saw."""

    def __init__(self, **options: Any) -> None:
        self.made: list[Any] = []
        self.judged: list[Any] = []
        self.guarded: list[Any] = []

        def is_large(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
            self.judged.append(arguments)
            return isinstance(arguments["amount"], int | float) and arguments["amount"] > 100

        @tool_input_guardrail
        def look(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
            self.guarded.append(json.loads(data.context.tool_arguments))
            return ToolGuardrailFunctionOutput.allow()

        @function_tool(needs_approval=is_large, tool_input_guardrails=[look], **options)
        async def refund(order: str, amount: float, force: bool = False) -> str:
            self.made.append((order, amount, force))
            return "refunded"

        self.tool = refund


async def call_with(tool: FunctionTool, arguments: str) -> Any:
    steps = [[function_call(tool.name, arguments, call_id="1")], [assistant_message("ok")]]
    return await Runner.run(Agent("a", tools=[tool], model=ScriptedModel(steps)), "q")


def refusal(result: Any) -> str:
    return str(next(item.output for item in result.new_items if item.type == "tool_call_output_item"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"order": "A", "amount": "50000"}', "amount: Input should be a valid number"),
        ('{"order": "A", "amount": "inf"}', "amount: Input should be a valid number"),
        ('{"order": "A", "amount": Infinity}', "Invalid JSON"),
        ('{"order": "A", "amount": NaN}', "Invalid JSON"),
        ('{"order": "A", "amount": 1e999}', "Invalid JSON"),
        ('{"order": "A", "amount": true}', "amount"),
        ('{"order": 7, "amount": 5}', "order"),
        ('{"order": "A", "amount": 5, "force": "yes"}', "force"),
        ('{"order": "A", "amount": 5, "force": 1}', "force"),
        ('{"order": "A", "amount": 5, "forced": true}', "forced"),
        ('{"order": "A"}', "amount: Field required"),
        ("[1]", "a JSON object is expected"),
        ("{oops", "Invalid JSON"),
    ],
)
async def test_invalid_arguments_are_refused_before_an_approval_is_requested(arguments: str, reason: str) -> None:
    refunds = Refunds()
    result = await call_with(refunds.tool, arguments)
    assert reason in refusal(result)
    assert (refunds.made, refunds.judged, refunds.guarded, result.interruptions) == ([], [], [], [])
    assert result.final_output == "ok"


async def test_the_rule_and_the_guardrail_see_the_values_that_the_tool_gets() -> None:
    refunds = Refunds()
    await call_with(refunds.tool, '{"order": "A", "amount": 5}')
    seen = {"order": "A", "amount": 5, "force": False}
    assert (refunds.judged, refunds.guarded, refunds.made) == ([seen], [seen], [("A", 5.0, False)])


async def test_a_lenient_tool_converts_first_and_checks_the_result() -> None:
    refunds = Refunds(strict_mode=False)
    result = await call_with(refunds.tool, '{"order": "A", "amount": "50000", "note": "?"}')
    assert refunds.judged == [{"order": "A", "amount": 50000.0, "force": False}]
    assert json.loads(result.interruptions[0].arguments)["amount"] == 50000.0
    assert refunds.made == []
    state = result.to_state()
    state.approve(state.get_interruptions()[0])
    await Runner.run(state.agent, state)
    assert refunds.made == [("A", 50000.0, False)]


async def test_a_lenient_tool_takes_no_infinite_number() -> None:
    refunds = Refunds(strict_mode=False)
    assert "infinite" in refusal(await call_with(refunds.tool, '{"order": "A", "amount": "inf"}'))
    assert refunds.made == []


async def test_a_person_sees_what_the_validators_of_the_tool_make_of_the_arguments() -> None:
    made: list[int] = []

    @function_tool(needs_approval=True)
    async def pay(amount: Annotated[int, AfterValidator(lambda euros: euros * 100)]) -> str:
        made.append(amount)
        return "paid"

    result = await call_with(pay, '{"amount": 5}')
    assert json.loads(result.interruptions[0].arguments) == {"amount": 500}
    state = result.to_state()
    state.approve(state.get_interruptions()[0])
    await Runner.run(state.agent, state)
    assert made == [500]


async def test_a_field_of_a_nested_model_that_is_unknown_is_refused() -> None:
    class Address(BaseModel):
        city: str

    @function_tool
    def ship(to: Address) -> str:
        return to.city

    assert "to.zip" in refusal(await call_with(ship, '{"to": {"city": "Ulm", "zip": "1"}}'))
    assert refusal(await call_with(ship, '{"to": {"city": "Ulm"}}')) == "Ulm"


def handmade(schema: dict[str, Any], *, strict: bool = False) -> tuple[FunctionTool, list[str]]:
    made: list[str] = []

    async def invoke(context: Any, arguments: str) -> str:
        made.append(arguments)
        return "made"

    return FunctionTool("pay", "", schema, invoke, strict_json_schema=strict, needs_approval=True), made


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "number"}, "5", "is not of type 'number'"),
        ({"type": "number", "maximum": 100}, 101, "maximum"),
        ({"type": "number", "minimum": 1}, 0, "minimum"),
        ({"type": "string", "pattern": "^[A-Z]+$"}, "abc", "does not match"),
        ({"type": "string", "maxLength": 2}, "abc", "is too long"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, [], "non-empty|too short"),
        ({"type": "string", "enum": ["a"]}, "b", "is not one of"),
    ],
)
async def test_a_schema_written_by_hand_is_checked_completely(schema: Any, value: Any, reason: str) -> None:
    tool, made = handmade({"type": "object", "properties": {"x": schema}, "required": ["x"]})
    result = await call_with(tool, json.dumps({"x": value}))
    assert re.search(reason, refusal(result))
    assert (made, result.interruptions) == ([], [])


MONEY = {"type": "number", "maximum": 100}
TREE = {"type": "object", "properties": {"child": {"$ref": "#/$defs/tree"}}}
NESTED = functools.reduce(lambda inner, _: {"child": inner}, range(300), {})
DISTRACTIONS: dict[str, tuple[Any, Any]] = {
    "very many items": ({"type": "array", "items": {"type": "integer"}}, [1] * 100_000),
    "nested deeply": ({"$ref": "#/$defs/tree"}, NESTED),
    "a number that no float holds": ({"type": "number", "multipleOf": 0.01}, 10**400),
    "another document": ({"$ref": "http://127.0.0.1:9/schema.json"}, 1),
    "an unknown type": ({"type": "strng"}, "a"),
    "a broken keyword": ({"required": 5}, {}),
    "equal items of a long list": ({"uniqueItems": True}, [{"n": n} for n in range(4000)] + [{"n": 0}]),
    "a long list of alternatives": ({"items": {"enum": [{"n": n} for n in range(5000)]}}, [{"n": -1}] * 100),
    "alternatives for a long text": ({"anyOf": [{"type": "null"}] * 5000}, "x" * 100_000),
    "a costly pattern": ({"pattern": "^(?:[\\s\\S]{1000})b$"}, "a" * 100_000),
}


@pytest.mark.parametrize("distraction", DISTRACTIONS)
async def test_nothing_in_the_arguments_has_the_others_pass_unchecked(distraction: str) -> None:
    other, value = DISTRACTIONS[distraction]
    schema = {"type": "object", "properties": {"other": other, "amount": MONEY}, "$defs": {"tree": TREE}}
    tool, made = handmade(schema)
    result = await call_with(tool, json.dumps({"other": value, "amount": 50_000}))
    assert "invalid arguments for tool pay" in refusal(result)
    assert (made, result.interruptions) == ([], [])


@pytest.mark.parametrize("others", [False, {"type": "boolean"}])
async def test_fields_are_checked_by_the_pattern_of_their_names(others: Any) -> None:
    patterns = {"^n_": {"type": "integer"}, "^(a+)+$": {"type": "string"}, "(?=z)": {"type": "null"}}
    known = {"patternProperties": {name: patterns[name] for name in ("^n_", "^(a+)+$")}, "additionalProperties": others}
    tool, _ = handmade({"type": "object", "properties": {"x": {}}, **known})
    for wrong in ({"n_1": "1"}, {"aa": 1}, {"other": 1}, {"x": 1, "a" * 60 + "!": 1}):
        assert "invalid arguments" in refusal(await call_with(tool, json.dumps(wrong)))
    assert len((await call_with(tool, '{"n_1": 1, "aa": "b", "x": []}')).interruptions) == 1
    tool, _ = handmade({"type": "object", "patternProperties": patterns, "additionalProperties": others})
    assert len((await call_with(tool, '{"other": 1}')).interruptions) == 1, "it may match the pattern with look-around"


async def test_a_hostile_pattern_takes_no_time_and_other_documents_are_not_loaded() -> None:
    slow = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
    tool, _ = handmade(slow)
    assert "does not match" in refusal(await call_with(tool, json.dumps({"x": "a" * 60 + "!"})))
    remote = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    tool, _ = handmade(remote)
    assert len((await call_with(tool, '{"x": 1}')).interruptions) == 1


@pytest.mark.parametrize("strict", [True, False])
async def test_edited_arguments_may_not_have_unknown_fields(strict: bool) -> None:
    @function_tool(needs_approval=True, strict_mode=strict)
    async def pay(x: Annotated[int, Field(le=100)]) -> str:
        return "paid"

    state = (await call_with(pay, '{"x": 1}')).to_state()
    item = state.get_interruptions()[0]
    for edited in ({"x": 1, "y": 2}, {"x": 101}, {"x": float("nan")}, {}):
        with pytest.raises(UserError, match=r"pay|JSON"):
            state.approve(item, arguments=edited)
    state.approve(item, arguments={"x": 2})
    assert refusal(await Runner.run(state.agent, state)) == "paid"


@pytest.mark.parametrize("strict", [True, False])
async def test_edited_arguments_may_leave_out_what_has_a_default_as_those_of_a_model_may(strict: bool) -> None:
    class Part(BaseModel):
        name: str
        count: int = 1

    made = []

    @function_tool(needs_approval=True, strict_mode=strict)
    async def pay(x: int, parts: list[Part], note: str = "none", bonus: Part | None = None) -> str:
        made.append((x, [(part.name, part.count) for part in parts], note, bonus))
        return "paid"

    state = (await call_with(pay, '{"x": 1, "parts": [{"name": "a"}]}')).to_state()
    item = state.get_interruptions()[0]
    for wrong in (
        {"x": "2", "parts": []},
        {"x": 2},
        {"x": 2, "parts": [{}]},
        {"x": 2, "parts": [{"name": "b", "y": 1}]},
    ):
        with pytest.raises(UserError, match="pay"):
            state.approve(item, arguments=wrong)
    state.approve(item, arguments={"x": 2, "parts": [{"name": "b"}]})
    await Runner.run(state.agent, state)
    assert made == [(2, [("b", 1)], "none", None)]


async def test_edited_arguments_of_a_tool_with_free_fields_may_have_any() -> None:
    tool, made = handmade({"type": "object", "properties": {}, "additionalProperties": True})
    state = (await call_with(tool, "{}")).to_state()
    state.approve(state.get_interruptions()[0], arguments={"y": 2})
    await Runner.run(state.agent, state)
    assert made == ['{"y": 2}']


X = {"x": {"type": "integer"}}
DECLARING = {
    "more allowed": {"type": "object", "properties": X, "additionalProperties": True},
    "alternatives": {"type": "object", "properties": X, "anyOf": [{"required": ["x"]}, {"required": ["z"]}]},
    "combined": {"type": "object", "properties": X, "allOf": [{"properties": {"z": {}}}]},
    "conditional": {"type": "object", "properties": X, "if": {"required": ["x"]}, "then": {}},
    "reference": {"$ref": "#/definitions/A", "definitions": {"A": {"type": "object", "properties": X}}},
}


@pytest.mark.parametrize("schema", DECLARING.values(), ids=DECLARING)
async def test_edited_arguments_may_not_have_unknown_fields_wherever_the_fields_are_declared(schema: Any) -> None:
    tool, made = handmade(schema)
    state = (await call_with(tool, '{"x": 1}')).to_state()
    with pytest.raises(UserError, match="y: the tool has no such argument"):
        state.approve(state.get_interruptions()[0], arguments={"x": 1, "y": 2})
    state.approve(state.get_interruptions()[0], arguments={"x": 2})
    await Runner.run(state.agent, state)
    assert made == ['{"x": 2}']


async def test_unknown_fields_are_found_in_nested_objects_and_lists() -> None:
    inner = {"type": "object", "properties": X}
    tool, _ = handmade({"type": "object", "properties": {"a": inner, "b": {"type": "array", "items": inner}}})
    state = (await call_with(tool, "{}")).to_state()
    for edited, path in (({"a": {"y": 1}}, "a.y"), ({"b": [{"x": 1}, {"y": 1}]}, "b.y")):
        with pytest.raises(UserError, match=path):
            state.approve(state.get_interruptions()[0], arguments=edited)
    state.approve(state.get_interruptions()[0], arguments={"a": {"x": 1}, "b": [{"x": 1}]})


async def test_a_schema_of_references_that_double_each_other_takes_no_time(caplog) -> None:
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    tool, made = handmade({"$ref": "#/$defs/d0", "$defs": {**doubled, "d30": {"type": "object"}}})
    state = (await call_with(tool, '{"x": "secret-words"}')).to_state()
    state.approve(state.get_interruptions()[0], arguments={"x": "secret-words"})
    await Runner.run(state.agent, state)
    assert made == ['{"x": "secret-words"}']
    assert "it takes too long to evaluate" in caplog.text
    assert "secret-words" not in caplog.text


async def test_the_log_about_a_broken_schema_has_no_arguments(caplog) -> None:
    tool, _ = handmade({"type": "strin"})
    await call_with(tool, '{"x": "secret-words"}')
    assert "Unknown type 'strin'" in caplog.text
    assert "secret-words" not in caplog.text


async def test_arguments_are_parsed_once_for_a_call_that_needs_no_decision() -> None:
    parsed: list[int] = []

    def note(euros: int) -> int:
        parsed.append(euros)
        return euros

    @function_tool
    async def pay(amount: Annotated[int, AfterValidator(note)]) -> str:
        return f"paid {amount}"

    assert refusal(await call_with(pay, '{"amount": 3}')) == "paid 3"
    assert parsed == [3]


async def test_a_call_that_is_made_again_does_not_see_what_the_first_one_did_to_its_arguments() -> None:
    seen: list[list[str]] = []

    @function_tool(failure_error_function=None, on_uncertain="retry")
    async def send(names: list[str]) -> str:
        seen.append(list(names))
        names.clear()
        if len(seen) == 1:
            raise ConnectionError("try again")
        return "sent"

    steps = [[function_call("send", '{"names": ["Ann"]}', call_id="1")], [assistant_message("ok")]]
    agent = Agent("a", tools=[send], model=ScriptedModel(steps))
    with pytest.raises(UserError) as raised:
        await Runner.run(agent, "q")
    result = await Runner.run(agent, raised.value.run_data.state)  # type: ignore[union-attr]
    assert result.final_output == "ok"
    assert seen == [["Ann"], ["Ann"]]
