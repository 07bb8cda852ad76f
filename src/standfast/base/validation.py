"""Checks of numbers that a caller passes.

``bool`` is a subclass of ``int``, so ``True`` passes ``isinstance(value, int)``. Every check here refuses it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeGuard, overload

from standfast.base.errors import InvalidInput

ErrorFactory = Callable[[str], Exception]


def is_integer(value: object) -> TypeGuard[int]:
    """Return True for an ``int`` that is not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object, *, allow_infinity: bool = False) -> TypeGuard[float]:
    """Return True for an ``int`` or ``float`` that is not a ``bool`` and not NaN.

    Infinity is refused unless ``allow_infinity`` is set, and so is an integer that is too large for a ``float``.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value) or (allow_infinity and not math.isnan(value))
    except OverflowError:
        return False


@overload
def validate_integer(
    name: str,
    value: object,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    optional: Literal[False] = False,
    error: ErrorFactory = InvalidInput,
) -> int: ...
@overload
def validate_integer(
    name: str,
    value: object,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    optional: Literal[True],
    error: ErrorFactory = InvalidInput,
) -> int | None: ...
def validate_integer(
    name: str,
    value: object,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    optional: bool = False,
    error: ErrorFactory = InvalidInput,
) -> int | None:
    """Return ``value`` if it is an integer within the bounds, or raise ``error`` with a message that names it.

    The bounds are inclusive. With ``optional``, ``None`` is valid too.
    """
    if value is None and optional:
        return None
    if is_integer(value) and (minimum is None or value >= minimum) and (maximum is None or value <= maximum):
        return value
    bounds = {">=": minimum, "<=": maximum}
    raise error(_describe_problem(name, "an integer", bounds, value, optional=optional))


@overload
def validate_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    allow_infinity: bool = False,
    optional: Literal[False] = False,
    error: ErrorFactory = InvalidInput,
) -> float: ...
@overload
def validate_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    allow_infinity: bool = False,
    optional: Literal[True],
    error: ErrorFactory = InvalidInput,
) -> float | None: ...
def validate_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    allow_infinity: bool = False,
    optional: bool = False,
    error: ErrorFactory = InvalidInput,
) -> float | None:
    """Return ``value`` if it is a number within the bounds, or raise ``error`` with a message that names it.

    ``above`` is an exclusive bound, ``minimum`` and ``maximum`` are inclusive. Infinity is valid only with
    ``allow_infinity``, ``None`` only with ``optional``, NaN never.
    """
    if value is None and optional:
        return None
    if (
        is_number(value, allow_infinity=allow_infinity)
        and (above is None or value > above)
        and (minimum is None or value >= minimum)
        and (maximum is None or value <= maximum)
    ):
        return value
    kind = "a number" if allow_infinity else "a finite number"
    bounds = {">": above, ">=": minimum, "<=": maximum}
    raise error(_describe_problem(name, kind, bounds, value, optional=optional))


def _describe_problem(
    name: str, kind: str, bounds: Mapping[str, float | None], value: object, *, optional: bool
) -> str:
    limits = " and ".join(f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None)
    expected = f"{kind} {limits}" if limits else kind
    return f"{name} must be {expected}{' or None' if optional else ''}, got {value!r}"
