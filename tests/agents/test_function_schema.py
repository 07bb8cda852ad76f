"""Schemas of Python functions, and calls with the arguments of a model."""

import asyncio
import contextvars
import dataclasses
import enum
import functools
import inspect
import threading
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from standfast import InvalidDeclaration, ModelBehaviorError, RunContextWrapper, ToolContext, UserError
from standfast.agents import function_schema
from standfast.agents.strict_schema import to_strict_schema


class Point(BaseModel):
    x: int
    y: float = 1.0
    note: str | None = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def properties(func: Any, **options: Any) -> dict[str, Any]:
    return function_schema(func, **options).params_json_schema["properties"]


def call(func: Any, arguments: str) -> Any:
    positional, named = (schema := function_schema(func, strict_json_schema=False)).to_call_args(
        schema.parse(arguments)
    )
    return func(*positional, **named)


def test_every_parameter_is_required_and_no_other_is_allowed() -> None:
    def tool(a: int, b: str = "x", c: float | None = None) -> None: ...

    schema = function_schema(tool).params_json_schema
    assert schema["required"] == ["a", "b", "c"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["c"] == {"anyOf": [{"type": "number"}, {"type": "null"}], "title": "C"}


def test_without_strictness_a_parameter_with_a_default_is_optional() -> None:
    def tool(a: int, b: str = "x") -> None: ...

    assert function_schema(tool, strict_json_schema=False).params_json_schema["required"] == ["a"]


def test_nested_models_are_strict_too() -> None:
    def tool(points: list[Point], by: Colour) -> None: ...

    schema = function_schema(tool).params_json_schema
    assert schema["$defs"]["Point"]["required"] == ["x", "y", "note"]
    assert schema["$defs"]["Point"]["additionalProperties"] is False


def test_a_reference_with_a_description_is_inlined() -> None:
    def tool(point: Annotated[Point, Field(description="where")]) -> None: ...

    point = properties(tool)["point"]
    assert point["description"] == "where"
    assert "$ref" not in point
    assert point["required"] == ["x", "y", "note"]


def test_a_recursive_type_stays_a_reference() -> None:
    class Tree(BaseModel):
        label: str
        left: Optional["Tree"] = Field(default=None, description="smaller")
        kids: list["Tree"] = []

    def tool(tree: Tree) -> None: ...

    tree = function_schema(tool).params_json_schema["$defs"]["Tree"]
    assert tree["required"] == ["label", "left", "kids"]
    assert tree["properties"]["kids"]["items"] == {"$ref": "#/$defs/Tree"}


def test_a_recursive_reference_with_siblings_is_not_expanded_forever() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node", "description": "the next one"}}}
    strict = to_strict_schema({"$defs": {"Node": node}, "$ref": "#/$defs/Node", "description": "a list"})
    assert strict["properties"]["next"] == {"$ref": "#/$defs/Node"}


def make_doubling_schema(levels: int) -> dict[str, Any]:
    """Return a short schema in which each level refers twice to the next."""
    pairs = {
        f"L{level}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/L{level + 1}", "description": side} for side in ("left", "right")},
        }
        for level in range(levels)
    }
    top = {"$ref": "#/$defs/L0", "description": "top"}
    return {"type": "object", "properties": {"x": top}, "$defs": pairs | {f"L{levels}": {"type": "string"}}}


def test_references_that_stand_for_more_and_more_are_not_expanded() -> None:
    assert to_strict_schema(make_doubling_schema(5))["properties"]["x"]["required"] == ["left", "right"]
    with pytest.raises(InvalidDeclaration, match="stand for more than 1000000 characters"):
        to_strict_schema(make_doubling_schema(16))
    words = {"enum": ["word"] * 1000}
    wide = {str(number): {"$ref": "#/$defs/W", "description": "one"} for number in range(1000)}
    with pytest.raises(InvalidDeclaration, match="stand for more than 1000000 characters"):
        to_strict_schema({"type": "object", "properties": wide, "$defs": {"W": words}})


