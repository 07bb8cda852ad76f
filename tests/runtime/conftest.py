import pytest
from processes import fork_server, spawn  # noqa: F401 - fixtures


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store_url(request, tmp_path):
    """The address of an empty store of each kind."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'app.db'}"
    return request.getfixturevalue("postgres_tables_url")


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request, tmp_path):
    """The address of an empty store that several runtimes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'app.db'}"
    return request.getfixturevalue("postgres_tables_url")
