"""The default capabilities."""

from standfast.sandbox.capabilities.capability import Capability
from standfast.sandbox.capabilities.compaction import Compaction
from standfast.sandbox.capabilities.filesystem import Filesystem
from standfast.sandbox.capabilities.shell import Shell


class Capabilities:
    """Sets of capabilities."""

    @classmethod
    def default(cls) -> list[Capability]:
        """Return files, commands and compaction."""
        return [Filesystem(), Shell(), Compaction()]
