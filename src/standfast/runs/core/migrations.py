"""Versions of saved runs: a chain of small functions, each from one version to the next.

The writer always writes the newest version; the reader accepts every version from which the chain leads there.
To change what is saved, add a function at the end and a golden file to the tests.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from standfast.agents.errors import UserError

VERSION_KEY = "$schemaVersion"

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class UnreadableState(UserError):
    """This is no saved run, or none that this version of standfast can read. ``path`` says where it went wrong."""

    code = "unreadable-state"

    def __init__(self, problem: str, *, path: str = "$") -> None:
        super().__init__(f"the saved run cannot be read: {problem}")
        self.path = path


class UnknownVersion(UnreadableState):
    """The run was saved in a version that this standfast does not know: probably by a newer one."""

    code = "unknown-state-version"

    def __init__(self, found: str) -> None:
        super().__init__(
            f"it has version {found!r}, and this standfast reads up to {CURRENT_SCHEMA_VERSION!r}", path=VERSION_KEY
        )
        self.found, self.known = found, CURRENT_SCHEMA_VERSION


def upgrade_to_1(saved: dict[str, Any]) -> dict[str, Any]:
    """The first version: one transcript, call records, decisions, and agents by path and signature."""
    return saved


# Each entry makes its version of the one before it; the first has none before it.
UPGRADES: dict[str, Upgrade] = {"1": upgrade_to_1}

CURRENT_SCHEMA_VERSION = list(UPGRADES)[-1]
SUPPORTED_SCHEMA_VERSIONS = frozenset(UPGRADES)
SCHEMA_VERSION_SUMMARIES = {
    version: (upgrade.__doc__ or "").strip().splitlines()[0] for version, upgrade in UPGRADES.items()
}


def upgrade_saved_run(saved: Any) -> dict[str, Any]:
    """A saved run in the newest version, or a typed error that names both versions."""
    if not isinstance(saved, dict):
        raise UnreadableState(f"it must be a JSON object, not {type(saved).__name__}")
    found = saved.get(VERSION_KEY)
    if not isinstance(found, str):
        raise UnreadableState(f"it has no {VERSION_KEY}", path=VERSION_KEY)
    if found not in UPGRADES:
        raise UnknownVersion(found)
    plain: dict[str, Any] = saved
    versions = list(UPGRADES)
    for version in versions[versions.index(found) + 1 :]:
        plain = {**UPGRADES[version](plain), VERSION_KEY: version}
    return plain
