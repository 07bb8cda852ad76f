"""Paths of a workspace: relative to its root, or absolute below the root or a granted path."""

from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from pydantic import BaseModel, field_validator

from standfast.sandbox.errors import ConfigurationError, InvalidManifestPathError


class SandboxPathGrant(BaseModel):
    """An absolute path outside the workspace that the sandbox may use."""

    path: str
    read_only: bool = False
    description: str | None = None
    host_path: str | None = None

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ValueError(f"a granted path must be absolute, got {path!r}")
        return str(PurePosixPath(path))


def to_relative_path(path: str | PurePath) -> PurePosixPath:
    """Return a path of a manifest in its normal form, or raise :class:`InvalidManifestPathError`."""
    pure = PurePosixPath(PurePath(path).as_posix())
    if pure.is_absolute() or "\\" in str(path) or "\0" in str(path):
        raise InvalidManifestPathError(rel=path, reason="absolute")
    if ".." in pure.parts:
        raise InvalidManifestPathError(rel=path, reason="escape_root")
    return pure


def resolve_workspace_path(
    workspace_root: str | PurePath, rel: str | PurePath, *, allow_absolute_within_root: bool = False
) -> Path:
    """Return the absolute path of a workspace path; one that leaves the root is refused."""
    root, pure = PurePosixPath(PurePath(workspace_root).as_posix()), PurePosixPath(PurePath(rel).as_posix())
    if pure.is_absolute() and allow_absolute_within_root and pure.is_relative_to(root):
        pure = pure.relative_to(root)
    return Path(root / to_relative_path(pure))


@dataclass(frozen=True)
class SandboxWorkspaceScope:
    """The directory of the workspace that relative paths of the model start from; None is the root."""

    cwd: PurePosixPath | None = None

    @classmethod
    def from_cwd(cls, cwd: str | PurePath | None) -> "SandboxWorkspaceScope":
        """Return the scope of ``SandboxRunConfig.cwd``, which must be a relative path without ``..``."""
        if cwd is None:
            return cls()
        if not str(cwd) or (isinstance(cwd, str) and "\\" in cwd):
            raise ConfigurationError(f"cwd must be a relative path with forward slashes, got {str(cwd)!r}")
        pure = to_relative_path(cwd)
        return cls(None if pure == PurePosixPath(".") else pure)

    def anchor(self, path: str | PurePath) -> str | PurePath:
        """Return a path of the model relative to the root; absolute paths are returned as they are."""
        if self.cwd is None or PurePosixPath(PurePath(path).as_posix()).is_absolute():
            return path
        return self.cwd / PurePath(path).as_posix()

    def model_path(self, workspace_relative_path: str | PurePath) -> PurePosixPath:
        """Return a path of the workspace as the model has to write it."""
        path = PurePosixPath(PurePath(workspace_relative_path).as_posix())
        if self.cwd is None:
            return path
        if path.is_relative_to(self.cwd):
            return path.relative_to(self.cwd)
        return PurePosixPath(*[".."] * len(self.cwd.parts), path)

    def display_path(self, *, original_path: str | PurePath, workspace_relative_path: str | PurePath) -> PurePosixPath:
        """Return the path as the model wrote it."""
        original = PurePosixPath(PurePath(original_path).as_posix())
        return original if not original.is_absolute() else PurePosixPath(PurePath(workspace_relative_path).as_posix())

    def model_resource_path(
        self, *, workspace_root: str | PurePath, workspace_relative_path: str | PurePath
    ) -> PurePosixPath:
        """Return the path of a resource for the model: relative below ``cwd``, otherwise absolute."""
        path = PurePosixPath(PurePath(workspace_relative_path).as_posix())
        if self.cwd is None or path.is_relative_to(self.cwd):
            return self.model_path(path)
        return PurePosixPath(PurePath(workspace_root).as_posix()) / path
