"""Entries of a manifest: files and directories that a new workspace starts with."""

import base64
import os
import stat
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_serializer, field_validator

from standfast.sandbox.errors import ConfigurationError, GitCloneError, LocalDirReadError, LocalFileReadError
from standfast.sandbox.types import Group, MaterializedFile, Permissions, User
from standfast.sandbox.workspace_paths import SandboxPathGrant, to_relative_path

if TYPE_CHECKING:
    from standfast.sandbox.sessions import BaseSandboxSession

_GIT_TIMEOUT = 600.0


@dataclass(frozen=True)
class ArchiveMember:
    """A file, a directory or a link to create.

    The content of a file is ``data``, that of the local file ``source``, or ``size`` bytes of ``stream``.
    """

    path: PurePosixPath
    mode: int
    data: bytes | None = None
    source: Path | None = None
    stream: IO[bytes] | None = None
    size: int = 0
    link_target: str | None = None


@dataclass(frozen=True)
class SourceRules:
    """Which local files entries may read: those below ``base_dir`` and the granted paths."""

    base_dir: Path
    grants: tuple[SandboxPathGrant, ...] = ()

    def resolve(self, source: Path, error: type[LocalFileReadError] = LocalDirReadError) -> Path:
        """Return the real path of a source, or raise the error if it may not be read."""
        real = (self.base_dir / source).resolve()
        allowed = [self.base_dir.resolve(), *(Path(grant.path).resolve() for grant in self.grants)]
        if not any(real.is_relative_to(path) for path in allowed):
            problem = f"{source} is outside of {self.base_dir}: allow it with extra_path_grants of the manifest"
            facts = {"reason": "outside_base_dir", "base_dir": str(self.base_dir)}
            raise error(src=source, context=facts, message=problem)
        return real


def _default_permissions() -> Permissions:
    return Permissions(owner=7, group=5, other=5)


class BaseEntry(BaseModel, ABC):
    """One entry. ``ephemeral`` entries are not part of snapshots."""

    model_config = ConfigDict(extra="forbid")
    _types: ClassVar[dict[str, type["BaseEntry"]]] = {}

    type: str
    description: str | None = None
    ephemeral: bool = False
    group: Group | User | None = None
    is_dir: bool = False
    permissions: Permissions = Field(default_factory=_default_permissions)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        default = cls.model_fields["type"].default
        if isinstance(default, str):
            BaseEntry._types[default] = cls

    @classmethod
    def registered_types(cls) -> dict[str, Any]:
        """Return the classes of entries by their types."""
        return dict(BaseEntry._types)

    @classmethod
    def parse(cls, payload: object) -> "BaseEntry":
        """Return an entry of its type from plain data; an entry is returned as it is."""
        if isinstance(payload, BaseEntry):
            return payload
        kind = payload.get("type") if isinstance(payload, dict) else None
        if not isinstance(payload, dict) or kind not in BaseEntry._types:
            raise ValueError(f"{kind!r} is not a type of entry; expected one of {', '.join(sorted(BaseEntry._types))}")
        return BaseEntry._types[kind].model_validate(payload)

    def model_post_init(self, context: Any, /) -> None:
        if self.is_dir and not self.permissions.directory:
            self.permissions = self.permissions.model_copy(update={"directory": True})

    def get_mode(self) -> int:
        """Return the bits of the permissions, without the kind of file."""
        return stat.S_IMODE(self.permissions.to_mode())

    @abstractmethod
    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        """Yield what this entry creates at a path of the workspace, directories before what they contain."""

    async def apply(self, session: "BaseSandboxSession", dest: Path, base_dir: Path) -> list[MaterializedFile]:
        """Create the entry in a running session."""
        rules = SourceRules(base_dir, session.state.manifest.extra_path_grants)
        relative = session.to_workspace_path(dest)
        return await session.create_members(self.iter_members(relative, rules))


class File(BaseEntry):
    """A file with this content."""

    type: Literal["file"] = "file"
    content: bytes

    @field_validator("content", mode="before")
    @classmethod
    def _decode(cls, content: object) -> object:
        return base64.b64decode(content["base64"]) if isinstance(content, dict) else content

    @field_serializer("content")
    def _encode(self, content: bytes) -> object:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(content).decode()}

    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        yield ArchiveMember(path, self.get_mode(), data=self.content)


class Dir(BaseEntry):
    """A directory with these children."""

    type: Literal["dir"] = "dir"
    is_dir: bool = True
    children: dict[str | Path, SerializeAsAny[BaseEntry]] = Field(default_factory=dict)

    @field_validator("children", mode="before")
    @classmethod
    def _parse_children(cls, children: object) -> object:
        return parse_entries(children)

    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        yield ArchiveMember(path, self.get_mode())
        for name, child in self.children.items():
            yield from child.iter_members(path / to_relative_path(name), rules)


