"""Arguments of tool calls are checked before anyone decides about them: by the tool's types or by its JSON schema.

The schema may come from a server, and the arguments come from a model. Neither can stop the program, and neither can
have the checks of the other one skipped: a part of a schema that is broken is ignored by itself, and arguments that
take too long to evaluate are refused.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from standfast.agents.errors import InvalidArguments
from standfast.agents.tool_arguments import ParsedArguments, load_arguments
from standfast.agents.tools import FunctionTool
from standfast.base.log import get_logger

_log = get_logger("standfast.tools")

_MAX_VALUE_LENGTH = 80
# The cost of one call, in evaluated keywords, of which twenty thousand take about a second. References are slow, and
# a few that double each other are billions.
_MAX_COST = 20_000
# Keywords inside of each other, each of which takes several frames of Python.
_MAX_DEPTH = 80
_REFERENCE_COST = 10
# What costs as much as a keyword: entries of a list in the schema, characters that an error would show, characters of a
# text times repetitions in the pattern that it is matched with.
_ENTRIES, _CHARACTERS, _PATTERN_STEPS = 10, 5_000, 400
_MAX_REPETITIONS = 1_000
_REPETITION = re.compile(r"\{(\d*),?(\d*)\}")
_KEY_PATTERNS = "standfast:patterns"


class TooCostly(Exception):
    """The arguments cannot be checked in a reasonable time."""


class WorkBudget:
    """What may still be evaluated for one call."""

    def __init__(self, values: Any) -> None:
        self._left, self._depth = _MAX_COST, 0
        self._sizes: dict[int, int] = {}
        self._measure(values)

    def spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise TooCostly("it takes too long to evaluate")

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a keyword that is evaluated inside of another one."""
        if self._depth >= _MAX_DEPTH:
            raise TooCostly("it is nested too deeply")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def get_size(self, value: Any) -> int:
        """Return about how many characters the value has as text."""
        return len(value) if isinstance(value, str) else self._sizes.get(id(value), 1)

    def _measure(self, value: Any) -> int:
        if isinstance(value, Mapping):
            self._sizes[id(value)] = size = sum(len(name) + self._measure(part) for name, part in value.items()) + 1
        elif isinstance(value, list):
            self._sizes[id(value)] = size = sum(map(self._measure, value)) + len(value) + 1
        else:
            size = self.get_size(value)
        return size


_budget: ContextVar[WorkBudget] = ContextVar("standfast_schema_budget")


def find_schema_error(values: Any, schema: Mapping[str, Any]) -> str | None:
    """Return where and why the values violate the JSON schema, or ``None``.

    Parts of the schema that are broken or refer to other documents, which are not loaded, are ignored and logged.
    Values for which the evaluation takes too long are an error. A schema that takes too long for an empty object is
    ignored and logged.
    """
    try:
        validator = _make_validator(schema)
    except Exception as broken:  # noqa: BLE001 - the schema may come from a server
        _log_broken(broken)
        return None
    try:
        error = _find_error(validator, values)
    except TooCostly as problem:
        try:
            _find_error(validator, {})
        except TooCostly:
            _log_broken(problem)
            return None
        return f"$: the arguments cannot be checked: {problem}"
    if error is None:
        return None
    message = error.message if len(error.message) < 4 * _MAX_VALUE_LENGTH else f"violates {error.validator!r}"
    return f"{error.json_path}: {message}"


def _find_error(validator: Any, values: Any) -> Any:
    """Return the most relevant error, if there is one. Raises :class:`TooCostly`."""
    from jsonschema.exceptions import best_match

    try:
        _budget.set(WorkBudget(values))
        return best_match(validator.iter_errors(values))
    except (RecursionError, OverflowError) as problem:
        raise TooCostly(_describe(problem)) from None
    except BaseException as problem:
        # A library in Rust panics when it reaches the end of Python's stack.
        if type(problem).__name__ != "PanicException":
            raise
        raise TooCostly("it is nested too deeply") from None


