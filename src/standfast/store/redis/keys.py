"""The keys of a store in Redis.

All keys of a session share a hash tag, so that they are in one slot of a cluster (``t`` is the quoted session id):

    prefix:{t}                  hash    the record; metadata are its fields that start with ``#``
    prefix:{t}:tape:<n>         hash    the items of a tape by ``seq``. Not a list: a ``seq`` must not change when a
                                        range before it is deleted
    prefix:{t}:links:<n>        hash    the ranges of that tape that forks started with
    prefix:{t}:keys             hash    batch keys, with digest and result
    prefix:{t}:generations      hash    former views
    prefix:{t}:quarantine       hash    unreadable items
    prefix:{t}:unlinking        set     links to ancestors' tapes that an erasure has yet to remove (clusters only)
    prefix:{t}:lease            hash    the lease of that name, in the slot of the session with the same name
    prefix:sessions             zset    the names of all sessions

The key of a tape contains the session that wrote it, even after that session is deleted; the record of a fork stores
the origins of the tapes that it inherited. On a single server, a commit sets the time in ``prefix:sessions`` itself. In
a cluster that list is in another slot and only a hint: a name is added before its session is created, and listing reads
the records.
"""

from standfast.base.errors import InvalidInput, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.store.redis import encoding
from standfast.store.redis.connection import LuaScript, RedisConnection, is_refusal
from standfast.store.redis.encoding import make_tag

HINTS_SCRIPT = LuaScript("hints.lua")
DEFAULT_PREFIX = "standfast"
FORMER_DEFAULT_PREFIX = "holdfast"


class Keyspace:
    """The keys of one store, and reads of single keys."""

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self.connection = connection
        self.prefix = validate_prefix(prefix)
        self.prefix_selected = prefix != DEFAULT_PREFIX
        self.clustered: bool | None = None

    @property
    def sessions_key(self) -> str:
        return f"{self.prefix}:sessions"

    def make_key(self, tag: str) -> str:
        return f"{self.prefix}:{{{tag}}}"

    async def select_prefix(self) -> None:
        """Keep the former default prefix for a server that was written under it. Asks the server once.

        Before standfast 0.1.0 was released, the product and its default prefix were called holdfast. Sessions under
        that prefix are used as they are, unless there are sessions under the present default prefix.
        """
        self.connection.check_open()
        if self.prefix_selected:
            return
        if not await self.has_key(self.sessions_key) and await self.has_key(f"{FORMER_DEFAULT_PREFIX}:sessions"):
            self.prefix = FORMER_DEFAULT_PREFIX
        self.prefix_selected = True

    async def has_key(self, key: str) -> bool:
        try:
            return bool(await self.connection.execute("EXISTS", key.encode(), key=key))
        except StoreUnavailable as error:
            if is_refusal(error):  # an access list that allows neither other prefixes nor this command
                return False
            raise

    async def is_clustered(self) -> bool:
        """Return whether keys are distributed over the slots of a cluster. Asks the server once."""
        await self.select_prefix()
        if self.clustered is None:
            self.clustered = await self.connection.is_cluster(self.make_key("a"), self.make_key("b"))
        return self.clustered

    async def read_session_fields(self, session_id: str) -> dict[bytes, bytes]:
        return await self.read_hash(session_id)

    async def read_hash(self, name: str, part: str = "") -> dict[bytes, bytes]:
        """Read the hash of a session, or of a part of it such as ``:generations``."""
        await self.select_prefix()
        key = self.make_key(make_tag(name)) + part
        return encoding.parse_hash(await self.connection.execute("HGETALL", key.encode(), key=key))

    async def list_session_names(self) -> tuple[float, list[tuple[bytes, bytes]]]:
        """Return the time of the server, and all listed names with their scores."""
        now, names = await self.connection.run_script(HINTS_SCRIPT, [self.sessions_key], [b"all"], retry=True)
        return float(now), list(zip(names[::2], names[1::2], strict=True))


def validate_prefix(prefix: object) -> str:
    name = validate_name("key prefix", prefix)
    if "{" in name or "}" in name:
        raise InvalidInput(f"a key prefix must not contain braces, which mark the hash tag of a cluster: {name!r}")
    return name