class LocalFile(BaseEntry):
    """A copy of a file of this machine, below the working directory or a granted path."""

    type: Literal["local_file"] = "local_file"
    src: Path

    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        source = rules.resolve(self.src, LocalFileReadError)
        if not source.is_file():
            raise LocalFileReadError(src=self.src, message=f"{self.src} is not a file")
        yield ArchiveMember(path, self.get_mode(), source=source)


class LocalDir(BaseEntry):
    """A copy of a directory of this machine, below the working directory or a granted path.

    Files keep their executable bit. Links are copied as links if they stay inside the directory, and refused otherwise.
    """

    type: Literal["local_dir"] = "local_dir"
    is_dir: bool = True
    src: Path | None = None

    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        yield ArchiveMember(path, self.get_mode())
        if self.src is not None:
            source = rules.resolve(self.src)
            if not source.is_dir():
                raise LocalDirReadError(src=self.src, message=f"{self.src} is not a directory")
            yield from iter_directory(source, path)


class GitRepo(BaseEntry):
    """The files of a repository at a branch, tag or commit, fetched by ``git`` on this machine.

    ``host`` is the name of a server that is reached by HTTPS, or begins with the scheme of its URL. ``subpath`` selects
    a directory of the repository.
    """

    type: Literal["git_repo"] = "git_repo"
    is_dir: bool = True
    host: str = "github.com"
    repo: str
    ref: str
    subpath: str | None = None

    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        url = f"{self.host}/{self.repo}" if "://" in self.host else f"https://{self.host}/{self.repo}.git"
        inner = to_relative_path(self.subpath or ".")
        with tempfile.TemporaryDirectory(prefix="standfast-git-") as folder:
            for command in (
                ("init", "--quiet", folder),
                ("-C", folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--", url, self.ref),
                ("-C", folder, "checkout", "--quiet", "--detach", "FETCH_HEAD"),
            ):
                self._run_git(url, *command)
            source = Path(folder).resolve() / inner
            # A link on the way could lead to files of this machine.
            if not source.is_dir() or source.resolve() != source:
                raise ConfigurationError(f"{self.repo} has no directory {self.subpath!r}")
            yield ArchiveMember(path, self.get_mode())
            yield from (
                _load_member(member) for member in iter_directory(source, path) if ".git" not in member.path.parts
            )

    def _run_git(self, url: str, *arguments: str) -> None:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": url.partition("://")[0],
            "GIT_LFS_SKIP_SMUDGE": "1",
        }
        options = ("-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=true")
        try:
            done = subprocess.run(  # noqa: S603
                ["git", *options, *arguments],  # noqa: S607
                env=environment,
                capture_output=True,
                timeout=_GIT_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise GitCloneError(url=url, ref=self.ref, cause=problem) from problem
        if done.returncode:
            raise GitCloneError(url=url, ref=self.ref, stderr=done.stderr.decode(errors="replace").strip())


def parse_entries(entries: object) -> object:
    """Return the entries of a mapping with those that are plain data parsed."""
    if not isinstance(entries, dict):
        return entries
    return {name: BaseEntry.parse(entry) for name, entry in entries.items()}


def iter_directory(source: Path, path: PurePosixPath) -> Iterator[ArchiveMember]:
    """Yield the contents of a local directory. Links that leave it and special files are refused."""
    try:
        children = sorted(os.scandir(source), key=lambda child: child.name)
    except OSError as problem:
        raise LocalDirReadError(src=source, cause=problem) from problem
    for child in children:
        inside, status = path / child.name, child.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(child.path)
            if os.path.isabs(target) or ".." in PurePosixPath(target).parts:
                raise LocalDirReadError(src=Path(child.path), message=f"{child.path} is a link to {target}, outside")
            yield ArchiveMember(inside, 0o777, link_target=target)
        elif stat.S_ISDIR(status.st_mode):
            yield ArchiveMember(inside, 0o755)
            yield from iter_directory(Path(child.path), inside)
        elif stat.S_ISREG(status.st_mode):
            yield ArchiveMember(inside, 0o755 if status.st_mode & 0o111 else 0o644, source=Path(child.path))
        else:
            raise LocalDirReadError(src=Path(child.path), message=f"{child.path} is neither a file nor a directory")


def _load_member(member: ArchiveMember) -> ArchiveMember:
    """Return a member with its content read: the file is about to be deleted."""
    if member.source is None:
        return member
    return ArchiveMember(member.path, member.mode, data=member.source.read_bytes())
