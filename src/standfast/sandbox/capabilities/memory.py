"""Memories: what runs in a workspace have learned, the files in which it is kept, and how later runs get it."""

import hashlib
import io
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, Field

from standfast.sandbox.capabilities.capability import Capability
from standfast.sandbox.config import MemoryGenerateConfig, MemoryLayoutConfig, MemoryReadConfig
from standfast.sandbox.errors import SandboxError, WorkspaceReadNotFoundError
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.sessions import BaseSandboxSession

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_SLUG = 80
MAX_SUMMARY_CHARACTERS = 20_000
_INSTRUCTIONS = """\
## Memory

Earlier runs in this workspace have left notes. Look at them if the task has to do with this workspace, with earlier
work or with what the user prefers; leave them alone for tasks that need no context.
- `{directory}/memory_summary.md`: a short overview. You find it below, do not open it again.
- `{directory}/MEMORY.md`: the index. Search it for words of the task first.
- `{directory}/rollout_summaries/`: one file for each earlier conversation. Open one only if the index leads to it and
  the task needs the detail.
- `{directory}/skills/`: procedures that have worked, each with a `SKILL.md`.

Notes can be out of date. The files, the output of commands and what the user says now count more.
{update}
Memory summary:

{summary}"""
_UPDATE = """\
If you find that a note is wrong, or the user asks you to remember something, change `{directory}/MEMORY.md` before your
final answer.
"""
_READ_ONLY = """\
Do not change any file below `{directory}`.
"""


class RolloutExtractionArtifacts(BaseModel):
    """A name for the task, a summary of the conversation, and points for later."""

    rollout_slug: str
    rollout_summary: str
    raw_memory: str


@dataclass(frozen=True)
class RolloutEntry:
    """The notes about one conversation."""

    rollout_id: str
    updated_at: str
    rollout_path: str
    rollout_summary_file: str
    terminal_state: str


def make_rollout_id(name: str) -> str:
    """Return a name of a conversation that can be the name of a file."""
    safe = _UNSAFE.sub("_", name).strip(".")[:120]
    return safe if safe == name else f"{safe}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def make_slug(name: str) -> str:
    return _UNSAFE.sub("_", name.lower().replace(".", "_")).strip("_-")[:_MAX_SLUG] or "notes"


