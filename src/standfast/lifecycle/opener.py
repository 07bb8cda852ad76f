"""An object to open with ``async with``, or with ``await`` if the program closes it itself."""

import warnings
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

T = TypeVar("T")


class Opener(Generic[T]):
    """The result of a function that opens something: use it with ``async with``, or ``await`` it.

    ``async with`` also closes. What was awaited stays open until the program closes it. Using it as if it were open
    raises an error that shows both forms, and dropping it without having opened it gives a warning.
    """

    def __init__(
        self,
        call: str,
        *,
        hold: Callable[[], AbstractAsyncContextManager[T]],
        open: Callable[[], Coroutine[Any, Any, T]],
    ) -> None:
        self._call, self._hold, self._open = call, hold, open
        self._context: AbstractAsyncContextManager[T] | None = None
        self._used = False

    def __await__(self) -> Generator[Any, None, T]:
        self._used = True
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._used = True
        self._context = self._hold()
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        context, self._context = self._context, None
        return None if context is None else await context.__aexit__(kind, error, traceback)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._call} is not open yet, so it has no {name!r}: write `async with {self._call} as opened:`, or"
            f" `opened = await {self._call}` and `await opened.close()` in the end",
            name=name,
        )

    def __del__(self) -> None:
        if not self.__dict__.get("_used", True):
            warnings.warn(
                f"{self._call} was called and never opened: write `async with {self._call} as opened:`",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )
