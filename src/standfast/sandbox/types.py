"""Values that sandbox sessions take and return: users, permissions, results of commands, entries of a directory."""

import stat
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Protocol, Self, TypeAlias

from pydantic import BaseModel

from standfast.agents.editor import ApplyDiffMode, ApplyPatchOperation


class User(BaseModel):
    """An account inside a sandbox."""

    model_config = {"frozen": True}

    name: str


class Group(BaseModel):
    """A group of accounts inside a sandbox."""

    name: str
    users: list[User]


class FileMode(IntEnum):
    """What one class of users may do with a file; values may be combined with ``|``."""

    ALL = 7
    NONE = 0
    READ = 4
    WRITE = 2
    EXEC = 1


class Permissions(BaseModel):
    """The permissions of a file or directory for its owner, its group and others."""

    owner: int = int(FileMode.ALL)
    group: int = 0
    other: int = 0
    directory: bool = False

    @classmethod
    def from_mode(cls, mode: int) -> "Permissions":
        """Return the permissions of ``st_mode``."""
        return cls(owner=mode >> 6 & 7, group=mode >> 3 & 7, other=mode & 7, directory=mode & 0o170000 == 0o040000)

    @classmethod
    def from_str(cls, perms: str) -> "Permissions":
        """Return the permissions that ``ls -l`` prints as ``-rwxr-xr-x``."""
        bits = perms[-9:]
        if len(perms) not in (9, 10) or any(char not in f"{'rwx'[at % 3]}-" for at, char in enumerate(bits)):
            raise ValueError(f"{perms!r} are not permissions such as '-rwxr-xr-x'")
        values = [sum(4 >> at for at, char in enumerate(bits[start : start + 3]) if char != "-") for start in (0, 3, 6)]
        return cls(owner=values[0], group=values[1], other=values[2], directory=len(perms) == 10 and perms[0] == "d")

    def to_mode(self) -> int:
        """Return the permissions as ``st_mode``, with the kind of file if it is a directory."""
        return (stat.S_IFDIR if self.directory else 0) | self.owner << 6 | self.group << 3 | self.other

    def owner_can(self, mode: int) -> Self:
        """Return a copy with these permissions of the owner."""
        return self.model_copy(update={"owner": int(mode)})

    def group_can(self, mode: int) -> Self:
        """Return a copy with these permissions of the group."""
        return self.model_copy(update={"group": int(mode)})

    def others_can(self, mode: int) -> Self:
        """Return a copy with these permissions of others."""
        return self.model_copy(update={"other": int(mode)})

    def __str__(self) -> str:
        classes = (self.owner, self.group, self.other)
        letters = "".join(letter if bits & 4 >> at else "-" for bits in classes for at, letter in enumerate("rwx"))
        return ("d" if self.directory else "-") + letters

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """What a command wrote, and how it ended."""

    stdout: bytes
    stderr: bytes
    exit_code: int

    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0


@dataclass(frozen=True)
class ExposedPortEndpoint:
    """Where a port of the sandbox is reachable from outside."""

    host: str
    port: int
    tls: bool = False
    query: str = ""

    def url_for(self, scheme: str) -> str:
        """Return the URL of the port; with TLS, that of the encrypted scheme."""
        secure = {"http": "https", "ws": "wss"}.get(scheme, scheme) if self.tls else scheme
        return f"{secure}://{self.host}:{self.port}/" + (f"?{self.query}" if self.query else "")


class EntryKind(str, Enum):  # noqa: UP042 - str() of a member is that of openai-agents
    """The kind of an entry of a directory."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """An entry of a directory in the sandbox."""

    path: str
    permissions: Permissions
    owner: str
    group: str
    size: int
    kind: EntryKind = EntryKind.FILE

    def is_dir(self) -> bool:
        """Return whether it is a directory."""
        return self.kind is EntryKind.DIRECTORY


@dataclass(frozen=True)
class PtyExecUpdate:
    """The output of a command since the last call. ``process_id`` is None when it has ended."""

    process_id: int | None
    output: bytes
    exit_code: int | None
    original_token_count: int | None = None


@dataclass(frozen=True)
class MaterializedFile:
    """A file or directory that an entry of a manifest created."""

    path: str


@dataclass(frozen=True)
class MaterializationResult:
    """What applying a manifest created."""

    files: list[MaterializedFile]


class PatchFormat(Protocol):
    """How a diff is applied to the text of a file."""

    @staticmethod
    def apply_diff(input: str, diff: str, mode: ApplyDiffMode = "default") -> str: ...


PatchOperations: TypeAlias = ApplyPatchOperation | dict[str, Any] | list[ApplyPatchOperation | dict[str, Any]]
