"""The docstring parser, in three styles."""

from typing import Any

import pytest

from standfast.agents import function_schema
from standfast.agents.docstrings import parse_docstring


def google() -> None:
    """Find a thing.

    It looks everywhere,
    twice.

    Args:
        name: What to find,
            by its name.
        count (int): How many. Note: not more.
        **options: Anything else.

    Returns:
        What was found.
    """


def numpy() -> None:
    """Find a thing.

    It looks everywhere,
    twice.

    Parameters
    ----------
    name : str
        What to find,
        by its name.
    count : int, optional
        How many. Note: not more.
    **options
        Anything else.

    Returns
    -------
    str
        What was found.
    """


def sphinx() -> None:
    """Find a thing.

    It looks everywhere,
    twice.

    :param name: What to find,
        by its name.
    :param int count: How many. Note: not more.
    :param \\**options: Anything else.
    :type name: str
    :returns: What was found.
    """


@pytest.mark.parametrize("func", [google, numpy, sphinx], ids=lambda func: func.__name__)
@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "detected"])
def test_each_style_gives_the_same_documentation(func: Any, explicit: bool) -> None:
    parsed = parse_docstring(func, func.__name__ if explicit else None)
    assert parsed.description == "Find a thing.\n\nIt looks everywhere,\ntwice."
    assert parsed.parameters == {
        "name": "What to find,\nby its name.",
        "count": "How many. Note: not more.",
        "options": "Anything else.",
    }


def test_a_docstring_without_sections_is_the_description() -> None:
    def tool() -> None:
        """One line: with a colon, and :param in the middle."""

    assert parse_docstring(tool).description == "One line: with a colon, and :param in the middle."


def test_other_sections_are_left_out() -> None:
    def tool() -> None:
        """Do it.

        Note:
            Nothing of this.

        Raises:
            ValueError: never
        """

    assert parse_docstring(tool).description == "Do it."
    assert parse_docstring(tool).parameters == {}


def test_an_unknown_heading_is_part_of_the_description() -> None:
    def tool() -> None:
        """Do it.

        Beware:
            of the dog
        """

    assert parse_docstring(tool).description == "Do it.\n\nBeware:\n    of the dog"


def test_a_function_without_a_docstring_has_no_description() -> None:
    def tool(a: int) -> None: ...

    assert parse_docstring(tool).description is None
    assert parse_docstring(tool).parameters == {}


def test_the_docstring_can_be_left_out_and_the_description_replaced() -> None:
    def tool(name: str) -> None:
        """Secret.

        Args:
            name: Secret too.
        """

    silent = function_schema(tool, use_docstring_info=False)
    assert silent.description is None
    assert "description" not in silent.params_json_schema["properties"]["name"]
    assert function_schema(tool, description_override="Public.").description == "Public."