class MemoryFiles:
    """Reads and writes the files of one layout."""

    def __init__(self, session: BaseSandboxSession, layout: MemoryLayoutConfig) -> None:
        self._session = session
        self.sessions, self.directory = PurePosixPath(layout.sessions_dir), PurePosixPath(layout.memories_dir)
        self.summary, self.index = self.directory / "memory_summary.md", self.directory / "MEMORY.md"
        self.selection = self.directory / "phase_two_selection.json"
        self.merged = self.directory / "raw_memories.md"

    async def read(self, path: PurePosixPath) -> str:
        """Return the text of a file, or an empty string if it does not exist."""
        try:
            content = (await self._session.read(Path(path))).read()
        except WorkspaceReadNotFoundError:
            return ""
        return content.decode(errors="replace") if isinstance(content, bytes) else str(content)

    async def write(self, path: PurePosixPath, text: str) -> None:
        await self._session.write(Path(path), io.BytesIO(text.encode()))

    async def append_segment(self, rollout_id: str, segment: dict[str, Any]) -> None:
        """Add a part of a conversation, and create the files that later runs look for."""
        line = json.dumps({"updated_at": get_timestamp(), "rollout_id": rollout_id, **segment}, separators=(",", ":"))
        path = self.sessions / f"{rollout_id}.jsonl"
        await self.write(path, f"{await self.read(path)}{line}\n")
        for file in (self.summary, self.index):
            if not await self.read(file):
                await self.write(file, "")

    async def read_segments(self, rollout_id: str) -> list[dict[str, Any]]:
        text = await self.read(self.sessions / f"{rollout_id}.jsonl")
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    async def save_notes(self, rollout_id: str, segments: list[dict[str, Any]], notes: Any) -> None:
        """Write what was noted about a conversation: ``rollout_slug``, ``rollout_summary`` and ``raw_memory``."""
        await self._forget(entry for entry in await self.list_entries() if entry.rollout_id == rollout_id)
        entry = RolloutEntry(
            rollout_id,
            str(segments[-1]["updated_at"]),
            str(self.sessions / f"{rollout_id}.jsonl"),
            f"rollout_summaries/{rollout_id}_{make_slug(notes.rollout_slug)}.md",
            str(segments[-1]["terminal_metadata"]["terminal_state"]),
        )
        head = f"updated_at: {entry.updated_at}\nrollout_path: {entry.rollout_path}\n"
        session = f"session_id: {self._session.state.session_id}\n"
        state = f"terminal_state: {entry.terminal_state}\n\n"
        await self.write(
            self.directory / entry.rollout_summary_file, f"{session}{head}{state}{notes.rollout_summary.rstrip()}\n"
        )
        raw = f"rollout_id: {rollout_id}\n{head}rollout_summary_file: {entry.rollout_summary_file}\n{state}"
        await self.write(self._get_raw_path(rollout_id), f"{raw}{notes.raw_memory.rstrip()}\n")

    async def list_entries(self) -> list[RolloutEntry]:
        """Return the conversations with notes, the one that was changed last first."""
        try:
            found = await self._session.ls(str(self.directory / "raw_memories"))
        except SandboxError:
            return []
        names = [PurePosixPath(one.path).name for one in found if one.path.endswith(".md")]
        entries = [_parse_entry(await self.read(self.directory / "raw_memories" / name)) for name in names]
        return sorted((one for one in entries if one is not None), key=lambda one: one.updated_at, reverse=True)

    async def select(self, limit: int) -> list[RolloutEntry]:
        """Merge the notes about the latest ``limit`` conversations into one file, and delete those about older ones."""
        entries = await self.list_entries()
        await self._forget(entries[limit:])
        selected = entries[:limit]
        texts = [await self.read(self._get_raw_path(entry.rollout_id)) for entry in selected]
        await self.write(self.merged, "\n\n".join(text.rstrip() for text in texts))
        listed = {"version": 1, "updated_at": get_timestamp(), "selected": [asdict(entry) for entry in selected]}
        await self.write(self.selection, json.dumps(listed, indent=2) + "\n")
        return selected

    async def _forget(self, entries: Iterable[RolloutEntry]) -> None:
        for entry in entries:
            for path in (self._get_raw_path(entry.rollout_id), self.directory / entry.rollout_summary_file):
                try:
                    await self._session.rm(str(path))
                except SandboxError:  # it is gone
                    continue

    def _get_raw_path(self, rollout_id: str) -> PurePosixPath:
        return self.directory / "raw_memories" / f"{rollout_id}.md"


def _parse_entry(text: str) -> RolloutEntry | None:
    head = dict(line.partition(": ")[::2] for line in text.partition("\n\n")[0].splitlines())
    try:
        return RolloutEntry(**{name: head[name] for name in RolloutEntry.__dataclass_fields__})
    except KeyError:
        return None


def get_timestamp() -> str:
    return datetime.now(UTC).isoformat()


class Memory(Capability):
    """Lets an agent read what earlier runs have learned, and makes notes of its runs when the session ends.

    Reading needs :class:`Shell`, and ``live_update`` also :class:`Filesystem`. ``read=None`` and ``generate=None`` turn
    one of the two off.
    """

    type: Literal["memory"] = "memory"
    layout: MemoryLayoutConfig = Field(default_factory=MemoryLayoutConfig)
    read: MemoryReadConfig | None = Field(default_factory=MemoryReadConfig)
    generate: MemoryGenerateConfig | None = Field(default_factory=MemoryGenerateConfig)

    def model_post_init(self, context: object, /) -> None:
        if self.read is None and self.generate is None:
            raise ValueError("Memory requires at least one of `read` or `generate`.")
        for name in ("memories_dir", "sessions_dir"):
            path = PurePosixPath(getattr(self.layout, name))
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"layout.{name} must be a relative path inside of the workspace, got {str(path)!r}")

    def required_capability_types(self) -> set[str]:
        if self.read is None:
            return set()
        return {"filesystem", "shell"} if self.read.live_update else {"shell"}

    async def instructions(self, manifest: Manifest) -> str | None:
        if self.read is None:
            return None
        files = MemoryFiles(self.require_session(), self.layout)
        summary = (await files.read(files.summary)).strip()
        if not summary:
            return None
        directory = self.layout.memories_dir
        update = (_UPDATE if self.read.live_update else _READ_ONLY).format(directory=directory)
        shown = summary[:MAX_SUMMARY_CHARACTERS]
        return _INSTRUCTIONS.format(directory=directory, update=update, summary=shown)
