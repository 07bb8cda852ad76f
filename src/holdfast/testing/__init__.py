"""The public test kit: contract suites for stores and sessions, and what they are made of.

Names are resolved on first use; the suites need pytest and Hypothesis, the rest needs neither.
"""

import sys
from importlib import import_module
from typing import Any

_HOMES = {
    "StoreContract": "holdfast.testing.store_contract",
    "SessionContract": "holdfast.testing.session_contract",
    "PlainSessionContract": "holdfast.testing.session_contract",
    "assert_replayable": "holdfast.testing.replayable",
    "NotReplayable": "holdfast.testing.replayable",
    "CrashingBackend": "holdfast.testing.crashing",
    "FakeClock": "holdfast.testing.storage",
    "SqliteFaults": "holdfast.testing.storage",
    "owned": "holdfast.testing.storage",
    "InvalidModelStep": "holdfast.testing.scripted_model",
    "ModelCall": "holdfast.testing.scripted_model",
    "ModelScriptError": "holdfast.testing.scripted_model",
    "ModelStep": "holdfast.testing.scripted_model",
    "ScriptedModel": "holdfast.testing.scripted_model",
    "UnconsumedModelSteps": "holdfast.testing.scripted_model",
    "UnexpectedModelCall": "holdfast.testing.scripted_model",
    "assistant_message": "holdfast.testing.scripted_model",
    "function_call": "holdfast.testing.scripted_model",
    "RealtimeConnectCall": "holdfast.realtime.testing",
    "RealtimeScriptError": "holdfast.realtime.testing",
    "RealtimeStep": "holdfast.realtime.testing",
    "ScriptedRealtimeModel": "holdfast.realtime.testing",
    "UnconsumedRealtimeSteps": "holdfast.realtime.testing",
    "UnexpectedRealtimeSend": "holdfast.realtime.testing",
    "RealtimeConnection": "holdfast.testing.realtime_connection",
    "RealtimeServer": "holdfast.testing.realtime_server",
}
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
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    if "pytest" in sys.modules:
        import_module("pytest").register_assert_rewrite(*(suite for suite in _SUITES if suite not in sys.modules))
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
