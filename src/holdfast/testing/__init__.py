"""The public test kit: contract suites for stores and sessions, and what they are made of.

Names are resolved on first use; the suites need pytest and Hypothesis, the rest needs neither.
"""

import sys
from importlib import import_module
from typing import Any

_HOMES = {
    "holdfast.testing.store_contract": ["StoreContract"],
    "holdfast.testing.session_contract": ["PlainSessionContract", "SessionContract"],
    "holdfast.testing.replayable": ["NotReplayable", "assert_replayable"],
    "holdfast.testing.crashing": ["CrashingBackend"],
    "holdfast.testing.storage": ["FakeClock", "SqliteFaults", "owned"],
    "holdfast.testing.scripted_model": [
        "InvalidModelStep",
        "ModelCall",
        "ModelScriptError",
        "ModelStep",
        "ScriptedModel",
        "UnconsumedModelSteps",
        "UnexpectedModelCall",
        "assistant_message",
        "function_call",
    ],
    "holdfast.realtime.testing": [
        "RealtimeConnectCall",
        "RealtimeScriptError",
        "RealtimeStep",
        "ScriptedRealtimeModel",
        "UnconsumedRealtimeSteps",
        "UnexpectedRealtimeSend",
    ],
    "holdfast.testing.realtime_connection": ["RealtimeConnection"],
    "holdfast.testing.realtime_server": ["RealtimeServer"],
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}
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


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    if "pytest" in sys.modules:
        import_module("pytest").register_assert_rewrite(*(suite for suite in _SUITES if suite not in sys.modules))
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
