"""Objects of the program that sandbox clients and snapshots use, found by a key."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeAlias

from standfast.agents.types import maybe_await

DependencyKey: TypeAlias = str
Factory: TypeAlias = Callable[["Dependencies"], Any | Awaitable[Any]]


class DependenciesError(RuntimeError):
    """The base of errors of dependencies."""


class DependenciesBindingError(DependenciesError, ValueError):
    """A key is already bound."""


class DependenciesMissingDependencyError(DependenciesError, LookupError):
    """No value is bound to a key."""


class Dependencies:
    """Values and factories by key. ``aclose`` closes the results of factories that own them."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._factories: dict[str, tuple[Factory, bool, bool]] = {}
        self._owned: list[Any] = []

    @classmethod
    def with_values(cls, values: Mapping[DependencyKey, object]) -> "Dependencies":
        """Return a container with these values."""
        found = cls()
        for key, value in values.items():
            found.bind_value(key, value)
        return found

    def clone(self) -> "Dependencies":
        """Return a container with the same bindings, which owns none of the values."""
        copy = Dependencies()
        copy._values, copy._factories = dict(self._values), dict(self._factories)
        return copy

    def bind_value(self, key: DependencyKey, value: object, *, overwrite: bool = False) -> Self:
        """Bind a key to a value."""
        self._check_unbound(key, overwrite)
        self._values[key] = value
        return self

    def bind_factory(
        self,
        key: DependencyKey,
        factory: Factory,
        *,
        cache: bool = True,
        overwrite: bool = False,
        owns_result: bool = False,
    ) -> Self:
        """Bind a key to a function that makes its value, once with ``cache``, and otherwise each time."""
        self._check_unbound(key, overwrite)
        self._values.pop(key, None)
        self._factories[key] = (factory, cache, owns_result)
        return self

    async def get(self, key: DependencyKey) -> Any:
        """Return the value of a key, None if it is not bound."""
        if key in self._values or key not in self._factories:
            return self._values.get(key)
        factory, cache, owns_result = self._factories[key]
        value = await maybe_await(factory(self))
        if owns_result:
            self._owned.append(value)
        if cache:
            self._values[key] = value
        return value

    async def require(self, key: DependencyKey, *, consumer: str | None = None) -> Any:
        """Return the value of a key; raise if it is not bound."""
        if key not in self._values and key not in self._factories:
            user = f" for {consumer}" if consumer else ""
            raise DependenciesMissingDependencyError(f"nothing is bound to {key!r}{user}: use bind_value")
        return await self.get(key)

    async def aclose(self) -> None:
        """Close the values that belong to this container."""
        while self._owned:
            close = getattr(self._owned.pop(), "aclose", None)
            if close is not None:
                await maybe_await(close())

    def _check_unbound(self, key: str, overwrite: bool) -> None:
        if not overwrite and (key in self._values or key in self._factories):
            raise DependenciesBindingError(f"{key!r} is already bound: pass overwrite=True to replace it")
