"""Public test tools: contract suites for stores and sessions, scripted models and fault injection.

Names are resolved on first use. Only the suites need pytest and Hypothesis.
"""

import sys
from importlib import import_module
from typing import Any

from standfast.base.lazy import attach_stub

# Modules in which pytest rewrites assertions, so that failures are explained.
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
)

_resolve, __dir__, __all__ = attach_stub(__name__)


def __getattr__(name: str) -> Any:
    if "pytest" in sys.modules and name in __all__:
        import_module("pytest").register_assert_rewrite(*(suite for suite in _SUITES if suite not in sys.modules))
    return _resolve(name)