def test_a_mapping_with_arbitrary_keys_cannot_be_strict_and_the_error_has_its_path() -> None:
    def tool(a: int, scores: dict[str, int]) -> None: ...

    with pytest.raises(UserError, match=r"tool\.scores.*strict_mode=False"):
        function_schema(tool)
    assert properties(tool, strict_json_schema=False)["scores"]["additionalProperties"] == {"type": "integer"}


def test_arbitrary_keyword_arguments_cannot_be_strict() -> None:
    def tool(**extra: str) -> None: ...

    with pytest.raises(UserError, match=r"\*\*extra"):
        function_schema(tool)


def test_keyword_arguments_beside_the_mapping_are_rejected() -> None:
    def tool(a: int, **extra: str) -> tuple[int, dict[str, str]]:
        return a, extra

    assert call(tool, '{"a": 1, "extra": {"b": "c"}}') == (1, {"b": "c"})
    with pytest.raises(ModelBehaviorError, match="b: Extra inputs"):
        call(tool, '{"a": 1, "b": "c"}')


def test_arguments_reach_parameters_of_every_kind() -> None:
    def tool(a: int, /, b: int, *rest: int, c: int, d: int = 4) -> list[int]:
        return [a, b, *rest, c, d]

    assert call(tool, '{"a": 1, "b": 2, "rest": [7, 8], "c": 3}') == [1, 2, 7, 8, 3, 4]


def test_parameters_may_have_names_that_pydantic_reserves() -> None:
    def tool(schema: str, copy: int, _hidden: int, model_config: bool) -> tuple[Any, ...]:
        return schema, copy, _hidden, model_config

    assert list(properties(tool)) == ["schema", "copy", "_hidden", "model_config"]
    assert call(tool, '{"schema": "s", "copy": 1, "_hidden": 2, "model_config": true}') == ("s", 1, 2, True)
    with pytest.raises(ModelBehaviorError, match="_hidden"):
        call(tool, '{"schema": "s", "copy": 1, "_hidden": "no", "model_config": true}')


def test_constraints_and_descriptions_come_from_annotations() -> None:
    def tool(
        a: Annotated[int, Field(ge=1, le=5, description="from the field")],
        b: Annotated[str, "from the text"],
        c: int = Field(default=3, description="from the default"),
        d: int = 0,
    ) -> None:
        """Do it.

        Args:
            d: from the docstring
        """

    parts = properties(tool)
    assert parts["a"] == {"description": "from the field", "maximum": 5, "minimum": 1, "title": "A", "type": "integer"}
    assert [part["description"] for part in parts.values()] == [
        "from the field",
        "from the text",
        "from the default",
        "from the docstring",
    ]
    assert parts["c"]["default"] == 3


def test_a_field_as_default_is_not_modified() -> None:
    shared = Field(default=3)

    def tool(a: int = shared) -> None:
        """Do it.

        Args:
            a: documented
        """

    assert properties(tool)["a"]["description"] == "documented"
    assert shared.description is None


def test_a_context_as_first_parameter_is_not_part_of_the_schema() -> None:
    def plain(ctx: RunContextWrapper[Any], a: int) -> None: ...
    def tool(ctx: ToolContext[dict[str, int]], a: int) -> None: ...
    def text(ctx: "ToolContext", a: int) -> None: ...
    def annotated(ctx: Annotated[ToolContext[Any], "the run"], a: int) -> None: ...
    def without(a: int) -> None: ...

    for func in (plain, tool, text, annotated):
        schema = function_schema(func)
        assert schema.takes_context
        assert list(schema.params_json_schema["properties"]) == ["a"]
    assert not function_schema(without).takes_context


def test_a_context_in_another_place_is_rejected() -> None:
    def tool(a: int, ctx: RunContextWrapper[Any]) -> None: ...

    with pytest.raises(UserError, match="first parameter, not 'ctx'"):
        function_schema(tool)


def test_an_unresolvable_annotation_is_named_in_the_error() -> None:
    def tool(a: "Nowhere") -> None: ...  # noqa: F821

    with pytest.raises(InvalidDeclaration, match=r"tool: the annotations cannot be resolved.*Nowhere"):
        function_schema(tool)


