"""What a server's tool returned, as an output that a model can be told."""

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.agents.tool_outputs import ToolOutputFileContent, ToolOutputImage, ToolOutputText

if TYPE_CHECKING:
    from mcp.types import CallToolResult

Part: TypeAlias = ToolOutputText | ToolOutputImage | ToolOutputFileContent
ToolOutput: TypeAlias = str | Part | list[Part]

FAILED = "The tool reported an error:"


def output_of(result: "CallToolResult", *, use_structured_content: bool) -> ToolOutput:
    """The content of a result; its structured content instead if that is wanted, or if there is nothing else.

    Text alone becomes a string. What a tool reports as an error is told as one.
    """
    structured = result.structured_content
    if structured is not None and not result.is_error and (use_structured_content or not result.content):
        return json.dumps(structured, ensure_ascii=False)
    parts = [_part(block) for block in result.content]
    if result.is_error:
        parts = [ToolOutputText(text=FAILED), *parts]
    if all(isinstance(part, ToolOutputText) for part in parts) and (result.is_error or len(parts) < 2):
        return " ".join(part.text for part in parts if isinstance(part, ToolOutputText))
    return parts[0] if len(parts) == 1 else parts


def _part(block: Any) -> Part:
    match block.type:
        case "text":
            return ToolOutputText(text=block.text)
        case "image":
            return ToolOutputImage(image_url=_data(block.mime_type, block.data))
        case "audio":
            name = f"audio.{block.mime_type.partition('/')[2].removeprefix('x-') or 'bin'}"
            return ToolOutputFileContent(file_data=_data(block.mime_type, block.data), filename=name)
        case "resource":
            return _resource(block.resource)
        case "resource_link":
            about = f": {block.description}" if block.description else ""
            return ToolOutputText(text=f"[resource {block.name} at {block.uri}{about}]")
    return ToolOutputText(text=block.model_dump_json(by_alias=True, exclude_none=True))


def _resource(resource: Any) -> Part:
    text = getattr(resource, "text", None)
    if text is not None:
        return ToolOutputText(text=text)
    kind = resource.mime_type or "application/octet-stream"
    if kind.startswith("image/"):
        return ToolOutputImage(image_url=_data(kind, resource.blob))
    name = str(resource.uri).rstrip("/").rpartition("/")[2] or "resource"
    return ToolOutputFileContent(file_data=_data(kind, resource.blob), filename=name)


def _data(kind: str, encoded: str) -> str:
    return f"data:{kind};base64,{encoded}"
