"""The files of the program that runs the workers, installed in ways that lead Python to them."""

import dataclasses
import venv
from pathlib import Path

import msgspec
import pytest

from factories.workers import run_refused
from standfast.workers import SandboxPolicy, SessionConfig

DEPENDENCIES = Path(msgspec.__file__).parents[1]


@pytest.fixture
def project(tmp_path) -> Path:
    """A project whose package lies beside its secrets."""
    folder = tmp_path / "proj"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("price = 42")
    (folder / ".env").write_text("OPENAI_API_KEY=sk-secret")
    (folder / "app.db").write_text("rows of all customers")
    for path in (tmp_path, *tmp_path.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(0o755)
    return folder


def create_environment(folder: Path, *on_path: Path) -> tuple[str, Path]:
    """Create a virtual environment that finds these folders, as editable installs do it. Returns its interpreter."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "editable.pth").write_text("\n".join(str(path) for path in (*on_path, DEPENDENCIES)))
    (packages / "installed.py").write_text("x = 1")
    return str(folder / "bin" / "python"), packages


async def check_hidden(session, project: Path) -> None:
    for name in (".env", "app.db"):
        assert await run_refused(session, f"open({str(project / name)!r})") == "FileNotFoundError"
    listed = await session.run(f"import os; os.listdir({str(project)!r}) if os.path.exists({str(project)!r}) else []")
    assert not {".env", "app.db", "shop"} & set(listed.value)
    works = await session.run(
        "import installed, json, subprocess, sys\n"
        "command = 'import decimal, installed; print(installed.x)'\n"
        "subprocess.run([sys.executable, '-c', command], capture_output=True, text=True).stdout"
    )
    assert works.value == "1\n", works.error


async def test_a_project_with_an_editable_install_is_not_visible(project, tmp_path, sandboxed):
    python, _ = create_environment(tmp_path / "env", project)
    session = await sandboxed(python=python)
    await check_hidden(session, project)
    assert await run_refused(session, "import shop") == "ModuleNotFoundError"
    notes = session.info.metadata["sandbox_notes"]
    assert any(str(project) in note and "readable" in note for note in notes), notes
    assert (await session.run("import sys; sys.path")).value.count(str(project)) == 0


async def test_a_project_that_contains_its_virtual_environment_is_not_visible(project, sandboxed):
    python, _ = create_environment(project)
    await check_hidden(await sandboxed(python=python), project)


@pytest.mark.parametrize("option", ["readable", "import_path"])
async def test_a_package_outside_of_the_environment_is_available_if_the_configuration_names_its_folder(
    option, project, tmp_path, sandboxed
):
    python, _ = create_environment(tmp_path / "env", project)
    config = SessionConfig(python=python)
    if option == "readable":
        config = dataclasses.replace(config, sandbox=SandboxPolicy(readable=(str(project),)))
    else:
        config = dataclasses.replace(config, import_path=(str(project),))
    session = await sandboxed(python=python, sandbox=config.sandbox, import_path=config.import_path)
    assert (await session.run("import shop; shop.price")).value == 42
    assert not any(str(project) in note for note in session.info.metadata["sandbox_notes"])


async def test_keys_of_the_machines_services_are_not_visible(sandboxed):
    session = await sandboxed()
    result = await session.run(
        "import os, ssl\n[sorted(os.listdir('/etc/ssl')) if os.path.exists('/etc/ssl') else [],"
        " len(ssl.create_default_context().get_ca_certs()) >= 0]"
    )
    names, works = result.value
    assert set(names) <= {"certs", "openssl.cnf", "cert.pem"}
    assert works
