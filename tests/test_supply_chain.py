"""The lock files pin all that is installed for development, and the licences of what is shipped are known."""

import re
import tomllib
from pathlib import Path

import list_licences
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LOCKS = ["requirements-dev.txt", "requirements-weights.txt", "requirements-fleet.txt"]
COPYLEFT = re.compile(r"GPL|MPL|Mozilla|EUPL|SSPL|not declared", re.IGNORECASE)


def read_entries(name: str) -> list[str]:
    """Return the entries of a lock file, each on one line."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def read_locked() -> dict[str, list[Requirement]]:
    locked: dict[str, list[Requirement]] = {}
    for entry in (*read_entries("requirements-dev.txt"), *read_entries("requirements-fleet.txt")):
        requirement = Requirement(entry.partition("--hash")[0].strip())
        locked.setdefault(list_licences.normalize(requirement.name), []).append(requirement)
    return locked


# Their dependencies clash with the others; ``make adapters`` installs them in an environment of their own.
UNLOCKED_EXTRAS = ("litellm", "any-llm")


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_has_an_exact_version_and_a_hash_and_no_address(name: str) -> None:
    entries = read_entries(name)
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9.-]*==\S+ .*--hash=sha256:[0-9a-f]{64}", entry), entry
        assert "://" not in entry


def test_the_lock_file_has_everything_that_the_project_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name not in UNLOCKED_EXTRAS}
    declared = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    locked = read_locked()
    for requirement in map(Requirement, declared):
        if requirement.name != "standfast":
            pins = locked[list_licences.normalize(requirement.name)]
            for pin in pins:
                assert all(requirement.specifier.contains(each.version) for each in pin.specifier), str(pin)


def test_the_licence_of_everything_that_is_shipped_is_listed_and_permissive() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shipped = list_licences.find_packages(set(extras) - set(list_licences.DEVELOPMENT_EXTRAS))
    assert {"msgspec", "pydantic", "openai", "websockets", "xllamacpp"} <= shipped
    section = list_licences.PAGE.read_text().partition("## Only for")[0]
    for name in sorted(shipped):
        licence = list_licences.get_licence(name)
        assert f"| {name} | {licence} |" in section, "run python docs/list_licences.py"
        assert not COPYLEFT.search(licence), f"{name}: {licence}"
