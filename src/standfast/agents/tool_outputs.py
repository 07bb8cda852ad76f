"""Values that a tool may return besides text: images, files, and several texts as separate parts.

They are pydantic models, so they have a module of their own: declaring an agent does not import pydantic.
"""

from typing import Literal, NotRequired

from pydantic import BaseModel, model_validator
from typing_extensions import TypedDict


class ToolOutputText(BaseModel):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class ToolOutputTextDict(TypedDict):
    """A text as the output of a tool, as a dict."""

    type: Literal["text"]
    text: str


class ToolOutputImage(BaseModel):
    """An image, by URL (``data:`` URLs included) or by the provider's file id."""

    type: Literal["image"] = "image"
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto"] | None = None

    @model_validator(mode="after")
    def check_at_least_one_required_field(self) -> "ToolOutputImage":
        """Refuse an output without content."""
        if self.image_url is None and self.file_id is None:
            raise ValueError("an image needs an image_url or a file_id")
        return self


class ToolOutputImageDict(TypedDict):
    """A picture as the output of a tool, as a dict."""

    type: Literal["image"]
    image_url: NotRequired[str]
    file_id: NotRequired[str]
    detail: NotRequired[Literal["low", "high", "auto"]]


class ToolOutputFileContent(BaseModel):
    """A file, by its content (base64), by URL or by the provider's file id."""

    type: Literal["file"] = "file"
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None

    @model_validator(mode="after")
    def check_at_least_one_required_field(self) -> "ToolOutputFileContent":
        """Refuse an output without content."""
        if self.file_data is None and self.file_url is None and self.file_id is None:
            raise ValueError("a file needs file_data, a file_url or a file_id")
        return self


class ToolOutputFileContentDict(TypedDict):
    """A file as the output of a tool, as a dict."""

    type: Literal["file"]
    file_data: NotRequired[str]
    file_url: NotRequired[str]
    file_id: NotRequired[str]
    filename: NotRequired[str]
