"""What was said in a session, item by item. Parts that a provider adds are kept."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class _ExtensibleModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class InputText(_ExtensibleModel):
    """Text that the user or the system wrote."""

    type: Literal["input_text"] = "input_text"
    text: str | None = None


class InputAudio(_ExtensibleModel):
    """What the user said. ``transcript`` comes later than the item, or never."""

    type: Literal["input_audio"] = "input_audio"
    audio: str | None = None
    transcript: str | None = None


class InputImage(_ExtensibleModel):
    """A picture that the user showed."""

    type: Literal["input_image"] = "input_image"
    image_url: str | None = None
    detail: str | None = None


class AssistantText(_ExtensibleModel):
    """Text that the model wrote."""

    type: Literal["text"] = "text"
    text: str | None = None


class AssistantAudio(_ExtensibleModel):
    """What the model said aloud, as far as it was heard.

    If playback was cut, ``generated_transcript`` has all that was said and ``audio_end_ms`` how much of it was played.
    """

    type: Literal["audio"] = "audio"
    audio: str | None = None
    transcript: str | None = None
    generated_transcript: str | None = None
    audio_end_ms: int | None = None


class SystemMessageItem(_ExtensibleModel):
    """An instruction inside the conversation."""

    item_id: str
    previous_item_id: str | None = None
    type: Literal["message"] = "message"
    role: Literal["system"] = "system"
    content: list[InputText]


class UserMessageItem(_ExtensibleModel):
    """A message of the user."""

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
    """A call that the model made, and its output once there is one."""

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
    """An answer of the model: the messages it consists of."""

    id: str
    output: list[RealtimeMessageItem]
