"""The queues in which runs wait for a runtime: one for each agent."""

import hashlib
from collections.abc import Sequence

from standfast.runtime._engine.run_cipher import RunCipher

MAX_NAME_LENGTH = 64
OLD_QUEUE = ""
"""The queue of runs that were stored before there were queues; every runtime reads it."""


def name_queue(agent: str, cipher: RunCipher | None = None) -> str:
    """Return the queue of runs that start with the agent. With encryption it does not show the agent's name."""
    return list_queue_names(agent, cipher)[0]


def list_queue_names(agent: str, cipher: RunCipher | None = None) -> Sequence[str]:
    """Return the names of the queue of an agent; it has one for each encryption key."""
    if cipher is not None:
        return cipher.make_queue_names(agent)
    return [agent if len(agent) <= MAX_NAME_LENGTH else hashlib.sha256(agent.encode()).hexdigest()]
