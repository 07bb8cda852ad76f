"""A MongoDB server for tests.

``STANDFAST_TEST_MONGODB_URL`` names a running server; otherwise ``mongod`` is started, if it is installed, or a server
in this process that speaks its protocol: no package of PyPI or Debian has ``mongod``. Ubuntu 20.04 has version 3.6,
which is enough for the sessions here, but older than what current drivers accept; their check is lowered for it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from ports import free_port

pymongo = pytest.importorskip("pymongo")

from mongodb_wire import serve_mongodb  # noqa: E402

OLDEST_WIRE_VERSION = 6  # of MongoDB 3.6


@pytest.fixture(scope="session")
def mongodb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pymongo.common.MIN_SUPPORTED_WIRE_VERSION = OLDEST_WIRE_VERSION
    if url := os.environ.get("STANDFAST_TEST_MONGODB_URL"):
        yield url
    elif program := shutil.which("mongod"):
        folder, port = tmp_path_factory.mktemp("mongodb"), free_port()
        options = ["--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket"]
        with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
            with pymongo.MongoClient(f"mongodb://127.0.0.1:{port}", serverSelectionTimeoutMS=60_000) as client:
                client.admin.command("ping")
            yield f"mongodb://127.0.0.1:{port}"
            server.terminate()
    else:
        with serve_mongodb() as url:
            yield url
