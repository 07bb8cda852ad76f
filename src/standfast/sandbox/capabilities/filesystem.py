"""Pictures of the workspace for the model, and patches of its files."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from standfast.agents.tool_outputs import ToolOutputImage
from standfast.agents.tools import Tool
from standfast.sandbox.capabilities.apply_patch import SandboxApplyPatchTool
from standfast.sandbox.capabilities.capability import Capability, SandboxTool
from standfast.sandbox.errors import InvalidManifestPathError, WorkspaceIOError
from standfast.sandbox.workspace_paths import SandboxWorkspaceScope

MAX_IMAGE_BYTES = 20 << 20
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"BM": "image/bmp",
    b"II*\0": "image/tiff",
    b"MM\0*": "image/tiff",
}


def detect_image_type(path: str, content: bytes) -> str | None:
    """Return the media type of an image by its content, or None."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for signature, kind in _SIGNATURES.items():
        if content.startswith(signature):
            return kind
    if path.lower().endswith((".svg", ".svgz")) or b"<svg" in content[:1024]:
        return "image/svg+xml"
    return None


class ViewImageArgs(BaseModel):
    path: str = Field(min_length=1, description="The path of an image in the workspace or below a granted path.")


class ViewImageTool(SandboxTool):
    """Shows the model an image of the workspace."""

    tool_name = "view_image"
    tool_description = "Loads an image file of the workspace so that you can see it."
    args_model = ViewImageArgs

    async def run(self, args: ViewImageArgs) -> ToolOutputImage | str:
        """Return an image of the workspace for the model."""
        path = str(self.workspace_scope.anchor(args.path))
        try:
            file = await self.session.read(Path(path), user=self.user)
        except InvalidManifestPathError:
            return f"image path `{args.path}` is outside of the workspace"
        except WorkspaceIOError as problem:
            missing = problem.code == "workspace_read_not_found"
            return f"image path `{args.path}` " + ("was not found" if missing else f"cannot be read: {problem}")
        content: bytes = file.read(MAX_IMAGE_BYTES + 1)
        if len(content) > MAX_IMAGE_BYTES:
            return f"image path `{args.path}` has more than {MAX_IMAGE_BYTES >> 20} MB"
        kind = detect_image_type(path, content)
        if kind is None:
            return f"image path `{args.path}` is not a supported image file"
        return ToolOutputImage(image_url=f"data:{kind};base64,{base64.b64encode(content).decode()}")


@dataclass
class FilesystemToolSet:
    """The tools of :class:`Filesystem`, for ``configure_tools``."""

    view_image: ViewImageTool
    apply_patch: SandboxApplyPatchTool
    workspace_scope: SandboxWorkspaceScope = field(default_factory=SandboxWorkspaceScope)


class Filesystem(Capability):
    """Pictures and patches. ``configure_tools`` may change the tools."""

    type: Literal["filesystem"] = "filesystem"
    configure_tools: Callable[[FilesystemToolSet], None] | None = Field(default=None, exclude=True)

    def tools(self) -> list[Tool]:
        session, scope = self.require_session(), self.workspace_scope
        tools = FilesystemToolSet(
            ViewImageTool(session=session, user=self.run_as, workspace_scope=scope),
            SandboxApplyPatchTool(session=session, user=self.run_as, workspace_scope=scope),
            scope,
        )
        if self.configure_tools is not None:
            self.configure_tools(tools)
        return [tools.view_image, tools.apply_patch]
