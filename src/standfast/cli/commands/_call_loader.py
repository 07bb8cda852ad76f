"""Find what can be called in a file of agents: realtime agents, and functions that make their runners."""

import sys
import typing
from inspect import isfunction, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.server.calls.call import CallSource

REALTIME = "standfast.realtime.agent"


def find_call_sources(module: ModuleType) -> "dict[str, CallSource]":
    """Return the realtime agents of a module by their names, and its functions that return a runner by theirs.

    The return annotation marks such a function: ``def concierge() -> RealtimeRunner``. It is called for each call.
    """
    if REALTIME not in sys.modules:  # a module that has some has imported it
        return {}
    from standfast.realtime.agent import RealtimeAgent
    from standfast.realtime.runner import RealtimeRunner

    found: dict[str, CallSource] = {}
    for name, value in vars(module).items():
        if isinstance(value, RealtimeAgent):
            found[value.name] = value
        elif is_source(value, module) and get_return_type(value) is RealtimeRunner:
            found[name] = value
    return found


def is_source(value: Any, module: ModuleType) -> bool:
    """Return whether a value is a function of the module itself that can be called without arguments."""
    return isfunction(value) and value.__module__ == module.__name__ and not signature(value).parameters


def get_return_type(function: Any) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):  # a name that exists for type checkers only
        return None
