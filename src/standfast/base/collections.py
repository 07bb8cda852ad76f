"""Collections: an immutable list with cheap appends, and a dict of limited size."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

T = TypeVar("T")


class AppendOnlyList(Generic[T]):
    """An immutable sequence. Its versions share one list, of which each version sees a prefix.

    Appending to the newest version takes time proportional to the appended items; appending to an older version copies
    it first. ``item_type`` is the type of the elements, which decoders of JSON need.
    """

    __slots__ = ("_length", "_shared")
    item_type: ClassVar[Any] = Any

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._shared: list[T] = list(items)
        self._length = len(self._shared)

    def concat(self, items: Iterable[T]) -> Self:
        """Return a version with ``items`` appended."""
        if items == ():
            return self
        shared = self._shared if len(self._shared) == self._length else self._shared[: self._length]
        shared.extend(items)
        grown = type(self).__new__(type(self))
        grown._shared, grown._length = shared, len(shared)
        return grown

    def slice_to(self, length: int) -> Self:
        """Return the first ``length`` elements."""
        return type(self)(self._shared[: min(length, self._length)])

    def slice_from(self, position: int) -> list[T]:
        """Return a new list of the elements from ``position`` on."""
        return self._shared[position : self._length]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self._shared[position] for position in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._shared[index + self._length if index < 0 else index]

    def __iter__(self) -> Iterator[T]:
        for position in range(self._length):
            yield self._shared[position]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AppendOnlyList) and self.slice_from(0) == other.slice_from(0)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.slice_from(0)!r})"


K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dict of at most ``max_size`` keys: adding another key removes the one that was added first."""

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self._max_size = max_size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._max_size:
            del self[next(iter(self))]
