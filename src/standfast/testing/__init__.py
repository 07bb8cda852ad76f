"""The public test kit: contract suites for stores and sessions, and what they are made of.

Names are resolved on first use; the suites need pytest and Hypothesis, the rest needs neither.
"""

import sys
from importlib import import_module
from typing import Any

from holdfast.base.lazy import attach_stub

# Modules whose assertions pytest should explain when they fail.
_SUITES = (
    "holdfast.testing.store_contract",
    "holdfast.testing.store_concurrency",
    "holdfast.testing.store_forks",
    "holdfast.testing.store_histories",
    "holdfast.testing.store_reads",
    "holdfast.testing.store_runs",
    "holdfast.testing.store_whole",
    "holdfast.testing.session_contract",
    "holdfast.testing.session_changes",
    "holdfast.testing.session_damage",
    "holdfast.testing.session_forks",
    "holdfast.testing.session_plain",
    "holdfast.testing.session_search",
    "holdfast.testing.machines",
    "holdfast.testing.commit_machine",
    "holdfast.testing.history_machine",
)

_resolve, __dir__, __all__ = attach_stub(__name__)


def __getattr__(name: str) -> Any:
    if "pytest" in sys.modules and name in __all__:
        import_module("pytest").register_assert_rewrite(*(suite for suite in _SUITES if suite not in sys.modules))
    return _resolve(name)
