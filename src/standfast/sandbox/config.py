"""Settings of runs in a sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from standfast.agents.errors import InvalidDeclaration
from standfast.agents.model_settings import ModelSettings, Reasoning, coerce_settings

if TYPE_CHECKING:
    from standfast.sandbox.client import BaseSandboxClient
    from standfast.sandbox.manifest import Manifest
    from standfast.sandbox.sessions import BaseSandboxSession, SandboxSessionState
    from standfast.sandbox.snapshot import SnapshotBase, SnapshotSpec

DEFAULT_PYTHON_SANDBOX_IMAGE = "python:3.14-slim"


@dataclass
class SandboxConcurrencyLimits:
    """How many entries of a manifest and files of a local directory are copied at once; None is no limit.

    The workspaces of standfast are filled by one archive, so that the limits have no effect on them.
    """

    manifest_entries: int | None = 4
    local_dir_files: int | None = 4

    def validate(self) -> None:
        """Raise ``ValueError`` for a limit below 1."""
        for name in ("manifest_entries", "local_dir_files"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass
class SandboxArchiveLimits:
    """Limits of archives that are extracted into a workspace; None is no limit."""

    max_input_bytes: int | None = 1 << 30
    max_extracted_bytes: int | None = 4 << 30
    max_members: int | None = 100_000

    def validate(self) -> None:
        """Raise ``ValueError`` for a limit below 1."""
        for name in ("max_input_bytes", "max_extracted_bytes", "max_members"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def check_input(self, size: int) -> None:
        """Refuse an archive that is too large."""
        self._check("the archive has more than {} bytes", size, self.max_input_bytes)

    def check_members(self, count: int) -> None:
        """Refuse an archive with too many members."""
        self._check("the archive has more than {} members", count, self.max_members)

    def check_extracted(self, size: int) -> None:
        """Refuse an archive whose contents are too large."""
        self._check("the contents of the archive have more than {} bytes", size, self.max_extracted_bytes)

    @staticmethod
    def _check(text: str, value: int, limit: int | None) -> None:
        if limit is not None and value > limit:
            raise ValueError(text.format(limit))


def _check_cwd(cwd: str | PurePath) -> str:
    """Return a directory below the workspace as text."""
    text = cwd.as_posix() if isinstance(cwd, PurePath) else cwd
    problem = None
    if not isinstance(text, str) or not text:
        problem = "must be non-empty"
    elif text.startswith("/") or PureWindowsPath(text).drive:
        problem = "must be relative to the workspace"
    elif "\\" in text:
        problem = "must have POSIX separators"
    elif ".." in text.split("/"):
        problem = "must not contain parent segments"
    if problem is not None:
        raise InvalidDeclaration("SandboxRunConfig", f"cwd {problem}, got {cwd!r}")
    return text


@dataclass
class SandboxRunConfig:
    """Where the agents of a run work: in ``session``, or in one that ``client`` resumes or creates for the run.

    A session that is passed in is not closed. A session of the run is closed with it; of a run that pauses, the
    workspace is kept until the run is resumed. ``cwd`` is the directory that relative paths of the model start from.
    """

    client: "BaseSandboxClient[Any] | None" = None
    options: Any | None = None
    session: "BaseSandboxSession | None" = None
    session_state: "SandboxSessionState | None" = None
    manifest: "Manifest | None" = None
    snapshot: "SnapshotSpec | SnapshotBase | None" = None
    concurrency_limits: SandboxConcurrencyLimits = field(default_factory=SandboxConcurrencyLimits)
    archive_limits: SandboxArchiveLimits | None = None
    cwd: str | PurePath | None = None

    def __post_init__(self) -> None:
        if self.cwd is not None:
            self.cwd = _check_cwd(self.cwd)
        self.concurrency_limits = coerce_settings(SandboxConcurrencyLimits, self.concurrency_limits)
        if self.archive_limits is not None:
            self.archive_limits = coerce_settings(SandboxArchiveLimits, self.archive_limits)
        if isinstance(self.manifest, Mapping):
            from standfast.sandbox.manifest import Manifest

            self.manifest = Manifest.model_validate(self.manifest)


@dataclass
class MemoryLayoutConfig:
    """The directories of the workspace for memories and for summaries of sessions."""

    memories_dir: str = "memories"
    sessions_dir: str = "sessions"


@dataclass
class MemoryReadConfig:
    """How an agent reads memories. With ``live_update`` it may also change them while it works."""

    live_update: bool = True


def _make_memory_settings() -> ModelSettings:
    return ModelSettings(reasoning=Reasoning(effort="medium"))


@dataclass
class MemoryGenerateConfig:
    """How memories are written when a session ends: a summary of each run, then one text from all summaries."""

    max_raw_memories_for_consolidation: int = 256
    phase_one_model: Any = "gpt-5.4-mini"
    phase_one_model_settings: ModelSettings | None = field(default_factory=_make_memory_settings)
    phase_two_model: Any = "gpt-5.5"
    phase_two_model_settings: ModelSettings | None = field(default_factory=_make_memory_settings)
    extra_prompt: str | None = None
    phase_two_max_turns: int = 500
