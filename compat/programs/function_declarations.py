import json
from enum import Enum
from typing import Annotated, Any, Literal, Optional

from agents import RunContextWrapper, UserError, function_tool
from agents.function_schema import function_schema
from pydantic import BaseModel, Field


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    name: str
    children: list["Node"] = []


def sphinx(a: int, b: str = "x") -> None:
    """Do it.

    :param a: the first
    :param b: the second
    """


def numpy(a: int, b: float) -> None:
    """Do it.

    Parameters
    ----------
    a : int
        The first.
    b : float
        The second.
    """


def google(context: RunContextWrapper[Any], place: Annotated[str, "noted"], day: Literal["mon", "tue"] = "mon") -> None:
    """Do it.

    It takes long.

    Args:
        place: where,
            exactly
        day: when
    """


def kinds(color: Color, node: Node, limit: Optional[int] = None, *names: str) -> None: ...


def bounds(count: Annotated[int, Field(ge=1, le=9, description="how many")], text: str = Field("a", max_length=3)): ...


def open_fields(data: dict[str, Any]) -> None: ...


def variable(**more: int) -> None: ...


def late(a: int, context: RunContextWrapper[Any]) -> None: ...


for function in (sphinx, numpy, google, kinds, bounds, open_fields, variable, late):
    for strict in (True, False):
        try:
            schema = function_schema(function, strict_json_schema=strict)
        except UserError as error:
            print(function.__name__, strict, type(error).__mro__[-3].__name__ != "")
            continue
        print(function.__name__, schema.description, schema.takes_context, schema.strict_json_schema)
        print(json.dumps(schema.params_json_schema, sort_keys=True))
arguments = function_schema(kinds, strict_json_schema=False)
parsed = arguments.params_pydantic_model(color="red", node={"name": "n"}, names=["x", "y"])
print(arguments.to_call_args(parsed))
tool = function_tool(sphinx, name_override="other", description_override="Another.", strict_mode=False)
print(tool.name, tool.description, tool.strict_json_schema, json.dumps(tool.params_json_schema, sort_keys=True))
