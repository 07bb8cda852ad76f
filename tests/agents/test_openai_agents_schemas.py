"""Schemas equal those that openai-agents makes of the same functions, except for the differences listed here."""

import datetime
import enum
import uuid
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from standfast.agents import function_schema

openai_agents = pytest.importorskip("agents.function_schema")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """A place."""

    x: int
    y: float = 1.0
    note: str | None = None


class Line(BaseModel):
    start: Point = Field(description="where it begins")
    points: list[Point] = []
    next: Optional["Line"] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    bark: str


class Settings(TypedDict):
    level: int


def nothing() -> None:
    """Do nothing."""


def scalars(a: int, b: str, c: bool, d: float) -> None: ...
def defaults(a: int = 1, b: str = "x", c: list[int] = [1, 2], d: Point = Point(x=1)) -> None: ...  # noqa: B006, B008
def optional(a: int | None, b: Optional[str] = None) -> None: ...  # noqa: UP045
def untyped(a, b=3) -> None: ...  # type: ignore[no-untyped-def]
def literals(a: Literal["a", "b"], b: Literal[1, 2] = 1) -> None: ...
def enums(a: Colour, b: Colour = Colour.RED) -> None: ...
def unions(a: int | str | Point, b: list[int | str]) -> None: ...
def models(a: Point, b: list[Point], c: dict[str, int] | None = None) -> None: ...
def nested(a: Line) -> None: ...
def described(a: Annotated[Point, Field(description="the place")], b: Annotated[str, "text"]) -> None: ...
def constrained(a: Annotated[int, Field(ge=1, le=5)], b: Annotated[list[int], Field(min_length=1)]) -> None: ...
def field_default(a: int = Field(default=3, gt=0, description="how many")) -> None: ...
def containers(a: tuple[int, str], b: set[int], c: tuple[int, ...]) -> None: ...
def discriminated(a: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...
def typed_dicts(a: Settings) -> None: ...
def dates(a: datetime.datetime, b: datetime.date, c: uuid.UUID, d: datetime.timedelta) -> None: ...
def any_kind(a: Any, b: object = None) -> None: ...
def kinds(a: int, /, b: int, *, c: int = 1) -> None: ...
def variadic(*numbers: int) -> None: ...
def arbitrary_keys(a: dict[str, int]) -> None: ...
def keywords(a: int, **extra: str) -> None: ...


def documented(name: str, count: int = 1) -> None:
    """Find a thing.

    It looks everywhere.

    Args:
        name: What to find,
            by its name.
        count (int): How many.

    Returns:
        What was found.
    """


FUNCTIONS = [
    nothing,
    scalars,
    defaults,
    optional,
    untyped,
    literals,
    enums,
    unions,
    nested,
    described,
    constrained,
    field_default,
    containers,
    discriminated,
    typed_dicts,
    dates,
    any_kind,
    kinds,
    variadic,
    documented,
]


@pytest.mark.parametrize("func", FUNCTIONS, ids=lambda func: func.__name__)
def test_a_strict_schema_equals_that_of_openai_agents(func: Any) -> None:
    ours, theirs = function_schema(func), openai_agents.function_schema(func)
    assert ours.params_json_schema == theirs.params_json_schema
    assert (ours.name, ours.description) == (theirs.name, theirs.description)


@pytest.mark.parametrize("func", [*FUNCTIONS, models, arbitrary_keys, keywords], ids=lambda func: func.__name__)
def test_a_schema_that_is_not_strict_equals_that_of_openai_agents(func: Any) -> None:
    ours = function_schema(func, strict_json_schema=False)
    assert ours.params_json_schema == openai_agents.function_schema(func, strict_json_schema=False).params_json_schema


@pytest.mark.parametrize("func", [models, arbitrary_keys, keywords], ids=lambda func: func.__name__)
def test_what_openai_agents_rejects_in_strict_mode_is_rejected(func: Any) -> None:
    with pytest.raises(Exception, match=r"."):
        openai_agents.function_schema(func)
    with pytest.raises(TypeError, match="strict"):
        function_schema(func)


def test_reserved_names_that_openai_agents_rejects_are_accepted() -> None:
    def tool(_hidden: int, model_config: str) -> None: ...

    with pytest.raises(Exception, match=r"."):
        openai_agents.function_schema(tool)
    assert list(function_schema(tool).params_json_schema["properties"]) == ["_hidden", "model_config"]
