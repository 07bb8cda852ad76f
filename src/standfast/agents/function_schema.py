"""JSON schemas of Python functions from their types and docstrings, and calls with the arguments that a model sends."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from standfast.agents.context import RunContextWrapper
from standfast.agents.docstrings import DocstringStyle, Documentation, parse_docstring
from standfast.agents.errors import InvalidArguments, InvalidDeclaration, UnresolvedAnnotation
from standfast.agents.guardrails import get_callable_name
from standfast.agents.strict_schema import to_strict_schema
from standfast.agents.tool_arguments import (
    ArgumentsParser,
    ParsedArguments,
    has_infinite_number,
    load_arguments,
)
from standfast.agents.types import is_async

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class FuncSchema:
    """The schema of a function, with the methods to call it with a model's arguments."""

    name: str
    description: str | None
    params_pydantic_model: type[BaseModel]
    params_json_schema: dict[str, Any]
    signature: inspect.Signature
    takes_context: bool = False
    strict_json_schema: bool = True
    return_annotation: Any = inspect.Signature.empty

    def parse(self, arguments: str) -> BaseModel:
        """Return the arguments as the function's types; raise :class:`InvalidArguments` if they do not fit.

        With a strict schema nothing is converted and unknown fields are refused. Otherwise pydantic converts what it
        can, such as ``"5"`` to 5, and unknown fields are ignored.
        """
        load_arguments(self.name, arguments)
        return self._validate(arguments)

    def _validate(self, arguments: str) -> BaseModel:
        options: dict[str, Any] = {"strict": True, "extra": "forbid"} if self.strict_json_schema else {}
        try:
            data = self.params_pydantic_model.model_validate_json(arguments or "{}", **options)
        except ValidationError as error:
            raise InvalidArguments(self.name, format_validation_error(error)) from None
        if not self.strict_json_schema and has_infinite_number(data.model_dump(warnings="none")):
            raise InvalidArguments(self.name, "a number is infinite or NaN")
        return data

    def make_parser(self) -> ArgumentsParser:
        """Return the parser of these arguments for a tool."""
        return ArgumentsParser(self._parse_for_tool, frozenset(self.params_json_schema.get("properties", ())))

    def _parse_for_tool(self, arguments: str, written: dict[str, Any]) -> ParsedArguments:
        data = self._validate(arguments)
        try:
            values = data.model_dump(mode="json", by_alias=True, warnings="none")
        except PydanticSerializationError:  # a type of the program that has no JSON form
            values = written
        return ParsedArguments(arguments, written, values, data)

    def to_call_args(self, data: BaseModel) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments for the function, without its context parameter.

        Raise :class:`InvalidArguments` if ``**kwargs`` has a name that is a parameter's own.
        """
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for field_name, name, kind in self._call_layout:
            value = getattr(data, field_name)
            if kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                taken = sorted(value.keys() & self._bound_names)
                if taken:
                    raise InvalidArguments(self.name, f"{name} has the names of other parameters: {taken}")
                named.update(value)
            elif kind is inspect.Parameter.KEYWORD_ONLY:
                named[name] = value
            else:
                positional.append(value)
        return positional, named

    @functools.cached_property
    def _call_layout(self) -> list[tuple[str, str, Any]]:
        """The parameters that the model fills: field of the pydantic model, name, and kind."""
        parameters = list(self.signature.parameters.values())[1 if self.takes_context else 0 :]
        fields = self.params_pydantic_model.model_fields
        return [(name, parameter.name, parameter.kind) for name, parameter in zip(fields, parameters, strict=True)]

    @functools.cached_property
    def _bound_names(self) -> frozenset[str]:
        """The names that a keyword argument binds to a parameter, the context's among them."""
        bindable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return frozenset(each.name for each in self.signature.parameters.values() if each.kind in bindable)

    async def call(
        self, func: Callable[..., Any], context: Any, arguments: str, *, in_thread: bool | None = None
    ) -> Any:
        """Call ``func`` with the model's arguments.

        A function that is not async runs in a thread, so that it may block, and has the caller's context variables.
        ``in_thread`` says which it is, if the caller knows.
        """
        parsed = getattr(context, "parsed_arguments", None)
        if parsed is not None and parsed.text == arguments and type(parsed.value) is self.params_pydantic_model:
            data = parsed.value
        else:
            data = self.parse(arguments)
        positional, named = self.to_call_args(data)
        if self.takes_context:
            positional.insert(0, context)
        if is_async(func) if in_thread is None else not in_thread:
            return await func(*positional, **named)
        result = await asyncio.to_thread(_call_in_thread, func, positional, named)
        return await result if inspect.isawaitable(result) else result


