"""Where things lie in Redis.

All keys of a session share a hash tag, so that they lie in one slot of a cluster (``t`` is the quoted session id):

    prefix:{t}                  hash    the record; annotations are its fields that begin with ``#``
    prefix:{t}:tape:<n>         hash    the items of a tape by their place. Not a list: a place keeps its number when
                                        a range in the middle is destroyed, and what is missing is simply not there
    prefix:{t}:links:<n>        hash    which forks began with what of that tape
    prefix:{t}:keys             hash    batch keys, with digest and outcome
    prefix:{t}:generations      hash    what was shown before
    prefix:{t}:quarantine       hash    what could not be read
    prefix:{t}:unlinking        set     holds on ancestors' tapes that an erasure has still to release (clusters only)
    prefix:{t}:lease            hash    the lease of that name; it lies with the session of the same name
    prefix:sessions             zset    the names of all sessions

A tape stays with the session that wrote it, also when that is forgotten; a fork's record remembers where the tapes
lie that it inherited. On one server, a commit sets the time in ``prefix:sessions`` itself. In a cluster that list is
in another slot and can only hint: a name goes in before its session is created, and listing looks at the records.
"""

from standfast.base.errors import InvalidInput, StoreUnavailable
from standfast.base.ids import validate_name
from standfast.store.redis import encoding
from standfast.store.redis.connection import RedisConnection, Script, is_refusal
from standfast.store.redis.encoding import make_tag

HINTS_SCRIPT = Script("hints.lua")
DEFAULT_PREFIX = "standfast"
FORMER_DEFAULT_PREFIX = "holdfast"


class Keyspace:
    """The keys of one store on its server."""

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
        """The server's time, and all listed names with their scores."""
        now, names = await self.connection.run_script(HINTS_SCRIPT, [self.sessions_key], [b"all"], retry=True)
        return float(now), list(zip(names[::2], names[1::2], strict=True))


def validate_prefix(prefix: object) -> str:
    name = validate_name("key prefix", prefix)
    if "{" in name or "}" in name:
        raise InvalidInput(f"a key prefix has no braces, they mark what a cluster hashes: {name!r}")
    return name
