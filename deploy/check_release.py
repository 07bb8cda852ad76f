"""Check that the version is the same everywhere and that the changelog describes it, for ``make release-check``."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def find_problems(root: Path) -> list[str]:
    """Return what is wrong with the versions in the files below ``root``."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    problems = []
    if f'__version__ = "{version}"' not in (root / "src/standfast/__init__.py").read_text():
        problems.append(f"src/standfast/__init__.py has another version than pyproject.toml, which has {version}")
    latest = re.search(
        r"^## (\S+)(?: \(([^)\n]*)\))?\n(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(), re.M | re.S
    )
    if latest is None or latest[1] != version:
        problems.append(f"the first section of CHANGELOG.md is not about {version}")
    elif "\n- " not in latest[3]:
        problems.append(f"CHANGELOG.md names no change in {version}")
    elif latest[2] != "unreleased" and not re.fullmatch(r"\d{4}-\d\d-\d\d", latest[2] or ""):
        problems.append(f"CHANGELOG.md must give the day of {version}, such as (2026-11-18), or (unreleased)")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(find_problems(ROOT)) or 0)
