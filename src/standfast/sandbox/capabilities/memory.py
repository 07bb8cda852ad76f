"""Memories: what runs in a workspace have learned, for later runs in it."""

from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from standfast.sandbox.capabilities.capability import Capability
from standfast.sandbox.config import MemoryGenerateConfig, MemoryLayoutConfig, MemoryReadConfig
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.memory_files import MemoryFiles

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
