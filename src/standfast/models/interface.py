"""The interface of models and model providers, and the parsing and validation of responses.

Output items and stream events have the format of the OpenAI Responses API. They are dicts, or objects of a
provider's library that have the same fields as attributes.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tool_identity import get_field
from standfast.base.errors import InvalidItem
from standfast.base.items import Item, encode_item
from standfast.base.text import sanitize_json
from standfast.base.usage import InputTokensDetails, OutputTokensDetails, Usage

if TYPE_CHECKING:
    from standfast.agents.handoffs import Handoff
    from standfast.agents.model_settings import ModelSettings
    from standfast.agents.output import AgentOutputSchemaBase
    from standfast.agents.tools import Tool
    from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

_SCALAR_TYPES = frozenset([str, int, float, bool, type(None)])


class AttributeDict(dict[str, Any]):
    """A dict whose entries are also attributes; dicts inside it are converted to the same class.

    An entry that has the name of a method of ``dict`` is accessible by subscript only.
    """

    __slots__ = ()

    def __init__(self, entries: Mapping[str, Any] = {}, /, **more: Any) -> None:
        super().__init__(entries, **more)
        for name, value in self.items():
            if type(value) not in _SCALAR_TYPES:
                self[name] = wrap_attributes(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this {self.get('type', 'object')!r} has no {name!r}") from None

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return a plain dict; the objects of the provider's library have this method too."""
        return {name: to_plain(value) for name, value in self.items()}


def wrap_attributes(value: Any) -> Any:
    """Return the value with every dict in it converted to :class:`AttributeDict`."""
    kind = type(value)
    if kind in _SCALAR_TYPES or kind is AttributeDict:
        return value
    if kind is dict or (isinstance(value, dict) and not isinstance(value, AttributeDict)):
        return AttributeDict(value)
    if isinstance(value, (list, tuple)):
        return [wrap_attributes(part) for part in value]
    return value


