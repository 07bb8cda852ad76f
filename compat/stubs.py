"""Write the stubs of the modules in ``module_paths.toml``, so that type checkers know them.

They are a partial stub package (PEP 561) beside the package itself. Run it after changing the table:
``python -m compat.stubs``; a test fails if they differ from it.
"""

import shutil
import tomllib
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
TABLE = SOURCE / "standfast" / "module_paths.toml"
STUBS = SOURCE / "standfast-stubs"


def make_stubs() -> dict[str, str]:
    """Return the text of each stub by its path in the stub package."""
    paths: dict[str, dict[str, list[str]]] = tomllib.loads(TABLE.read_text())
    packages = {path.rpartition(".")[0] for path in paths} - {""}
    stubs = {"py.typed": "partial\n"}
    for path, names_by_module in paths.items():
        tail = "/__init__.pyi" if path in packages else ".pyi"
        stubs[path.replace(".", "/") + tail] = make_stub(names_by_module)
    return stubs


def make_stub(names_by_module: dict[str, list[str]]) -> str:
    imports, aliases = [], []
    for module, entries in names_by_module.items():
        for name, _, original in (entry.partition("=") for entry in entries):
            imports.append(f"from {module} import {original or name} as {original or name}\n")
            if original:
                aliases.append(f"{name} = {original}\n")
    return "".join([*dict.fromkeys(imports), *aliases])


def main() -> None:
    shutil.rmtree(STUBS, ignore_errors=True)
    for path, text in make_stubs().items():
        file = STUBS / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
