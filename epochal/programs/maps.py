"""``Map`` and ``Counter``: values and counts by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar, overload

from epochal.programs.annotations import value_type
from epochal.programs.state import OVERFLOWED, Column, ElementModel, Key, State, legible, reads, total, writes
from epochal.programs.value_types import FLOAT, INT, NotAValueType, Scalar, ValueType

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


def key_type(annotation: Any) -> ValueType:
    """The type of a key of state. Raises ``NotAValueType``."""
    type = value_type(annotation)
    if type.is_key:
        return type
    if type is FLOAT:
        raise NotAValueType("equal floats can differ in their last bit: use int or str as key")
    raise NotAValueType(
        f"{type.python} cannot be a key: use int, str, bool or bytes, or a string that is composed of the parts"
    )


class _Keyed(State, Generic[K]):
    """Elements by one key, stored unordered, and returned in key order."""

    partitionings: ClassVar[tuple[str, ...]] = ("key",)

    def __init__(self) -> None:
        self._key: ValueType = Scalar(str, "string")
        self._value: ValueType = INT
        self._elements: dict[Any, Any] = {}
        self._checked, self._conformed = self._key.conforming("a key"), self._value.conforming("a value")

    @reads(key="key")
    def contains(self, key: K) -> bool:
        """Return whether the key has an element."""
        return self._checked(key) in self._elements

    @reads()
    def size(self) -> int:
        """The number of elements."""
        return len(self._elements)

    @writes(key="key")
    def remove(self, key: K) -> None:
        """Remove the element. A missing element is ignored."""
        self._touch((self._checked(key),))
        self._elements.pop(key, None)

    @writes()
    def clear(self) -> None:
        """Remove all elements."""
        for key in self._elements:
            self._touch((key,))
        self._elements.clear()

    def rows(self) -> Iterator[tuple[Key, Any]]:
        return (((key,), self._elements[key]) for key in sorted(self._elements))

    def load(self, rows: Iterable[tuple[Key, Any]]) -> None:
        self._elements.update((key[0], value) for key, value in rows)

    def _row(self, key: Key) -> Any:
        return self._elements.get(key[0])

    def _declare(self, model: ElementModel) -> None:
        self._key, self._value = model.key[0].type, model.value[0].type
        self._checked, self._conformed = self._key.conforming("a key"), self._value.conforming("a value")

    def _shown(self, key: Any) -> Any:
        value = self._elements[key]
        return legible(value, f"{self._name}, key {key!r}") if value is OVERFLOWED else value

    def _items(self) -> Iterator[tuple[K, Any]]:
        return iter([(key, self._shown(key)) for key in sorted(self._elements)])

    def _add(self, key: K, amount: Any) -> None:
        before = self._elements.get(self._checked(key), 0)
        after = total(self._value, before, self._value.conform(amount, "an amount"))
        self._touch((key,))
        self._elements[key] = after


class Map(_Keyed[K], Generic[K, V]):
    """``Map[str, float]``: a value by key. Rows of its state table: key → value. Partitioned by key."""

    @classmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        if len(arguments) != 2:
            raise NotAValueType("declare the types of keys and values: Map[str, float]")
        return ElementModel((Column("key", key_type(arguments[0])),), (), (Column("value", value_type(arguments[1])),))

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...

    @reads(key="key")
    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key, or ``default``."""
        return self._shown(key) if self._checked(key) in self._elements else default

    @reads()
    def items(self) -> Iterator[tuple[K, V]]:
        """All keys and values, by key, ascending."""
        return self._items()

    @writes(key="key")
    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._checked(key)
        conformed = self._conformed(value)
        if conformed is None:
            raise TypeError("a map cannot contain None: remove the key")
        self._touch((key,))
        self._elements[key] = conformed

    @writes(key="key")
    def add(self, key: K, amount: V) -> None:
        """Add to the number of a key; the default is zero. Reading a sum that exceeds 64 bits is an error."""
        if self._value not in (INT, FLOAT):
            raise TypeError(f"the values are {self._value.python}: add() requires int or float")
        self._add(key, amount)


class Counter(_Keyed[K], Generic[K]):
    """``Counter[str]``: a count per key. Rows of its state table: key → count. Partitioned by key."""

    @classmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        if len(arguments) != 1:
            raise NotAValueType("declare the type of keys: Counter[str]")
        return ElementModel((Column("key", key_type(arguments[0])),), (), (Column("count", INT),))

    @reads(key="key")
    def count(self, key: K) -> int:
        """The count of a key."""
        found: int = self._shown(key) if self._checked(key) in self._elements else 0
        return found

    @reads()
    def items(self) -> Iterator[tuple[K, int]]:
        """All keys and counts, by key, ascending."""
        return self._items()

    @reads()
    def top(self, count: int) -> tuple[tuple[K, int], ...]:
        """The ``count`` most frequent keys as (key, count), in descending order; equal counts in key order."""
        return tuple(sorted(self._items(), key=lambda item: (-item[1], item[0]))[:count])

    @writes(key="key")
    def add(self, key: K, amount: int = 1) -> None:
        """Increase the count of a key by one, or by ``amount``."""
        self._add(key, amount)
