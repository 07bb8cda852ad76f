"""What a server's tool returned, as an output that a model can be told."""

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.agents.tool_outputs import ToolOutputFileContent, ToolOutputImage, ToolOutputText

if TYPE_CHECKING:
    from mcp.types import CallToolResult

ToolOutputPart: TypeAlias = ToolOutputText | ToolOutputImage | ToolOutputFileContent
ToolOutput: TypeAlias = str | ToolOutputPart | list[ToolOutputPart]

ERROR_PREFIX = "The tool reported an error:"


def convert_result(result: "CallToolResult", *, use_structured_content: bool) -> ToolOutput:
    """The content of a result; its structured content instead if that is wanted, or if there is nothing else.

    Text alone becomes a string. What a tool reports as an error is told as one.
    """
    structured = result.structured_content
    if structured is not None and not result.is_error and (use_structured_content or not result.content):
        return json.dumps(structured, ensure_ascii=False)
    parts = [_convert_block(block) for block in result.content]
    if result.is_error:
        parts = [ToolOutputText(text=ERROR_PREFIX), *parts]
    if all(isinstance(part, ToolOutputText) for part in parts) and (result.is_error or len(parts) < 2):
        return " ".join(part.text for part in parts if isinstance(part, ToolOutputText))
    return parts[0] if len(parts) == 1 else parts


def _convert_block(block: Any) -> ToolOutputPart:
    match block.type:
        case "text":
            return ToolOutputText(text=block.text)
        case "image":
            return ToolOutputImage(image_url=_build_data_url(block.mime_type, block.data))
        case "audio":
            name = f"audio.{block.mime_type.partition('/')[2].removeprefix('x-') or 'bin'}"
            return ToolOutputFileContent(file_data=_build_data_url(block.mime_type, block.data), filename=name)
        case "resource":
            return _convert_resource(block.resource)
        case "resource_link":
            about = f": {block.description}" if block.description else ""
            return ToolOutputText(text=f"[resource {block.name} at {block.uri}{about}]")
    return ToolOutputText(text=block.model_dump_json(by_alias=True, exclude_none=True))


def _convert_resource(resource: Any) -> ToolOutputPart:
    text = getattr(resource, "text", None)
    if text is not None:
        return ToolOutputText(text=text)
    kind = resource.mime_type or "application/octet-stream"
    if kind.startswith("image/"):
        return ToolOutputImage(image_url=_build_data_url(kind, resource.blob))
    name = str(resource.uri).rstrip("/").rpartition("/")[2] or "resource"
    return ToolOutputFileContent(file_data=_build_data_url(kind, resource.blob), filename=name)


def _build_data_url(mime_type: str, encoded: str) -> str:
    return f"data:{mime_type};base64,{encoded}"