def _log_broken(problem: Exception) -> None:
    _log.warning("a tool's JSON schema cannot be used, so arguments are not checked: %s", _describe(problem))


def _describe(problem: Exception) -> str:
    """Return the first line of a message: the others may contain the arguments."""
    return str(problem).partition("\n")[0][: 4 * _MAX_VALUE_LENGTH]


def _make_validator(schema: Mapping[str, Any]) -> Any:
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    kind = _extend_validator(validator_for(schema))
    return kind(_move_key_patterns(schema), registry=REGISTRY)  # this registry loads nothing


@functools.cache
def _extend_validator(kind: Any) -> Any:
    from jsonschema import validators

    keywords = {
        **kind.VALIDATORS,
        "pattern": _check_pattern,
        "uniqueItems": _check_unique_items,
        _KEY_PATTERNS: _check_key_patterns,
    }
    costs = dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), _REFERENCE_COST)
    return validators.extend(kind, {name: _guard(name, check, costs.get(name, 1)) for name, check in keywords.items()})


def _guard(name: str, check: Callable[..., Any], cost: int) -> Callable[..., Any]:
    """Return a keyword's check that spends the budget, and that finds nothing where the keyword is broken."""

    def check_within_budget(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        budget = _budget.get()
        entries = len(value) if isinstance(value, list | Mapping) else 0
        entries = entries if name == "enum" else entries // _ENTRIES  # each of which is compared
        budget.spend(cost + entries + budget.get_size(instance) // _CHARACTERS)
        try:
            with budget.enter():
                yield from check(validator, value, instance, schema) or ()
        except (TooCostly, RecursionError, OverflowError):
            raise
        except Exception as broken:  # noqa: BLE001 - the schema may come from a server
            _log.warning("a tool's JSON schema has a part that is ignored: %s: %s", name, _describe(broken))

    return check_within_budget


def _check_unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Compare all items in linear time."""
    from jsonschema.exceptions import ValidationError

    if unique and isinstance(instance, list):
        _budget.get().spend(len(instance))
        if len(set(map(_make_comparable, instance))) < len(instance):
            yield ValidationError("it has an item twice")


def _make_comparable(value: Any) -> Any:
    """Return a hashable that is equal for values that JSON Schema calls equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _make_comparable(part)) for name, part in value.items())
    return ("array", *map(_make_comparable, value)) if isinstance(value, list) else (isinstance(value, bool), value)


def _check_pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check a pattern in linear time. One that cannot be, such as one with look-around, is left to the tool."""
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _matches(pattern, instance, otherwise=True):
        yield ValidationError(f"{instance[:_MAX_VALUE_LENGTH]!r} does not match {pattern!r}")


def _matches(pattern: str, text: str, *, otherwise: bool) -> bool:
    compiled = _compile_pattern(pattern)
    if compiled is None:
        return otherwise
    match, repetitions = compiled
    _budget.get().spend(len(text) * repetitions // _PATTERN_STEPS)
    return match(text)


@functools.lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> tuple[Callable[[str], bool], int] | None:
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    counts = (max(map(int, filter(None, found)), default=1) for found in _REPETITION.findall(pattern))
    repetitions = math.prod(itertools.islice((max(count, 1) for count in counts), 100))
    if repetitions > _MAX_REPETITIONS:
        return None
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
    return lambda text: bool(validator.isinstance_python(text)), repetitions


def _move_key_patterns(schema: Any) -> Any:
    """Put patterns of property names under another keyword: the library would match them with Python's ``re``.

    A hostile pattern takes that for ever. What else would match them is removed.
    """
    if isinstance(schema, list):
        return [_move_key_patterns(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    part = {name: _move_key_patterns(value) for name, value in schema.items()}
    if isinstance(part.get("patternProperties"), dict):
        part[_KEY_PATTERNS] = {
            "patterns": part.pop("patternProperties"),
            "others": part.pop("additionalProperties", True),
        }
        part.pop("unevaluatedProperties", None)
    return part


def _check_key_patterns(validator: Any, rules: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check ``patternProperties``, and ``additionalProperties`` beside them."""
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    for name, value in instance.items():
        fitting = [part for pattern, part in rules["patterns"].items() if _matches(pattern, name, otherwise=False)]
        unclear = any(_compile_pattern(pattern) is None for pattern in rules["patterns"])
        for part in fitting:
            yield from validator.descend(value, part, path=name)
        if fitting or unclear or name in (schema.get("properties") or ()) or rules["others"] is True:
            continue
        if rules["others"] is False:
            yield ValidationError(f"the field {name[:_MAX_VALUE_LENGTH]!r} is not allowed")
        else:
            yield from validator.descend(value, rules["others"], path=name)


