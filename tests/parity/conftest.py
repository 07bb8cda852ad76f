"""Programs that run unchanged on openai-agents and on standfast, and must see the same."""

import importlib
from collections.abc import Iterator
from typing import Any

import agents
import pytest


class Library:
    """The names of one of the two packages, with those of its packages."""

    def __init__(self, package: str) -> None:
        self.package = package

    def __getattr__(self, name: str) -> Any:
        for part in ("", ".testing", ".mcp", ".tracing", ".realtime", ".voice", ".extensions.memory"):
            module = importlib.import_module(self.package + part)
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"{self.package} has no {name}")


@pytest.fixture(params=["agents", "standfast"])
def lib(request: pytest.FixtureRequest) -> Iterator[Library]:
    agents.set_tracing_disabled(True)
    yield Library(request.param)
    agents.set_tracing_disabled(False)
