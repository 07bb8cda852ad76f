"""Output schemas: the type of an agent's final output."""

from abc import ABC, abstractmethod
from inspect import isclass
from typing import Any, get_args, get_origin, is_typeddict

from standfast.agents.errors import InvalidDeclaration, ModelBehaviorError, UserError
from standfast.agents.strict_schema import to_strict_schema


class AgentOutputSchemaBase(ABC):
    """The schema of an agent's final output. Subclass it for schemas that no Python type describes."""

    @abstractmethod
    def is_plain_text(self) -> bool:
        """Return whether the output is plain text, without a schema."""

    @abstractmethod
    def name(self) -> str:
        """Return the name of the type for messages and requests."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema for the model. Not called for plain text."""

    @abstractmethod
    def is_strict_json_schema(self) -> bool:
        """Return whether the schema has the strict form, which the provider can enforce."""

    @abstractmethod
    def validate_json(self, json_str: str) -> Any:
        """Return the value in the model's response; raise :class:`ModelBehaviorError` if it is invalid."""


class AgentOutputSchema(AgentOutputSchemaBase):
    """The schema of a Python type, by pydantic.

    A type whose JSON is not an object is wrapped in one, under the key ``response``. With a strict schema nothing is
    converted: ``"25"`` is no integer.
    """

    def __init__(self, output_type: type[Any] | None, strict_json_schema: bool = True) -> None:
        self.output_type = output_type
        self._strict = strict_json_schema
        self.is_wrapped = False
        self._schema: dict[str, Any] = {}
        self._adapter: Any = None
        if not self.is_plain_text():
            self._prepare()

    def is_plain_text(self) -> bool:
        return self.output_type is None or self.output_type is str

    def is_strict_json_schema(self) -> bool:
        return self._strict

    def name(self) -> str:
        return name_type(self.output_type)

    def json_schema(self) -> dict[str, Any]:
        if self.is_plain_text():
            raise UserError("the output type is plain text, which has no JSON schema")
        return self._schema

    def validate_json(self, json_str: str) -> Any:
        from pydantic import TypeAdapter, ValidationError

        from standfast.agents.function_schema import format_validation_error

        output_type: Any = self.output_type
        adapter = TypeAdapter(output_type) if self._adapter is None else self._adapter
        try:
            value = adapter.validate_json(json_str, strict=self._strict)
        except ValidationError as error:
            raise ModelBehaviorError(
                f"the model's response is not a valid {self.name()}: {format_validation_error(error)}"
            ) from None
        return value.response if self.is_wrapped else value

    def _prepare(self) -> None:
        # Imported here because agents with plain text output do not need pydantic.
        from pydantic import BaseModel, TypeAdapter, create_model
        from pydantic.errors import PydanticUserError

        kind: Any = self.output_type
        plain = get_origin(kind) or kind
        self.is_wrapped = not (is_typeddict(plain) or (isclass(plain) and issubclass(plain, BaseModel | dict)))
        try:
            model: Any = create_model("OutputType", response=(kind, ...)) if self.is_wrapped else kind
            self._adapter = TypeAdapter(model)
            schema = self._adapter.json_schema()
        except PydanticUserError as error:
            raise InvalidDeclaration("output_type", f"{self.name()} has no JSON schema: {error}") from None
        where = f"output_type {self.name()}"
        self._schema = to_strict_schema(schema, where=where) if self._strict else schema


def name_type(kind: Any) -> str:
    """Return a type as it is written in a program, without modules: ``list[Order]``."""
    origin = get_origin(kind)
    if origin is None:
        return getattr(kind, "__name__", None) or repr(kind)
    return f"{name_type(origin)}[{', '.join(map(name_type, get_args(kind)))}]"


def as_output_schema(output_type: Any) -> AgentOutputSchemaBase | None:
    """Return the schema of an agent's ``output_type``; ``None`` for plain text."""
    if output_type is None or output_type is str:
        return None
    return output_type if isinstance(output_type, AgentOutputSchemaBase) else AgentOutputSchema(output_type)