def to_plain(value: Any) -> Any:
    """Return a deep copy of the value made of plain dicts and lists."""
    if type(value) in _SCALAR_TYPES:
        return value
    if isinstance(value, (dict, Mapping)):
        return {name: part if type(part) in _SCALAR_TYPES else to_plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    return _dump_model(value) if hasattr(value, "model_dump") else value


def as_item(output: Any) -> Item:
    """Return an output item as a plain dict with exactly the fields that the provider sent."""
    if isinstance(output, (dict, Mapping)):
        return {name: part if type(part) in _SCALAR_TYPES else to_plain(part) for name, part in output.items()}
    if hasattr(output, "model_dump"):
        item = _dump_model(output)
        item.setdefault("type", output.type)  # a default value, which exclude_unset leaves out
        return item
    raise TypeError(f"an output item of a model must be a JSON object, got {type(output).__name__}")


def to_input_item(item: Item) -> Item:
    """Return an item without ``created_by``, which the API returns and does not accept, also in parts of an output."""
    parts = item.get("output")
    if isinstance(parts, list) and any(isinstance(part, Mapping) and "created_by" in part for part in parts):
        item = {**item, "output": [_drop_creator(part) for part in parts]}
    return _drop_creator(item)  # type: ignore[no-any-return]


def _drop_creator(part: Any) -> Any:
    if not isinstance(part, Mapping) or "created_by" not in part:
        return part
    return {name: value for name, value in part.items() if name != "created_by"}


def _dump_model(value: Any) -> Item:
    item: Item = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    return item


TResponseOutputItem: TypeAlias = Any
TResponseStreamEvent: TypeAlias = Any

COMPLETED_EVENT = "response.completed"
INCOMPLETE_EVENT = "response.incomplete"
FINAL_EVENTS = frozenset([COMPLETED_EVENT, INCOMPLETE_EVENT])
FAILURE_EVENTS = frozenset(["response.failed", "error"])

_TEXT_FIELDS = {"output_text": "text", "refusal": "refusal"}


class ModelTracing(Enum):
    """Whether a model records traces, and whether they include its inputs and outputs."""

    DISABLED = 0
    ENABLED = 1
    ENABLED_WITHOUT_DATA = 2

    def is_disabled(self) -> bool:
        """Whether the model makes no spans."""
        return self is ModelTracing.DISABLED

    def include_data(self) -> bool:
        """Whether inputs and outputs are part of the spans."""
        return self is ModelTracing.ENABLED


class ResponseFailed(ModelBehaviorError):
    """The provider reported that the response failed, or that a streamed one is incomplete.

    ``error_code`` is the provider's code for the reason.
    """

    code = "response-failed"

    def __init__(self, message: str, *, error_code: str | None = None, response_id: str | None = None) -> None:
        super().__init__(message)
        self.error_code, self.response_id = error_code, response_id


class IncompleteStream(ModelBehaviorError):
    """The stream ended before the response was complete. The events so far are only a part of it."""

    code = "stream-cut"


@dataclass
class ModelResponse:
    """A response of a model. ``output`` holds the items as the model returned them, :attr:`items` as plain dicts."""

    output: list[TResponseOutputItem]
    """The items of the response, as the model returned them."""
    usage: Usage
    """The requests and tokens of the response."""
    response_id: str | None
    """The provider's id of the response."""
    request_id: str | None = None
    """The provider's id of the request, for its support."""
    raw_usage: dict[str, Any] | None = None
    """The usage as the provider reported it."""

    @cached_property
    def items(self) -> list[Item]:
        """The output as plain dicts, converted once. They are shared: do not modify them."""
        return [as_item(output) for output in self.output]

    def to_input_items(self) -> list[Item]:
        """Return the output as input for the next request, in a new list."""
        return [to_input_item(item) for item in self.items]


class Model(ABC):
    """A language model. One object may serve any number of requests concurrently.

    ``provider_name`` is the value of OpenTelemetry's ``gen_ai.provider.name``. A model is easier to write as a
    subclass of :class:`~standfast.models.RequestModel`, whose methods take one request instead of ten arguments.
    """

    provider_name: ClassVar[str | None] = None

    @abstractmethod
    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: "ModelSettings",
        tools: "list[Tool]",
        output_schema: "AgentOutputSchemaBase | None",
        handoffs: "list[Handoff[Any, Any]]",
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any | None,
    ) -> ModelResponse:
        """Return the complete response. It makes one request; retries are up to the caller."""

    @abstractmethod
    def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: "ModelSettings",
        tools: "list[Tool]",
        output_schema: "AgentOutputSchemaBase | None",
        handoffs: "list[Handoff[Any, Any]]",
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any | None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Return an iterator over the events of the response, in the format of the Responses API.

        The last event is ``response.completed`` or ``response.incomplete`` and contains the complete response.
        Closing the iterator early ends the request.
        """

    def get_retry_advice(self, request: "ModelRetryAdviceRequest") -> "ModelRetryAdvice | None":
        """Return the provider's advice on retrying a failed request; ``None`` if it has none."""
        return None

    async def close(self) -> None:
        """Release the resources that the model opened. A later request opens them again."""
        return


class ModelProvider(ABC):
    """Finds models by name."""

    @abstractmethod
    def get_model(self, model_name: str | None) -> Model:
        """Return the model with that name; the provider's default model for ``None``."""

    async def aclose(self) -> None:
        """Release the resources that the provider opened for its models."""
        return


def parse_final_event(event: TResponseStreamEvent, *, keep_raw_usage: bool = False) -> ModelResponse | None:
    """Return the response in the last event of a stream; ``None`` for every other event.

    Raises :class:`ResponseFailed` if the event reports a failure.
    """
    kind = get_field(event, "type")
    if kind in FAILURE_EVENTS:
        raise parse_failure(event)
    if kind == INCOMPLETE_EVENT:
        raise make_incomplete_error(get_field(event, "response"))
    return parse_response(get_field(event, "response"), keep_raw_usage=keep_raw_usage) if kind in FINAL_EVENTS else None


def make_incomplete_error(response: Any) -> ResponseFailed:
    """Return the error of a response that was cut off."""
    reason = get_field(get_field(response, "incomplete_details"), "reason")
    return ResponseFailed(f"the model's response is incomplete: {reason or 'no reason given'}", error_code=reason)


