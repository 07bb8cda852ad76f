"""Commands and scripts on a Redis server or cluster. Each is sent once, unless the caller allows a retry."""

import asyncio
import contextlib
import hashlib
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from standfast.base.errors import Closed, InvalidInput, MissingExtra, StoreUnavailable

try:
    from redis.asyncio import Redis, RedisCluster
    from redis.exceptions import ConnectionError as ConnectionLost
    from redis.exceptions import NoScriptError, RedisError, ResponseError
except ImportError as error:
    raise MissingExtra("redis", "the Redis store") from error

RedisClient = Redis | RedisCluster
_CLUSTER_SUFFIX = "+cluster"
_CROSS_SLOT_MESSAGE = "hash to the same slot"
_MAX_CONNECTIONS = 32
CLOSE_TIMEOUT = 10.0
"""Seconds that closing waits for a server that does not respond."""


class CrossSlotError(StoreUnavailable):
    """The server belongs to a cluster, and the keys of a command are in different slots. Nothing was done."""


class LuaScript:
    """A Lua file of this package, and the SHA-1 digest by which servers cache it."""

    def __init__(self, file: str) -> None:
        self.source = files("standfast.store.redis").joinpath(file).read_bytes()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


class RedisConnection:
    """Sends commands through the connection pool of a client.

    The client's own method for that is not used: after a lost connection it sends a command again, even if the server
    may have executed it.
    """

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.location = describe_client(client)
        self.closed = False
        self.max_connections = min(_MAX_CONNECTIONS, get_max_connections(client))
        self.semaphore = asyncio.Semaphore(self.max_connections)

    async def run_script(self, script: LuaScript, keys: list[str], args: list[bytes], *, retry: bool) -> Any:
        """Run a script; with ``retry``, a second time if the connection is lost before the response."""
        words = [str(len(keys)).encode(), *(key.encode() for key in keys), *args]
        try:
            return await self.execute("EVALSHA", script.sha, *words, key=keys[0], retry=retry)
        except NoScriptError:
            return await self.execute("EVAL", script.source, *words, key=keys[0], retry=retry)

    async def execute(self, command: str, *args: bytes, key: str, retry: bool = True) -> Any:
        """Send a command and return the response as bytes, whatever the client is set up to decode."""
        self.check_open()
        try:
            async with self.semaphore:
                try:
                    return await self.send_command(command, *args, key=key)
                except ConnectionLost:
                    if not retry:
                        raise
                    return await self.send_command(command, *args, key=key)
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and _CROSS_SLOT_MESSAGE in str(error):
                raise CrossSlotError(str(error)) from error
            raise StoreUnavailable(f"{self.location}: {error}") from error

    async def send_command(self, command: str, *args: bytes, key: str) -> Any:
        if isinstance(self.client, RedisCluster):
            await self.client.initialize()
            # With a target node the client sends the command once; otherwise it retries by itself.
            node = self.client.get_node_from_key(key)
            return await self.client.execute_command(command, *args, target_nodes=node, NEVER_DECODE=True)
        pool = self.client.connection_pool
        connection: Any = await pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_command(command, *args)
            # If this is cancelled, the driver closes the connection before it returns to the pool.
            return await connection.read_response(disable_decoding=True)
        finally:
            await pool.release(connection)

    async def is_cluster(self, one_key: str, other_key: str) -> bool:
        """Return whether the server is part of a cluster. Uses a script, which access lists must allow anyway."""
        if isinstance(self.client, RedisCluster):
            return True
        try:
            await self.execute("EVAL", b"return 1", b"2", one_key.encode(), other_key.encode(), key=one_key)
        except CrossSlotError:
            return True
        return False

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.location} is closed")

    async def close(self) -> None:
        """Refuse new calls and wait for running ones. After this the client is no longer used."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                for _ in range(self.max_connections):
                    await self.semaphore.acquire()


def is_refusal(error: StoreUnavailable) -> bool:
    """Return whether the server answered with an error, in contrast to not answering."""
    return isinstance(error.__cause__, ResponseError)


def open_client(url: str, **options: Any) -> tuple[RedisClient, str]:
    """Return a client for a URL, and the URL without credentials."""
    parts = urlsplit(url)
    location = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        if parts.scheme.endswith(_CLUSTER_SUFFIX):
            return RedisCluster.from_url(url.replace(_CLUSTER_SUFFIX, "", 1), **options), location
        return Redis.from_url(url, **options), location
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"invalid Redis URL {location}: {error}") from None


def get_max_connections(client: RedisClient) -> int:
    if isinstance(client, RedisCluster):
        return _MAX_CONNECTIONS
    return int(client.connection_pool.max_connections)


def describe_client(client: RedisClient) -> str:
    """Return the URL of a client without credentials."""
    if isinstance(client, RedisCluster):
        return "redis" + _CLUSTER_SUFFIX
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db') or 0}"