def test_a_type_without_a_schema_is_rejected() -> None:
    class Opaque: ...

    def tool(a: Opaque) -> None: ...

    with pytest.raises(InvalidDeclaration, match="without a JSON schema"):
        function_schema(tool)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "object"),
        ("{}", "a: Field required"),
        ('{"a": "x", "b": {"x": "y"}}', r"a: .*; b\.x: "),
    ],
)
def test_the_error_for_invalid_arguments_names_tool_and_problem(arguments: str, problem: str) -> None:
    def lookup(a: int, b: Point) -> None: ...

    with pytest.raises(ModelBehaviorError, match=f"invalid arguments for tool lookup: .*{problem}"):
        function_schema(lookup).parse(arguments)


def test_the_error_does_not_contain_the_invalid_value() -> None:
    def tool(a: int) -> None: ...

    with pytest.raises(ModelBehaviorError) as caught:
        function_schema(tool).parse('{"a": "my password"}')
    assert "my password" not in str(caught.value)


def test_empty_arguments_are_an_empty_object() -> None:
    def tool(a: int = 5) -> int:
        return a

    assert call(tool, "") == 5


def test_arguments_are_converted_to_the_annotated_types() -> None:
    @dataclasses.dataclass
    class Box:
        width: int

    class Label(TypedDict):
        text: str

    def tool(point: Point, box: Box, label: Label, colour: Colour, pair: tuple[int, str], some: set[int]) -> Any:
        return point, box, label, colour, pair, some

    assert call(
        tool,
        '{"point": {"x": 1}, "box": {"width": 2}, "label": {"text": "t"}, "colour": "red", "pair": [1, "a"],'
        ' "some": [1, 1]}',
    ) == (Point(x=1), Box(2), {"text": "t"}, Colour.RED, (1, "a"), {1})


def test_methods_partials_and_callable_objects_are_accepted() -> None:
    class Shop:
        def price(self, item: str) -> str:
            """What it costs."""
            return item

        def __call__(self, item: str) -> str:
            return item

    def full(item: str, count: int) -> str:
        return item * count

    assert function_schema(Shop().price).name == "price"
    assert list(properties(Shop().price)) == ["item"]
    assert function_schema(Shop()).name == "Shop"
    assert list(properties(Shop())) == ["item"]
    assert function_schema(functools.partial(full, count=2), strict_json_schema=False).name == "full"


async def test_a_sync_function_runs_in_a_thread_with_the_context_variables() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    user.set("ann")

    def tool() -> tuple[str, bool]:
        return user.get(), threading.current_thread() is threading.main_thread()

    assert await function_schema(tool).call(tool, None, "{}") == ("ann", False)


async def test_an_async_function_runs_in_the_calling_thread() -> None:
    async def tool(ctx: RunContextWrapper[str], a: int) -> tuple[str, int, bool]:
        await asyncio.sleep(0)
        return ctx.context, a, threading.current_thread() is threading.main_thread()

    assert await function_schema(tool).call(tool, RunContextWrapper("c"), '{"a": 1}') == ("c", 1, True)


KINDS = st.sampled_from([int, str, bool, float, Point, Colour, list[int], int | None, Literal["a", "b"], list[Point]])


@settings(max_examples=30)
@given(st.lists(KINDS, max_size=6), st.data())
def test_any_signature_has_a_strict_schema(kinds: list[Any], data: st.DataObject) -> None:
    names = [f"p{index}" for index in range(len(kinds))]

    def tool(**_: Any) -> None: ...

    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, 1, annotation=kind) for name, kind in zip(names, kinds, strict=True)]
    )
    tool.__annotations__ = dict(zip(names, kinds, strict=True))
    schema = function_schema(tool).params_json_schema
    assert_strict(schema)
    assert to_strict_schema(schema) == schema


def assert_strict(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            assert_strict(part)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object":
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    assert "$ref" not in schema or len(schema) == 1
    assert schema.get("default", 0) is not None
    for part in schema.values():
        assert_strict(part)
