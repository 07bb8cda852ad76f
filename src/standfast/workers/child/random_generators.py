"""The generators of ``random`` and of ``numpy.random``: their numbers are part of what a worker computes."""

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MASK = 0xFFFFFFFF
_numpy_seed: int | None = None


class _NumpySeeder(importlib.abc.MetaPathFinder):
    """Seeds the generator of NumPy when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "numpy.random":
            return None
        _remove_seeder()
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None and _numpy_seed is not None:
            execute, value = spec.loader.exec_module, _numpy_seed

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                module.seed(value)

            spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec


def seed_anew() -> None:
    """Seed the generators of a forked worker, or all workers would produce the same numbers."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    # An attribute of numpy would import it.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def seed(value: int) -> None:
    """Seed the generators; that of NumPy when it is imported."""
    import random

    random.seed(value)
    _seed_numpy(value & _MASK)


def describe_state() -> dict[str, Any]:
    """Return the state of the generators that are imported, to be pickled."""
    state: dict[str, Any] = {} if _numpy_seed is None else {"numpy_seed": _numpy_seed}
    if (python := get_python_state()) is not None:
        state["random"] = python
    with contextlib.suppress(Exception):
        if "numpy.random" in sys.modules:
            state["numpy"] = sys.modules["numpy.random"].get_state()
    return state


def restore_state(state: dict[str, Any]) -> None:
    """Continue with the numbers that would have followed in the worker whose state this is."""
    if "random" in state:
        import random

        random.setstate(state["random"])
    if "numpy" in state:
        __import__("numpy.random")
        sys.modules["numpy.random"].set_state(state["numpy"])
    elif "numpy_seed" in state:
        _seed_numpy(state["numpy_seed"])


def get_python_state() -> Any:
    """Return the state of ``random``'s generator, which Python seeds anew in a forked child."""
    with contextlib.suppress(Exception):
        return sys.modules["random"]._inst.getstate() if "random" in sys.modules else None
    return None


def set_python_state(state: Any) -> None:
    if "random" in sys.modules and state is not None:
        with contextlib.suppress(Exception):
            sys.modules["random"]._inst.setstate(state)


def _seed_numpy(value: int) -> None:
    global _numpy_seed
    _numpy_seed = value
    _remove_seeder()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(value)
    else:
        sys.meta_path.insert(0, _NumpySeeder())


def _remove_seeder() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _NumpySeeder)]
