"""Output schemas."""

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from standfast import AgentOutputSchema, InvalidDeclaration, ModelBehaviorError, UserError


class Answer(BaseModel):
    text: str
    score: float | None = None


class Pair(TypedDict):
    a: int


@dataclasses.dataclass
class Box:
    width: int


@pytest.mark.parametrize("kind", [None, str])
def test_plain_text_has_no_schema(kind: Any) -> None:
    schema = AgentOutputSchema(kind)
    assert schema.is_plain_text()
    with pytest.raises(ModelBehaviorError):
        schema.validate_json("not json")
    with pytest.raises(UserError, match="plain text"):
        schema.json_schema()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Answer, '{"text": "hi"}', Answer(text="hi")),
        (Pair, '{"a": 1}', {"a": 1}),
        (int, '{"response": 3}', 3),
        (list[Answer], '{"response": [{"text": "hi"}]}', [Answer(text="hi")]),
        (Box, '{"response": {"width": 2}}', Box(2)),
        (int | None, '{"response": null}', None),
    ],
    ids=str,
)
def test_a_type_is_parsed_from_the_response(kind: Any, text: str, value: Any) -> None:
    schema = AgentOutputSchema(kind)
    assert schema.validate_json(text) == value
    assert schema.json_schema()["type"] == "object"
    assert schema.json_schema()["additionalProperties"] is False
    assert schema.is_strict_json_schema()


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "Invalid JSON"), ("[]", "object"), ("{}", "text: Field required"), ('{"text": 1}', "text: ")],
)
def test_an_invalid_response_names_the_problem(text: str, problem: str) -> None:
    with pytest.raises(ModelBehaviorError, match=f"not a valid Answer: .*{problem}"):
        AgentOutputSchema(Answer).validate_json(text)


def test_names_are_those_of_the_types() -> None:
    assert AgentOutputSchema(Answer).name() == "Answer"
    assert AgentOutputSchema(list[int]).name() == "list[int]"


def test_arbitrary_keys_need_strictness_turned_off() -> None:
    with pytest.raises(UserError, match=r"output_type dict\[str, int\].*strict_json_schema=False"):
        AgentOutputSchema(dict[str, int])
    loose = AgentOutputSchema(dict[str, int], strict_json_schema=False)
    assert loose.validate_json('{"a": 1}') == {"a": 1}
    assert not loose.is_strict_json_schema()


def test_a_type_without_a_schema_is_rejected() -> None:
    class Opaque: ...

    with pytest.raises(InvalidDeclaration, match="Opaque has no JSON schema"):
        AgentOutputSchema(Opaque)


def test_schemas_equal_those_of_openai_agents() -> None:
    openai_agents = pytest.importorskip("agents")
    for kind in (Answer, Pair, int, list[Answer], Box, int | None):
        assert AgentOutputSchema(kind).json_schema() == openai_agents.AgentOutputSchema(kind).json_schema()
