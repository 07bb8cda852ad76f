"""A sequence that grows at its end at the cost of what is added, and whose older versions never change."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

T = TypeVar("T")


class AppendOnlyList(Generic[T]):
    """An immutable sequence. Versions share one list, of which each sees its own beginning.

    Adding to the newest version is proportional to what is added; adding to an older one copies it first.
    ``entry`` is what its elements are, for those who read it from JSON.
    """

    __slots__ = ("_length", "_shared")
    item_type: ClassVar[Any] = Any

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._shared: list[T] = list(items)
        self._length = len(self._shared)

    def concat(self, items: Iterable[T]) -> Self:
        """This and after it the items."""
        shared = self._shared if len(self._shared) == self._length else self._shared[: self._length]
        shared.extend(items)
        grown = type(self).__new__(type(self))
        grown._shared, grown._length = shared, len(shared)
        return grown

    def slice_to(self, length: int) -> Self:
        """The first ``length`` of them."""
        return type(self)(self._shared[: min(length, self._length)])

    def slice_from(self, position: int) -> list[T]:
        """Those from ``position`` on; the list is the caller's."""
        return self._shared[position : self._length]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._shared[place] for place in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._shared[index + self._length if index < 0 else index]

    def __iter__(self) -> Iterator[T]:
        for place in range(self._length):
            yield self._shared[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AppendOnlyList) and self.slice_from(0) == other.slice_from(0)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.slice_from(0)!r})"


K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """Remembers so many keys: for a further one, the first that was set is forgotten."""

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self._max_size = max_size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._max_size:
            del self[next(iter(self))]
