"""What a model is: something that answers a conversation with items, at once or as a stream of events.

Items are plain dicts in the shape of the OpenAI Responses API, and so are stream events. A model may say them as
objects of its provider's library, as long as they have the same parts as attributes.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from standfast.agents.errors import AgentsException, ModelBehaviorError
from standfast.agents.tool_identity import get_field
from standfast.base.items import Item
from standfast.base.usage import InputTokensDetails, OutputTokensDetails, Usage
from standfast.models.attribute_items import as_item, to_plain

if TYPE_CHECKING:
    from standfast.agents.handoffs import Handoff
    from standfast.agents.model_settings import ModelSettings
    from standfast.agents.output import AgentOutputSchemaBase
    from standfast.agents.tools import Tool
    from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

TResponseOutputItem: TypeAlias = Any
TResponseStreamEvent: TypeAlias = Any

COMPLETED_EVENT = "response.completed"
FINAL_EVENTS = frozenset([COMPLETED_EVENT, "response.incomplete"])
FAILURE_EVENTS = frozenset(["response.failed", "error"])


class ModelTracing(Enum):
    """What a model may write into traces."""

    DISABLED = 0
    ENABLED = 1
    ENABLED_WITHOUT_DATA = 2

    def is_disabled(self) -> bool:
        return self is ModelTracing.DISABLED

    def include_data(self) -> bool:
        return self is ModelTracing.ENABLED


class ResponseFailed(AgentsException):
    """The provider began to answer and gave up. ``error_code`` is its own word for why."""

    code = "response-failed"

    def __init__(self, message: str, *, error_code: str | None = None, response_id: str | None = None) -> None:
        super().__init__(message)
        self.message, self.error_code, self.response_id = message, error_code, response_id


class IncompleteStream(AgentsException):
    """The stream ended before the answer did. What was streamed so far is not a whole answer."""

    code = "stream-cut"


@dataclass
class ModelResponse:
    """One answer. ``output`` is what the model said, as it said it; :attr:`items` the same as plain dicts."""

    output: list[TResponseOutputItem]
    usage: Usage
    response_id: str | None
    request_id: str | None = None
    raw_usage: dict[str, Any] | None = None

    @cached_property
    def items(self) -> list[Item]:
        """The output as plain dicts, converted once. Do not change them: everybody is given the same ones."""
        return [as_item(said) for said in self.output]

    def to_input_items(self) -> list[Item]:
        """The output as input for a next request; the list is the caller's."""
        return list(self.items)


class Model(ABC):
    """Something that answers. One object may answer any number of requests at the same time.

    ``provider_name`` is who answers, in the words of OpenTelemetry (``gen_ai.provider.name``).
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
        """The whole answer. It makes one request: repeating it is the caller's business."""

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
        """The answer as it comes, in events of the Responses API.

        The last event is ``response.completed`` (or ``response.incomplete`` when a provider says so) and carries
        the whole response. Closing the iterator early ends the request.
        """

    def get_retry_advice(self, request: "ModelRetryAdviceRequest") -> "ModelRetryAdvice | None":
        """What the provider says about repeating a request that failed; ``None`` if it says nothing."""
        return None

    async def close(self) -> None:
        """Let go of what the model itself opened. It opens it again when it is asked again."""
        return


class ModelProvider(ABC):
    """Finds models by name."""

    @abstractmethod
    def get_model(self, model_name: str | None) -> Model:
        """The model of that name, or the provider's usual one."""

    async def aclose(self) -> None:
        """Let go of what the provider opened for its models."""
        return


def parse_final_event(event: TResponseStreamEvent, *, keep_raw_usage: bool = False) -> ModelResponse | None:
    """The answer that a stream's last event carries; ``None`` for every other event.

    An event that says that the answer failed becomes :class:`ResponseFailed`.
    """
    kind = get_field(event, "type")
    if kind in FAILURE_EVENTS:
        raise parse_failure(event)
    return parse_response(get_field(event, "response"), keep_raw_usage=keep_raw_usage) if kind in FINAL_EVENTS else None


def parse_response(response: Any, *, keep_raw_usage: bool = False) -> ModelResponse:
    """A response of the Responses API, be it a dict or the provider's object, as an answer."""
    if get_field(response, "status") == "failed":
        raise parse_failure(response)
    output = get_field(response, "output")
    if not isinstance(output, list):
        raise ModelBehaviorError(f"the response has no list of output items but {type(output).__name__}")
    usage = get_field(response, "usage")
    return ModelResponse(
        output=output,
        usage=parse_usage(usage),
        response_id=get_field(response, "id"),
        request_id=get_field(response, "_request_id"),
        raw_usage=None if usage is None or not keep_raw_usage else to_plain(usage),
    )


def parse_usage(usage: Any) -> Usage:
    """The usage in a response: it was one request in any case, whether its tokens were counted or not."""
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
    )


def parse_failure(event: Any) -> ResponseFailed:
    """The failure that an event or a response reports."""
    response = get_field(event, "response") or event
    error = get_field(response, "error") or event
    message, code = get_field(error, "message"), get_field(error, "code")
    return ResponseFailed(
        f"the model's answer failed: {message or 'no reason given'}",
        error_code=code if isinstance(code, str) else None,
        response_id=get_field(response, "id"),
    )
