import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from example_processes import EXAMPLES


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of an example as its own scripts do, by ``folder/name.py``."""

    def load(path: str) -> ModuleType:
        file = EXAMPLES / path
        monkeypatch.syspath_prepend(str(file.parent))
        return importlib.import_module(file.stem)

    yield load
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]
