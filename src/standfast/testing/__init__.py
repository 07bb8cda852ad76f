"""The public test kit: contract suites for stores and sessions, and what they are made of.

Names are resolved on first use; the suites need pytest and Hypothesis, the rest needs neither.
"""

import sys
from importlib import import_module
from typing import Any

from standfast.base.lazy import attach_stub

# Modules whose assertions pytest should explain when they fail.
_SUITES = (
    "standfast.testing.store.contract",
    "standfast.testing.store.concurrency",
    "standfast.testing.store.forks",
    "standfast.testing.store.histories",
    "standfast.testing.store.reads",
    "standfast.testing.store.runs",
    "standfast.testing.store.atomicity",
    "standfast.testing.sessions.contract",
    "standfast.testing.sessions.changes",
    "standfast.testing.sessions.damage",
    "standfast.testing.sessions.forks",
    "standfast.testing.sessions.plain",
    "standfast.testing.sessions.search",
    "standfast.testing.state_machine",
    "standfast.testing.store.state_machine",
    "standfast.testing.sessions.state_machine",
)

_resolve, __dir__, __all__ = attach_stub(__name__)


def __getattr__(name: str) -> Any:
    if "pytest" in sys.modules and name in __all__:
        import_module("pytest").register_assert_rewrite(*(suite for suite in _SUITES if suite not in sys.modules))
    return _resolve(name)