def parse_response(response: Any, *, keep_raw_usage: bool = False) -> ModelResponse:
    """Return the :class:`ModelResponse` for a response of the Responses API, which is a dict or an object."""
    if get_field(response, "status") == "failed":
        raise parse_failure(response)
    output = get_field(response, "output")
    if not isinstance(output, list):
        raise ModelBehaviorError(f"the output of the response must be a list of items, got {type(output).__name__}")
    usage = get_field(response, "usage")
    return ModelResponse(
        output=output,
        usage=parse_usage(usage),
        response_id=get_field(response, "id"),
        request_id=get_field(response, "_request_id"),
        raw_usage=None if usage is None or not keep_raw_usage else to_plain(usage),
    )


def parse_usage(usage: Any) -> Usage:
    """Return the usage in a response. It counts as one request even if no tokens are reported."""
    if usage is None:
        return Usage(requests=1)
    requests = get_field(usage, "requests")
    return Usage(
        requests=1 if requests is None else requests,
        input_tokens=get_field(usage, "input_tokens") or 0,
        input_tokens_details=InputTokensDetails.coerce(get_field(usage, "input_tokens_details")),
        output_tokens=get_field(usage, "output_tokens") or 0,
        output_tokens_details=OutputTokensDetails.coerce(get_field(usage, "output_tokens_details")),
        total_tokens=get_field(usage, "total_tokens") or 0,
        request_usage_entries=list(get_field(usage, "request_usage_entries") or ()),
    )


def parse_failure(event: Any) -> ResponseFailed:
    """Return the failure that an event or a response reports."""
    response = get_field(event, "response") or event
    error = get_field(response, "error") or event
    message, code = get_field(error, "message"), get_field(error, "code")
    return ResponseFailed(
        f"the model's response failed: {message or 'no reason given'}",
        error_code=code if isinstance(code, str) else None,
        response_id=get_field(response, "id"),
    )


def validate_response(response: Any) -> ModelResponse:
    """Return the response; raise :class:`ModelBehaviorError` with the location of the error if it is malformed.

    Lone surrogates, with which some providers end a truncated text, become U+FFFD: they can be neither stored nor
    sent.
    """
    if not isinstance(response, ModelResponse):
        raise ModelBehaviorError(f"a model must return a ModelResponse, got {type(response).__name__}")
    if not isinstance(response.usage, Usage):
        raise ModelBehaviorError(f"the usage of a response must be a Usage, got {response.usage!r}")
    for name in ("response_id", "request_id"):
        value = getattr(response, name)
        if value is not None and not isinstance(value, str):
            raise ModelBehaviorError(f"the {name} of a response must be a string or None, got {value!r}")
    if not isinstance(response.output, list | tuple):
        raise ModelBehaviorError(f"the output of a response must be a list, got {type(response.output).__name__}")
    try:
        items = response.items
        for index, item in enumerate(items):
            try:
                encode_item(item)
            except InvalidItem:
                items[index] = sanitize_json(item)
                encode_item(items[index], f"output[{index}]")
                response.output = [
                    *response.output[:index],
                    wrap_attributes(items[index]),
                    *response.output[index + 1 :],
                ]
            _validate_item(items[index], f"output[{index}]")
    except (InvalidItem, TypeError) as error:
        raise ModelBehaviorError(f"the model's response is not a list of items: {error}") from error
    return response


def _validate_item(item: Item, where: str) -> None:
    kind = item.get("type")
    if not isinstance(kind, str) or not kind:
        raise InvalidItem(f"{where}.type", f"must be a non-empty string, got {kind!r}")
    if kind != "message":
        return
    content = item.get("content")
    if not isinstance(content, list):
        raise InvalidItem(f"{where}.content", f"must be a list of parts, got {type(content).__name__}")
    for index, part in enumerate(content):
        name = _TEXT_FIELDS.get(str(part.get("type"))) if isinstance(part, Mapping) else ""
        if name == "" or (name is not None and not isinstance(part.get(name), str)):
            raise InvalidItem(f"{where}.content[{index}]", f"{part!r} is not a valid part of a message")
