"""Skills: directories with a ``SKILL.md``, listed for the model and copied into the workspace."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, field_validator

from standfast.agents.tools import Tool
from standfast.sandbox.capabilities.capability import Capability, SandboxTool
from standfast.sandbox.errors import SandboxError, SkillsConfigError
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.manifest_entries import BaseEntry, Dir, File, LocalDir, SourceRules
from standfast.sandbox.sessions import BaseSandboxSession
from standfast.sandbox.types import User
from standfast.sandbox.workspace_paths import SandboxPathGrant, to_relative_path

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"^(name|description)\s*:\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class SkillMetadata:
    """A skill as it is listed for the model."""

    name: str
    description: str
    path: Path


class Skill(BaseModel):
    """A skill that the program defines."""

    name: str
    description: str
    content: str | bytes | SerializeAsAny[BaseEntry]
    compatibility: str | None = None
    scripts: dict[str | Path, SerializeAsAny[BaseEntry]] = Field(default_factory=dict)
    references: dict[str | Path, SerializeAsAny[BaseEntry]] = Field(default_factory=dict)
    assets: dict[str | Path, SerializeAsAny[BaseEntry]] = Field(default_factory=dict)
    deferred: bool = False

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name or "/" in name or name in (".", ".."):
            raise ValueError(f"{name!r} cannot be the name of a skill")
        return name

    def content_artifact(self) -> BaseEntry:
        """Return the ``SKILL.md``."""
        if isinstance(self.content, BaseEntry):
            return self.content
        return File(content=self.content.encode() if isinstance(self.content, str) else self.content)

    def as_dir_entry(self) -> Dir:
        """Return the directory of the skill."""
        folders = {"scripts": self.scripts, "references": self.references, "assets": self.assets}
        children: dict[str | Path, BaseEntry] = {"SKILL.md": self.content_artifact()}
        children |= {name: Dir(children=entries) for name, entries in folders.items() if entries}
        return Dir(children=children, description=self.description)


class LazySkillSource(BaseModel, ABC):
    """Skills that are copied into the workspace when the model asks for one."""

    @abstractmethod
    def list_skill_metadata(
        self, *, skills_path: str, source_grants: tuple[SandboxPathGrant, ...] = ()
    ) -> list[SkillMetadata]:
        """Return the skills that there are."""

    @abstractmethod
    async def load_skill(
        self, *, skill_name: str, session: BaseSandboxSession, skills_path: str, user: str | User | None = None
    ) -> dict[str, str]:
        """Copy a skill into the workspace."""


class LocalDirLazySkillSource(LazySkillSource):
    """The directories of a local directory that have a ``SKILL.md``."""

    source: LocalDir

    def list_skill_metadata(
        self, *, skills_path: str, source_grants: tuple[SandboxPathGrant, ...] = ()
    ) -> list[SkillMetadata]:
        return [
            SkillMetadata(name, description, Path(skills_path) / folder.name)
            for folder, name, description in self._find_skills(source_grants)
        ]

    async def load_skill(
        self, *, skill_name: str, session: BaseSandboxSession, skills_path: str, user: str | User | None = None
    ) -> dict[str, str]:
        grants = session.state.manifest.extra_path_grants
        for folder, name, _ in self._find_skills(grants):
            if skill_name in (name, folder.name):
                path = PurePosixPath(skills_path) / folder.name
                # The folder was found below a directory that may be read.
                rules = SourceRules(folder.parent)
                await session.create_members(LocalDir(src=folder).iter_members(path, rules))
                return {"status": "loaded", "skill_name": name, "path": str(path)}
        raise SkillsConfigError(message=f"there is no skill {skill_name!r}")

    def _find_skills(self, grants: tuple[SandboxPathGrant, ...]) -> list[tuple[Path, str, str]]:
        if self.source.src is None:
            return []
        root = SourceRules(Path.cwd(), grants).resolve(self.source.src)
        found = []
        for file in sorted(root.glob("*/SKILL.md")):
            name, description = parse_front_matter(file.read_text(errors="replace"))
            found.append((file.parent, name or file.parent.name, description))
        return found


def parse_front_matter(text: str) -> tuple[str, str]:
    """Return name and description of a ``SKILL.md``; empty where it has none."""
    matter = _FRONT_MATTER.match(text)
    fields = dict(_FIELD.findall(matter.group(1))) if matter else {}
    return fields.get("name", "").strip("\"'"), fields.get("description", "").strip("\"'")


class LoadSkillArgs(BaseModel):
    skill_name: str


class LoadSkillTool(SandboxTool):
    """Copies a skill into the workspace."""

    tool_name = "load_skill"
    tool_description = "Copies one of the listed skills into the workspace, so that its files can be read."
    args_model = LoadSkillArgs
    skills: "Skills"

    async def run(self, args: LoadSkillArgs) -> dict[str, str]:
        try:
            return await self.skills.load_skill(args.skill_name)
        except SandboxError as problem:
            return {"status": "error", "skill_name": args.skill_name, "message": str(problem)}


_HOW_TO_USE = """\
### How to use skills
- Use a skill if the user names it, or if the task matches its description; use the fewest that cover the task.
- Read its `SKILL.md` first and follow it. Open further files of the skill only when they are needed.
- Prefer its scripts and templates to writing your own.
- If a skill is missing or does not fit, say so and continue without it."""


class Skills(Capability):
    """Skills from one source: given here, an entry with a directory of skills, or a lazy source."""

    type: Literal["skills"] = "skills"
    skills: list[Skill] = Field(default_factory=list)
    from_: SerializeAsAny[BaseEntry] | None = None
    lazy_from: SerializeAsAny[LazySkillSource] | None = None
    skills_path: str = ".agents"

    def model_post_init(self, context: Any, /) -> None:
        given = [bool(self.skills), self.from_ is not None, self.lazy_from is not None]
        if sum(given) != 1:
            raise SkillsConfigError(message="give exactly one of skills, from_ and lazy_from")
        to_relative_path(self.skills_path)

    def process_manifest(self, manifest: Manifest) -> Manifest:
        added: dict[str | Path, BaseEntry] = {}
        if self.from_ is not None:
            added[self.skills_path] = self.from_
        elif self.skills:
            ready = {skill.name: skill.as_dir_entry() for skill in self.skills if not skill.deferred}
            added = {f"{self.skills_path}/{name}": entry for name, entry in ready.items()}
        return manifest.model_copy(update={"entries": {**manifest.entries, **added}})

    async def instructions(self, manifest: Manifest) -> str | None:
        listed = await self._list_skills(manifest)
        if not listed:
            return None
        rows = [
            f"- {skill.name}: {skill.description} (file: {self.workspace_scope.model_path(skill.path)})"
            for skill in listed
        ]
        lazy = ["Call `load_skill` with the name of a skill before you read its files."] if self._is_lazy() else []
        return "\n".join(
            ["## Skills", "A skill is a directory with instructions for a kind of task.", *rows, *lazy, _HOW_TO_USE]
        )

    def tools(self) -> list[Tool]:
        if not self._is_lazy():
            return []
        tool = LoadSkillTool(session=self.require_session(), user=self.run_as)
        tool.skills = self
        return [tool]

    async def load_skill(self, skill_name: str) -> dict[str, str]:
        """Copy a skill of the lazy source, or a deferred one, into the workspace."""
        session = self.require_session()
        if self.lazy_from is not None:
            return await self.lazy_from.load_skill(
                skill_name=skill_name, session=session, skills_path=self.skills_path, user=self.run_as
            )
        for skill in self.skills:
            if skill.name == skill_name:
                path = PurePosixPath(self.skills_path) / skill.name
                rules = SourceRules(Path.cwd(), session.state.manifest.extra_path_grants)
                await session.create_members(skill.as_dir_entry().iter_members(path, rules))
                return {"status": "loaded", "skill_name": skill_name, "path": str(path)}
        raise SkillsConfigError(message=f"there is no skill {skill_name!r}")

    def _is_lazy(self) -> bool:
        return self.lazy_from is not None or any(skill.deferred for skill in self.skills)

    async def _list_skills(self, manifest: Manifest) -> list[SkillMetadata]:
        if self.lazy_from is not None:
            return self.lazy_from.list_skill_metadata(
                skills_path=self.skills_path, source_grants=manifest.extra_path_grants
            )
        if self.skills:
            return [
                SkillMetadata(skill.name, skill.description, Path(self.skills_path) / skill.name)
                for skill in self.skills
            ]
        return await self._read_skills(self.require_session())

    async def _read_skills(self, session: BaseSandboxSession) -> list[SkillMetadata]:
        found = []
        for entry in await session.ls(self.skills_path):
            name = PurePosixPath(entry.path).name
            path = Path(self.skills_path) / name
            if entry.is_dir():
                try:
                    text = (await session.read(path / "SKILL.md")).read().decode(errors="replace")
                except SandboxError:
                    continue
                title, description = parse_front_matter(text)
                found.append(SkillMetadata(title or name, description, path))
        return found
