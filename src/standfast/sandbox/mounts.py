"""Entries for remote storage, as data: manifests that have them can be built, shown and stored.

No sandbox of this package mounts them, because a local sandbox has no network: a client refuses such a manifest with
:class:`MountConfigError`. They are for manifests that sandboxes of another library use, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from standfast.sandbox.errors import MountConfigError
from standfast.sandbox.manifest_entries import ArchiveMember, BaseEntry, SourceRules


class MountPatternBase(BaseModel):
    """How a program inside of a container mounts storage."""

    model_config = ConfigDict(extra="forbid")


class FuseMountPattern(MountPatternBase):
    """By blobfuse2."""

    type: Literal["fuse"] = "fuse"
    allow_other: bool = True
    log_type: str = "syslog"
    log_level: str = "log_debug"
    cache_type: Literal["block_cache", "file_cache"] = "block_cache"
    cache_path: Path | None = None
    cache_size_mb: int | None = None
    block_cache_block_size_mb: int = 16
    block_cache_disk_timeout_sec: int = 3600
    file_cache_timeout_sec: int = 120
    file_cache_max_size_mb: int | None = None
    attr_cache_timeout_sec: int | None = None
    entry_cache_timeout_sec: int | None = None
    negative_entry_cache_timeout_sec: int | None = None


class MountpointMountPattern(MountPatternBase):
    """By mount-s3."""

    @dataclass
    class MountpointOptions:
        prefix: str | None = None
        region: str | None = None
        endpoint_url: str | None = None

    type: Literal["mountpoint"] = "mountpoint"
    options: MountpointOptions = Field(default_factory=MountpointOptions)


class RcloneMountPattern(MountPatternBase):
    """By rclone."""

    type: Literal["rclone"] = "rclone"
    mode: Literal["fuse", "nfs"] = "fuse"
    remote_name: str | None = None
    extra_args: list[str] = Field(default_factory=list)
    nfs_addr: str | None = None
    nfs_mount_options: list[str] | None = None
    config_file_path: Path | None = None


class S3FilesMountPattern(MountPatternBase):
    """By mount.s3files."""

    @dataclass
    class S3FilesOptions:
        mount_target_ip: str | None = None
        access_point: str | None = None
        region: str | None = None
        extra_options: dict[str, str | None] = field(default_factory=dict)

    type: Literal["s3files"] = "s3files"
    options: S3FilesOptions = Field(default_factory=S3FilesOptions)


MountPattern = Annotated[
    FuseMountPattern | MountpointMountPattern | RcloneMountPattern | S3FilesMountPattern, Field(discriminator="type")
]


class MountStrategyBase(BaseModel):
    """Who mounts storage. Subclasses are found by their ``type``."""

    model_config = ConfigDict(extra="forbid")
    _types: ClassVar[dict[str, type["MountStrategyBase"]]] = {}

    type: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        MountStrategyBase._types[cls.model_fields["type"].default] = cls

    @classmethod
    def parse(cls, payload: object) -> "MountStrategyBase":
        """Return a strategy of its type from plain data; a strategy is returned as it is."""
        if isinstance(payload, MountStrategyBase):
            return payload
        kind = payload.get("type") if isinstance(payload, dict) else None
        if kind not in MountStrategyBase._types:
            raise ValueError(f"{kind!r} is not a type of mount strategy")
        return MountStrategyBase._types[kind].model_validate(payload)


class InContainerMountStrategy(MountStrategyBase):
    """A program inside of the container mounts it."""

    type: Literal["in_container"] = "in_container"
    pattern: MountPattern


class DockerVolumeMountStrategy(MountStrategyBase):
    """A volume driver of Docker mounts it."""

    type: Literal["docker_volume"] = "docker_volume"
    driver: str
    driver_options: dict[str, str] = Field(default_factory=dict)


MountStrategy = Annotated[MountStrategyBase, SerializeAsAny()]


class Mount(BaseEntry):
    """Remote storage that appears in a workspace. It is not part of snapshots."""

    ephemeral: bool = True
    is_dir: bool = True
    mount_path: Path | None = None
    read_only: bool = True
    mount_strategy: MountStrategy

    @field_validator("mount_strategy", mode="before")
    @classmethod
    def _parse_strategy(cls, strategy: object) -> object:
        return MountStrategyBase.parse(strategy)

    def iter_members(self, path: PurePosixPath, rules: SourceRules) -> Iterator[ArchiveMember]:
        self.refuse(path)

    def refuse(self, path: PurePath) -> NoReturn:
        """Raise the reason why this is not mounted."""
        raise MountConfigError(
            message=f"{path} is remote storage ({self.type}), which a local sandbox cannot mount: it has no network. "
            "Copy the files into the workspace, with LocalDir or File",
            context={"type": self.type, "path": str(path)},
        )


Secret = Annotated[str | None, Field(default=None, repr=False)]


class S3Mount(Mount):
    """A bucket of Amazon S3, or of another service with its API."""

    type: Literal["s3_mount"] = "s3_mount"
    bucket: str
    access_key_id: str | None = None
    secret_access_key: Secret
    session_token: Secret
    prefix: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    s3_provider: str = "AWS"


class R2Mount(Mount):
    """A bucket of Cloudflare R2."""

    type: Literal["r2_mount"] = "r2_mount"
    bucket: str
    account_id: str
    access_key_id: str | None = None
    secret_access_key: Secret
    custom_domain: str | None = None


class GCSMount(Mount):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs_mount"] = "gcs_mount"
    bucket: str
    access_id: str | None = None
    secret_access_key: Secret
    prefix: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    service_account_file: str | None = None
    service_account_credentials: Secret
    access_token: Secret


class AzureBlobMount(Mount):
    """A container of Azure Blob Storage."""

    type: Literal["azure_blob_mount"] = "azure_blob_mount"
    account: str
    container: str
    endpoint: str | None = None
    identity_client_id: str | None = None
    account_key: Secret


class BoxMount(Mount):
    """A folder of Box."""

    type: Literal["box_mount"] = "box_mount"
    path: str | None = None
    client_id: str | None = None
    client_secret: Secret
    access_token: Secret
    token: Secret
    box_config_file: str | None = None
    config_credentials: Secret
    box_sub_type: Literal["user", "enterprise"] = "user"
    root_folder_id: str | None = None
    impersonate: str | None = None
    owned_by: str | None = None


class S3FilesMount(Mount):
    """A file system of Amazon S3 Files."""

    type: Literal["s3_files_mount"] = "s3_files_mount"
    file_system_id: str
    subpath: str | None = None
    mount_target_ip: str | None = None
    access_point: str | None = None
    region: str | None = None
    extra_options: dict[str, str | None] = Field(default_factory=dict)