def _call_in_thread(func: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> Any:
    try:
        return func(*positional, **named)
    except StopIteration as error:  # a future cannot hold it, so that the caller would wait for ever
        raise RuntimeError("the function raised StopIteration") from error


def function_schema(
    func: Callable[..., Any],
    docstring_style: DocstringStyle | None = None,
    name_override: str | None = None,
    description_override: str | None = None,
    use_docstring_info: bool = True,
    strict_json_schema: bool = True,
) -> FuncSchema:
    """Return the name, description and parameter schema of a function.

    A first parameter annotated as :class:`RunContextWrapper` or :class:`ToolContext` is filled in by the run and is
    not part of the schema.
    """
    name = name_override or get_callable_name(func)
    docs = parse_docstring(func, docstring_style) if use_docstring_info else Documentation()
    signature, hints = inspect.signature(func), get_hints(func, name)
    parameters = list(signature.parameters.values())
    takes_context = bool(parameters) and _is_context_type(hints.get(parameters[0].name))
    model_parameters = parameters[1:] if takes_context else parameters
    _check_parameters(name, model_parameters, hints, strict=strict_json_schema)
    model = _build_arguments_model(name, model_parameters, hints, docs)
    schema = model.model_json_schema()
    if strict_json_schema:
        schema = to_strict_schema(schema, where=name)
    return FuncSchema(
        name=name,
        description=description_override or docs.description,
        params_pydantic_model=model,
        params_json_schema=schema,
        signature=signature,
        takes_context=takes_context,
        strict_json_schema=strict_json_schema,
        return_annotation=hints.get("return", signature.return_annotation),
    )


def format_validation_error(error: ValidationError, *, limit: int = 5) -> str:
    """Return the location and message of the first errors, without the invalid values."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [": ".join(filter(None, (".".join(map(str, part["loc"])), part["msg"]))) for part in errors[:limit]]
    return "; ".join(lines + ([f"and {len(errors) - limit} more"] if len(errors) > limit else []))


def get_hints(func: Any, name: str) -> dict[str, Any]:
    """Return the resolved annotations of a function, or of the function behind a partial one or a callable object."""
    while isinstance(func, functools.partial):
        func = func.func
    target = func if inspect.isroutine(func) else type(func).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise UnresolvedAnnotation(name, f"the annotations cannot be resolved: {error}") from None
    except TypeError as error:
        raise InvalidDeclaration(name, f"the annotations cannot be resolved: {error}") from None


def _is_context_type(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kind = get_origin(annotation) or annotation
    return inspect.isclass(kind) and issubclass(kind, RunContextWrapper)


def _check_parameters(name: str, parameters: list[inspect.Parameter], hints: dict[str, Any], *, strict: bool) -> None:
    for parameter in parameters:
        if _is_context_type(hints.get(parameter.name)):
            raise InvalidDeclaration(name, f"the context must be the first parameter, not {parameter.name!r}")
        if strict and parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise InvalidDeclaration(
                name,
                f"**{parameter.name} accepts arbitrary names, which a strict schema does not: use strict_mode=False",
            )


def _build_arguments_model(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any], docs: Documentation
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for parameter in parameters:
        annotation = hints.get(parameter.name, Any)
        field_name, alias = _make_field_name(parameter.name, len(fields))
        fields[field_name] = _make_field(parameter, annotation, docs.parameters.get(parameter.name), alias)
    # Names that a model puts beside **kwargs instead of into it would be dropped silently.
    has_kwargs = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    config = ConfigDict(protected_namespaces=(), extra="forbid" if has_kwargs else "ignore")
    try:
        return create_model(f"{name}_args", __config__=config, **fields)
    except (PydanticUserError, TypeError) as error:
        raise InvalidDeclaration(name, f"a parameter has a type without a JSON schema: {error}") from None


def _make_field(parameter: inspect.Parameter, annotation: Any, doc: str | None, alias: str | None) -> tuple[Any, Any]:
    """Return type and field of a parameter for pydantic.

    The docstring describes it, else a text in its annotation, else a field.
    """
    settings: dict[str, Any] = {} if alias is None else {"alias": alias, "title": _make_title(alias)}
    description = doc or _get_annotated_text(annotation)
    if description:
        settings["description"] = description
    if parameter.kind in _VARIADIC:
        positional = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        kind: Any = list[annotation] if positional else dict[str, annotation]
        return kind, Field(default_factory=list if positional else dict, **settings)
    default = parameter.default
    if isinstance(default, FieldInfo):
        return annotation, FieldInfo.merge_field_infos(default, **settings) if settings else default
    return annotation, Field(... if default is inspect.Parameter.empty else default, **settings)


def _get_annotated_text(annotation: Any) -> str | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((part for part in get_args(annotation)[1:] if isinstance(part, str)), None)


def _make_field_name(name: str, index: int) -> tuple[str, str | None]:
    """Return a field name that pydantic accepts, and the parameter's own name as alias if it is another."""
    if name.startswith(("_", "model_")) or hasattr(BaseModel, name):
        return f"argument_{index}", name
    return name, None


def _make_title(name: str) -> str:
    return name.strip("_").replace("_", " ").title()
