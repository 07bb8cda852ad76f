"""Errors of sandboxes. Each has a stable ``error_code``, the operation that failed, and its facts in ``context``."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, ClassVar

from standfast.sandbox.error_codes import ErrorCode as ErrorCode


class SandboxError(Exception):
    """The base of all errors of sandboxes."""

    default_code: ClassVar[ErrorCode] = ErrorCode.SANDBOX_CONFIG_INVALID
    default_op: ClassVar[str] = "exec"

    def __init__(
        self,
        message: str,
        error_code: ErrorCode | None = None,
        op: str | None = None,
        context: Mapping[str, Any] | None = None,
        cause: BaseException | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error_code, self.op = error_code or self.default_code, op or self.default_op
        self.context, self.cause, self.retryable = dict(context or {}), cause, retryable
        self.__cause__ = cause

    @property
    def code(self) -> str:
        """The code of the error."""
        return self.error_code.value


class ConfigurationError(SandboxError):
    """A manifest, a path or an option cannot be used."""

    default_op = "materialize"


class SandboxRuntimeError(SandboxError):
    """An operation on a running sandbox failed."""


class ArtifactError(SandboxError):
    """An entry of a manifest could not be created."""

    default_op = "materialize"


class SnapshotError(SandboxError):
    """A snapshot could not be written or read."""


class InvalidManifestPathError(ConfigurationError):
    """A path is absolute where it must be relative, or leaves the workspace."""

    default_code = ErrorCode.INVALID_MANIFEST_PATH

    def __init__(
        self, *, rel: str | PurePath, reason: str, context: Mapping[str, Any] | None = None, cause: Any = None
    ) -> None:
        what = "must be relative" if reason == "absolute" else "must not leave the workspace"
        super().__init__(
            f"manifest path {what}: {rel}", context={"rel": str(rel), "reason": reason, **(context or {})}, cause=cause
        )


class InvalidCompressionSchemeError(ConfigurationError):
    """An archive is neither tar nor zip."""

    default_code = ErrorCode.INVALID_COMPRESSION_SCHEME

    def __init__(self, *, path: Path, scheme: str | None, context: Any = None, cause: Any = None) -> None:
        super().__init__(
            f"{path}: an archive must be tar or zip, not {scheme!r}", context={"path": str(path)}, cause=cause
        )


class UnsupportedAccountError(ConfigurationError, ValueError):
    """A kind of sandbox has no accounts for the users and groups of a manifest."""


class SkillsConfigError(ConfigurationError):
    """The sources of skills contradict each other, or a skill does not exist."""

    default_code = ErrorCode.SKILLS_CONFIG_INVALID

    def __init__(self, *, message: str, context: Any = None, cause: Any = None) -> None:
        super().__init__(message, context=context, cause=cause)


class ExecFailureError(SandboxRuntimeError):
    """A command could not be run to its end."""

    def __init__(self, message: str, *, command: Sequence[str | Path], **facts: Any) -> None:
        self.command = tuple(map(str, command))
        context = {"command": self.command, **(facts.pop("context", None) or {})}
        super().__init__(message, context=context, **facts)


class ExecTimeoutError(ExecFailureError):
    """The command did not end in time and was killed."""

    default_code = ErrorCode.EXEC_TIMEOUT

    def __init__(
        self, *, command: Sequence[str | Path], timeout_s: float | None, context: Any = None, cause: Any = None
    ) -> None:
        super().__init__("command timed out", command=command, context=context, cause=cause)
        self.timeout_s = timeout_s


class ExecTransportError(ExecFailureError):
    """The sandbox could not start the command, or ended while it ran."""

    default_code = ErrorCode.EXEC_TRANSPORT_ERROR

    def __init__(
        self,
        *,
        command: Sequence[str | Path],
        context: Any = None,
        cause: Any = None,
        message: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(
            message or f"the sandbox could not run the command: {cause}",
            command=command,
            context=context,
            cause=cause,
            retryable=retryable,
        )


class ExposedPortUnavailableError(SandboxRuntimeError):
    """A port of the sandbox is not reachable from outside."""

    default_code, default_op = ErrorCode.EXPOSED_PORT_UNAVAILABLE, "resolve_exposed_port"

    def __init__(
        self,
        *,
        port: int,
        exposed_ports: Sequence[int],
        reason: str,
        context: Any = None,
        cause: Any = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(
            f"port {port} of the sandbox is not reachable: {reason}",
            context={"port": port, "exposed_ports": tuple(exposed_ports), "reason": reason, **(context or {})},
            cause=cause,
            retryable=retryable,
        )


class PtySessionNotFoundError(SandboxRuntimeError):
    """There is no running command with this number."""

    default_code = ErrorCode.PTY_SESSION_NOT_FOUND

    def __init__(self, *, session_id: int, context: Any = None, cause: Any = None) -> None:
        super().__init__(f"PTY session not found: {session_id}", context=context, cause=cause)
        self.session_id = session_id


class WorkspaceIOError(SandboxRuntimeError):
    """A file of the workspace could not be read or written."""

    verb: ClassVar[str] = "cannot be used"

    def __init__(
        self,
        *,
        path: str | PurePath,
        message: str | None = None,
        context: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        context = {"path": str(path), **(context or {})}
        super().__init__(message or f"{path} {self.verb}", context=context, **facts)


class WorkspaceReadNotFoundError(WorkspaceIOError):
    """The file does not exist."""

    default_code, default_op = ErrorCode.WORKSPACE_READ_NOT_FOUND, "read"

    def __init__(self, *, path: str | PurePath, context: Any = None, cause: Any = None) -> None:
        super().__init__(path=path, message=f"file not found: {path}", context=context, cause=cause)


class WorkspaceWriteTypeError(WorkspaceIOError):
    """The data to write are neither bytes nor text."""

    default_code, default_op = ErrorCode.WORKSPACE_WRITE_TYPE_ERROR, "write"

    def __init__(self, *, path: str | PurePath, actual_type: str, context: Any = None, cause: Any = None) -> None:
        super().__init__(
            path=path, message=f"{path}: expected a file object, got {actual_type}", context=context, cause=cause
        )


class WorkspaceArchiveReadError(WorkspaceIOError):
    """The workspace could not be read as an archive."""

    default_code, default_op, verb = (
        ErrorCode.WORKSPACE_ARCHIVE_READ_ERROR,
        "persist_workspace",
        "could not be archived",
    )


class WorkspaceArchiveWriteError(WorkspaceIOError):
    """An archive could not be extracted, or a file not be written."""

    default_code, default_op, verb = (
        ErrorCode.WORKSPACE_ARCHIVE_WRITE_ERROR,
        "hydrate_workspace",
        "could not be written",
    )


class WorkspaceStartError(WorkspaceIOError):
    """The sandbox could not be started."""

    default_code, default_op, verb = ErrorCode.WORKSPACE_START_ERROR, "start", "could not be started"


class WorkspaceStopError(WorkspaceIOError):
    """The sandbox could not be stopped."""

    default_code, default_op, verb = ErrorCode.WORKSPACE_STOP_ERROR, "stop", "could not be stopped"


class _SnapshotFileError(SnapshotError):
    verb: ClassVar[str] = ""

    def __init__(self, *, snapshot_id: str, path: Path, context: Any = None, cause: Any = None) -> None:
        reason = f": {cause}" if cause else ""
        super().__init__(
            f"the snapshot {snapshot_id} {self.verb} {path}{reason}",
            context={"snapshot_id": snapshot_id, "path": str(path), **(context or {})},
            cause=cause,
        )


class SnapshotPersistError(_SnapshotFileError):
    """A snapshot could not be written."""

    default_code, default_op, verb = ErrorCode.SNAPSHOT_PERSIST_ERROR, "snapshot_persist", "could not be written to"


class SnapshotRestoreError(_SnapshotFileError):
    """A snapshot could not be read."""

    default_code, default_op, verb = ErrorCode.SNAPSHOT_RESTORE_ERROR, "snapshot_restore", "could not be read from"


class SnapshotNotRestorableError(_SnapshotFileError):
    """There is no snapshot to restore."""

    default_code, default_op, verb = ErrorCode.SNAPSHOT_NOT_RESTORABLE, "snapshot_restore", "does not exist at"


class LocalArtifactError(ArtifactError):
    """A file or directory of this machine could not be copied into the sandbox."""


class LocalFileReadError(LocalArtifactError):
    """A local file could not be read."""

    default_code = ErrorCode.LOCAL_FILE_READ_ERROR

    def __init__(self, *, src: Path, context: Any = None, cause: Any = None, message: str | None = None) -> None:
        super().__init__(
            message or f"{src} cannot be read: {cause}", context={"src": str(src), **(context or {})}, cause=cause
        )


class LocalDirReadError(LocalFileReadError):
    """A local directory could not be read."""

    default_code = ErrorCode.LOCAL_DIR_READ_ERROR


class GitArtifactError(ArtifactError):
    """A repository could not be copied into the sandbox."""


class GitCloneError(GitArtifactError):
    """``git`` could not fetch the repository."""

    default_code = ErrorCode.GIT_CLONE_ERROR

    def __init__(
        self, *, url: str, ref: str, stderr: str | None = None, context: Any = None, cause: Any = None
    ) -> None:
        super().__init__(
            f"git cannot fetch {ref!r} of {url}: {stderr or cause}",
            context={"url": url, "ref": ref, "stderr": stderr, **(context or {})},
            cause=cause,
        )


class MountArtifactError(ArtifactError):
    """Remote storage could not be mounted."""


class MountConfigError(MountArtifactError):
    """Remote storage cannot be mounted as it is described, or in this kind of sandbox."""

    default_code = ErrorCode.MOUNT_CONFIG_INVALID

    def __init__(self, *, message: str, context: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, context=context)


class MountToolMissingError(MountArtifactError):
    """The program that mounts storage is not installed."""

    default_code = ErrorCode.MOUNT_MISSING_TOOL

    def __init__(self, *, tool: str, context: Mapping[str, Any] | None = None, cause: Any = None) -> None:
        super().__init__(f"{tool} is not installed", context={"tool": tool, **(context or {})}, cause=cause)


class MountCommandError(MountArtifactError):
    """The program that mounts storage failed."""

    default_code = ErrorCode.MOUNT_FAILED

    def __init__(
        self,
        *,
        command: str,
        stderr: str | None,
        context: Mapping[str, Any] | None = None,
        cause: Any = None,
        retryable: bool | None = False,
    ) -> None:
        facts = {"command": command, "stderr": stderr, **(context or {})}
        super().__init__(f"{command} failed: {stderr}", context=facts, cause=cause, retryable=retryable)


class ApplyPatchError(ConfigurationError):
    """A patch cannot be applied."""

    default_op = "apply_patch"


class ApplyPatchPathError(ApplyPatchError):
    """The path of a patch is not in the workspace."""

    default_code = ErrorCode.APPLY_PATCH_INVALID_PATH

    def __init__(self, *, path: str | Path, reason: str, context: Any = None, cause: Any = None) -> None:
        facts = {"path": str(path), "reason": reason, **(context or {})}
        super().__init__(f"{path} is not a path in the workspace", context=facts, cause=cause)


class ApplyPatchDiffError(ApplyPatchError):
    """A patch is malformed, or does not fit its file."""

    default_code = ErrorCode.APPLY_PATCH_INVALID_DIFF

    def __init__(self, *, message: str, path: str | Path | None = None, context: Any = None, cause: Any = None) -> None:
        super().__init__(message, context={"path": str(path), **(context or {})}, cause=cause)


class ApplyPatchFileNotFoundError(WorkspaceIOError):
    """A patch changes a file that does not exist."""

    default_code, default_op = ErrorCode.APPLY_PATCH_FILE_NOT_FOUND, "apply_patch"

    def __init__(self, *, path: Path, context: Any = None, cause: Any = None) -> None:
        super().__init__(path=path, message=f"there is no file {path}", context=context, cause=cause)


class ApplyPatchDecodeError(WorkspaceIOError):
    """A patch changes a file that is not text."""

    default_code, default_op = ErrorCode.APPLY_PATCH_DECODE_ERROR, "apply_patch"

    def __init__(self, *, path: Path, context: Any = None, cause: Any = None) -> None:
        super().__init__(path=path, message=f"{path} is not a text file", context=context, cause=cause)
