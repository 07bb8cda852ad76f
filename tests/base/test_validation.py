import math
from functools import partial

import pytest

from standfast.agents.errors import InvalidDeclaration
from standfast.base.errors import InvalidInput
from standfast.base.validation import is_integer, is_number, validate_integer, validate_number


@pytest.mark.parametrize(("value", "expected"), [(0, True), (-3, True), (True, False), (1.0, False), ("1", False)])
def test_an_integer_is_an_int_but_not_a_bool(value, expected):
    assert is_integer(value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, True), (1.5, True), (True, False), (None, False), (math.nan, False), (math.inf, False), (10**400, False)],
)
def test_a_number_is_finite_and_not_a_bool(value, expected):
    assert is_number(value) is expected


@pytest.mark.parametrize(("value", "expected"), [(math.inf, True), (-math.inf, True), (math.nan, False)])
def test_infinity_is_a_number_only_on_request(value, expected):
    assert is_number(value, allow_infinity=True) is expected


def test_a_valid_value_is_returned_as_it_is():
    assert validate_integer("limit", 3, minimum=3, maximum=3) == 3
    assert validate_integer("limit", None, optional=True) is None
    assert validate_number("ttl", 0.5, above=0, maximum=0.5) == 0.5
    assert validate_number("ttl", None, optional=True) is None
    assert validate_number("deadline", math.inf, allow_infinity=True) == math.inf


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 6])
def test_an_integer_outside_of_its_bounds_is_refused_by_name(value):
    with pytest.raises(InvalidInput) as caught:
        validate_integer("limit", value, minimum=1, maximum=5)
    assert str(caught.value) == f"limit must be an integer >= 1 and <= 5, got {value!r}"


@pytest.mark.parametrize("value", [False, "1", 0, -1, math.nan, math.inf])
def test_a_number_outside_of_its_bounds_is_refused_by_name(value):
    with pytest.raises(InvalidInput) as caught:
        validate_number("ttl", value, above=0, optional=True)
    assert str(caught.value) == f"ttl must be a finite number > 0 or None, got {value!r}"


def test_without_bounds_the_message_names_only_the_type():
    with pytest.raises(InvalidInput, match=r"^deadline must be a number, got nan$"):
        validate_number("deadline", math.nan, allow_infinity=True)


def test_the_caller_chooses_the_error():
    with pytest.raises(InvalidDeclaration, match=r"tool 'pay'.*timeout must be a finite number > 0, got -1"):
        validate_number("timeout", -1, above=0, error=partial(InvalidDeclaration, "tool 'pay'"))
