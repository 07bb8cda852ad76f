"""The items of a realtime conversation. Unknown fields of a provider are kept."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class _ExtensibleModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class InputText(_ExtensibleModel):
    """Text of the user or the system."""

    type: Literal["input_text"] = "input_text"
    text: str | None = None


class InputAudio(_ExtensibleModel):
    """Audio of the user. ``transcript`` arrives after the item, or never."""

    type: Literal["input_audio"] = "input_audio"
    audio: str | None = None
    transcript: str | None = None


class InputImage(_ExtensibleModel):
    """An image of the user."""

    type: Literal["input_image"] = "input_image"
    image_url: str | None = None
    detail: str | None = None


class AssistantText(_ExtensibleModel):
    """Text of the model."""

    type: Literal["text"] = "text"
    text: str | None = None


class AssistantAudio(_ExtensibleModel):
    """Speech of the model, as far as it was heard.

    If playback was truncated, ``generated_transcript`` is the full text and ``audio_end_ms`` how much of it was played.
    """

    type: Literal["audio"] = "audio"
    audio: str | None = None
    transcript: str | None = None
    generated_transcript: str | None = None
    audio_end_ms: int | None = None


class SystemMessageItem(_ExtensibleModel):
    """A system message."""

    item_id: str
    previous_item_id: str | None = None
    type: Literal["message"] = "message"
    role: Literal["system"] = "system"
    content: list[InputText]


class UserMessageItem(_ExtensibleModel):
    """A user message."""

    item_id: str
    previous_item_id: str | None = None
    type: Literal["message"] = "message"
    role: Literal["user"] = "user"
    content: list[Annotated[InputText | InputAudio | InputImage, Field(discriminator="type")]]


class AssistantMessageItem(_ExtensibleModel):
    """A message of the model."""

    item_id: str
    previous_item_id: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    content: list[Annotated[AssistantText | AssistantAudio, Field(discriminator="type")]]


RealtimeMessageItem: TypeAlias = Annotated[
    SystemMessageItem | UserMessageItem | AssistantMessageItem, Field(discriminator="role")
]


class RealtimeToolCallItem(_ExtensibleModel):
    """A tool call of the model, with its output once there is one."""

    item_id: str
    previous_item_id: str | None = None
    call_id: str | None
    type: Literal["function_call"] = "function_call"
    status: Literal["in_progress", "completed"]
    arguments: str
    name: str
    output: str | None = None


RealtimeItem: TypeAlias = RealtimeMessageItem | RealtimeToolCallItem


class RealtimeResponse(BaseModel):
    """A response of the model: its messages."""

    id: str
    output: list[RealtimeMessageItem]
