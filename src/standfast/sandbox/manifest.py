"""The manifest of a workspace: what a new one starts with, and its environment."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from standfast.sandbox.manifest_entries import BaseEntry, Dir, File, parse_entries
from standfast.sandbox.mounts import Mount
from standfast.sandbox.types import Group, User
from standfast.sandbox.workspace_paths import SandboxPathGrant, to_relative_path


class EnvValue(BaseModel, ABC):
    """The value of an environment variable, resolved when a session starts."""

    _types: ClassVar[dict[str, type["EnvValue"]]] = {}

    type: str = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        EnvValue._types[cls.model_fields["type"].default] = cls

    @classmethod
    def parse(cls, payload: object) -> "EnvValue":
        """Return the value that the JSON describes."""
        if isinstance(payload, EnvValue):
            return payload
        kind = payload.get("type") if isinstance(payload, dict) else None
        if kind not in EnvValue._types:
            raise ValueError(f"{kind!r} is not a type of environment value")
        return EnvValue._types[kind].model_validate(payload)

    @abstractmethod
    async def resolve(self) -> str:
        """Return the value."""


class StrEnvValue(EnvValue):
    """A plain value."""

    type: Literal["str"] = "str"
    value: str

    async def resolve(self) -> str:
        return self.value


class EnvEntry(BaseModel):
    """An environment variable. ``ephemeral`` ones are not saved with the state of a session."""

    description: str | None = None
    ephemeral: bool = False
    value: SerializeAsAny[EnvValue]

    @field_validator("value", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        return StrEnvValue(value=value) if isinstance(value, str) else EnvValue.parse(value)


class Environment(BaseModel):
    """The environment of commands. They get no other variables of the host."""

    value: dict[str, str | EnvEntry | SerializeAsAny[EnvValue]] = Field(default_factory=dict)

    @field_validator("value", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: _parse_variable(entry) for name, entry in value.items()}

    def normalized(self) -> dict[str, EnvEntry]:
        """Return all variables as entries."""
        return {
            name: entry if isinstance(entry, EnvEntry) else EnvEntry.model_validate({"value": entry})
            for name, entry in self.value.items()
        }

    async def resolve(self) -> dict[str, str]:
        """Return the values of all variables."""
        return {name: await entry.value.resolve() for name, entry in self.normalized().items()}


def _parse_variable(entry: object) -> object:
    if not isinstance(entry, dict):
        return entry
    return EnvValue.parse(entry) if "type" in entry else EnvEntry.model_validate(entry)


class Manifest(BaseModel):
    """What a new workspace starts with. Paths of entries are relative to its root."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    root: str = "/workspace"
    entries: dict[str | Path, SerializeAsAny[BaseEntry]] = Field(default_factory=dict)
    environment: Environment = Field(default_factory=Environment)
    users: list[User] = Field(default_factory=list)
    groups: list[Group] = Field(default_factory=list)
    extra_path_grants: tuple[SandboxPathGrant, ...] = ()
    remote_mount_command_allowlist: list[str] = Field(default_factory=list)

    @field_validator("entries", mode="before")
    @classmethod
    def _parse_entries(cls, entries: object) -> object:
        return parse_entries(entries)

    def with_ephemeral_environment(self, other: "Manifest") -> "Manifest":
        """Return the manifest with the ephemeral variables of another one, which saved states do not have."""
        added = {name: entry for name, entry in other.environment.normalized().items() if entry.ephemeral}
        if not added:
            return self
        return self.model_copy(update={"environment": Environment(value={**self.environment.value, **added})})

    def with_additions(self, other: "Manifest") -> "Manifest":
        """Return the manifest with the entries and variables of another one that it does not have itself."""
        entries = {**other.entries, **self.entries}
        variables = {**other.environment.value, **self.environment.value}
        unchanged = variables.keys() == self.environment.value.keys()
        environment = self.environment if unchanged else Environment(value=variables)
        return self.model_copy(update={"entries": entries, "environment": environment})

    def validated_entries(self) -> dict[str | Path, BaseEntry]:
        """Return the entries, or raise :class:`InvalidManifestPathError` for a path that leaves the workspace."""
        for path, _ in self.iter_entries():
            to_relative_path(path)
        return dict(self.entries)

    def list_host_access(self) -> set[str]:
        """Return what the manifest takes from the host, each as words: granted paths, copies and repositories."""
        found = {f"reads {grant.path}" for grant in self.extra_path_grants}
        found |= {f"writes to {grant.path}" for grant in self.extra_path_grants if not grant.read_only}
        for _, entry in self.iter_entries():
            if not isinstance(entry, (File, Dir)):
                source = entry.model_dump_json(exclude={"description", "ephemeral", "group", "permissions", "is_dir"})
                found.add(f"begins with {source}")
        return found

    def iter_entries(self) -> Iterator[tuple[Path, BaseEntry]]:
        """Yield every entry with its path, children of directories included."""
        yield from _iter_entries(Path(), self.entries)

    def ephemeral_entry_paths(self, depth: int | None = 1) -> set[Path]:
        """Return the paths of ephemeral entries, of the first ``depth`` levels or of all."""
        return {
            path
            for path, entry in self.iter_entries()
            if entry.ephemeral and (depth is None or len(path.parts) <= depth)
        }

    def ephemeral_persistence_paths(self, depth: int | None = 1) -> set[Path]:
        """Return the paths that snapshots leave out."""
        return self.ephemeral_entry_paths(depth)

    def mount_targets(self) -> list[tuple[Mount, Path]]:
        """Return the entries for remote storage, with the paths where they would be mounted."""
        return [
            (entry, Path(self.root) / (entry.mount_path or path))
            for path, entry in self.iter_entries()
            if isinstance(entry, Mount)
        ]

    def ephemeral_mount_targets(self) -> list[tuple[Mount, Path]]:
        """Return the mounts that snapshots leave out, with their paths."""
        return [target for target in self.mount_targets() if target[0].ephemeral]

    def describe(self, depth: int | None = 1) -> str:
        """Return the entries as a tree, one line for each with its path and its description."""
        rows = list(_draw_tree(self.entries, PurePosixPath(self.root), "", 1, depth))
        width = max((len(drawn) for drawn, _ in rows), default=0)
        return "\n".join([self.root, *(f"{drawn:<{width}}  # {comment}" for drawn, comment in rows), ""])


def _iter_entries(prefix: Path, entries: dict[str | Path, BaseEntry]) -> Iterator[tuple[Path, BaseEntry]]:
    for name, entry in entries.items():
        yield prefix / name, entry
        if isinstance(entry, Dir):
            yield from _iter_entries(prefix / name, entry.children)


def _draw_tree(
    entries: dict[str | Path, BaseEntry], parent: PurePosixPath, indent: str, level: int, depth: int | None
) -> Iterator[tuple[str, str]]:
    ordered = sorted(entries.items(), key=lambda pair: str(pair[0]))
    for at, (name, entry) in enumerate(ordered, 1):
        last = at == len(ordered)
        path = parent / Path(name).as_posix()
        comment = str(path) + (f" — {entry.description}" if entry.description else "")
        yield f"{indent}{'└── ' if last else '├── '}{Path(name).as_posix()}{'/' if entry.is_dir else ''}", comment
        if isinstance(entry, Dir) and (depth is None or level < depth):
            yield from _draw_tree(entry.children, path, indent + ("    " if last else "│   "), level + 1, depth)