def parse_arguments(tool: FunctionTool, text: str, *, edited: bool = False) -> ParsedArguments:
    """Return the arguments as the tool will get them; raise :class:`InvalidArguments` if they do not fit the tool.

    Arguments that a person ``edited`` must not have fields that the schema does not declare, even if it allows them:
    such a field is probably misspelt.
    """
    values = load_arguments(tool.name, text)
    parser, schema = tool.arguments_parser, tool.params_json_schema
    if parser is not None and not parser.fits(schema):
        parser = None
    parsed = ParsedArguments(text, values, values) if parser is None else parser.parse(text, values)
    if edited or parser is None:
        # The schema of a strict tool requires every field; what the tool's types fill in need not be written.
        problem = find_schema_error(_fill_in(values, parsed.values), schema)
        if problem is not None:
            raise InvalidArguments(tool.name, problem)
    if edited and (name := find_undeclared_field(values, schema)) is not None:
        raise InvalidArguments(tool.name, f"{name}: the tool has no such argument")
    return parsed


def _fill_in(written: Any, values: Any) -> Any:
    """Return the written JSON value with the fields of objects that only ``values`` has."""
    if isinstance(written, dict) and isinstance(values, dict):
        return {**values, **{name: _fill_in(value, values.get(name)) for name, value in written.items()}}
    if isinstance(written, list) and isinstance(values, list) and len(written) == len(values):
        return [_fill_in(value, filled) for value, filled in zip(written, values, strict=True)]
    return written


def find_undeclared_field(values: Any, schema: Mapping[str, Any]) -> str | None:
    """Return the path of a field that no part of the schema declares, or ``None``.

    An object whose schema declares no properties may have any, and so may one that has a schema or a pattern for more.
    """
    return _find_undeclared(values, [schema], schema)


def _find_undeclared(values: Any, parts: list[Any], root: Mapping[str, Any]) -> str | None:
    if isinstance(values, list):
        inner_parts = [part["items"] for part in _resolve_parts(parts, root) if "items" in part]
        found = (_find_undeclared(value, inner_parts, root) for value in values)
        return next((path for path in found if path is not None), None)
    resolved = _resolve_parts(parts, root)
    declared = {name for part in resolved for name in part.get("properties") or ()}
    is_open = any(
        isinstance(part.get("additionalProperties"), Mapping) or "patternProperties" in part for part in resolved
    )
    if not isinstance(values, Mapping) or not declared or is_open:
        return None
    for name, value in values.items():
        if name not in declared:
            return str(name)
        inner_parts = [part["properties"][name] for part in resolved if name in (part.get("properties") or ())]
        inner = _find_undeclared(value, inner_parts, root)
        if inner is not None:
            return f"{name}.{inner}"
    return None


def _resolve_parts(parts: list[Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return these parts of a schema and the parts that they refer to or combine, each once."""
    resolved: list[Mapping[str, Any]] = []
    seen: set[int] = set()
    pending = list(parts)
    while pending:
        part = pending.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        resolved.append(part)
        pending += [part.get(keyword) for keyword in ("if", "then", "else")]
        pending += [inner for keyword in ("allOf", "anyOf", "oneOf") for inner in part.get(keyword) or ()]
        pending.append(_follow_reference(part.get("$ref"), root))
    return resolved


def _follow_reference(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the part of the schema that a reference names, or ``None`` if it is not in this schema."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    part: Any = root
    for name in reference.split("/")[1:]:
        part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    return part
