"""``Vector``: numbers by index, with default zero. It is a state class, and the value type of rows of matrices."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from epochal.programs.state import Column, ElementModel, Key, State, legible, reads, total, writes
from epochal.programs.value_types import FLOAT, INT, ValueType, number_type

Number = TypeVar("Number", bound=float)


class Vector(State, Generic[Number]):
    """A sparse vector: zeros are not stored, and methods process elements by ascending index. ``Vector({0: 1.5, 7:
    2.0})``.

    Rows of its state table: index → value. Partitioned by index.
    """

    partitionings: ClassVar[tuple[str, ...]] = ("index",)
    zero_is_none: ClassVar[bool] = True

    def __init__(self, elements: Mapping[int, Number] | Iterable[tuple[int, Number]] = ()) -> None:
        self._number: ValueType | None = None
        self._elements: dict[int, Any] = {}
        for index, value in dict(elements).items():
            INT.conform(index, "an index")
            if value != 0:
                self._elements[index] = value

    @classmethod
    def dense(cls, values: Iterable[Number]) -> Vector[Number]:
        """Create a vector with these values at 0, 1, 2, .."""
        return Vector(enumerate(values))

    @classmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        return ElementModel((Column("index", INT),), (), (Column("value", number_type(arguments)),))

    # Methods of state and of values.

    @reads(index="index")
    def get(self, index: int) -> Number:
        """The value at an index, or zero."""
        INT.conform(index, "an index")
        value: Number = legible(self._elements.get(index, self._zero), f"{self._name}, index {index}")
        return value

    @reads()
    def items(self) -> Iterator[tuple[int, Number]]:
        """Index and value of each nonzero element, by index."""
        return iter([(index, legible(self._elements[index], self._at(index))) for index in sorted(self._elements)])

    @reads()
    def dot(self, other: Vector[Any]) -> Number:
        """The inner product, summed by index."""
        small, large = sorted((self, other), key=lambda vector: len(vector._elements))
        shared = sorted(index for index in small._elements if index in large._elements)
        product: Any = sum((self.get(index) * other.get(index) for index in shared), start=self._zero)
        return product  # type: ignore[no-any-return]

    @reads()
    def norm(self) -> float:
        """The Euclidean length."""
        return math.sqrt(math.fsum(value * value for _, value in self.items()))

    @reads()
    def value(self) -> Vector[Number]:
        """The whole vector, as a value."""
        return Vector(dict(self.items()))

    @reads()
    def top(self, count: int) -> tuple[tuple[int, Number], ...]:
        """The ``count`` largest as (index, value), in descending order; equal values in ascending order of the
        index."""
        return tuple(sorted(self.items(), key=lambda item: (-item[1], item[0]))[:count])

    # Methods of values. They return a new value.

    def plus(self, other: Vector[Number]) -> Vector[Number]:
        """The sum."""
        return self._each(other, operator.add)

    def minus(self, other: Vector[Number]) -> Vector[Number]:
        """The difference."""
        return self._each(other, operator.sub)

    def times(self, factor: Number) -> Vector[Number]:
        """Each element times ``factor``."""
        elements: dict[int, Any] = {index: value * factor for index, value in self.items()}
        return Vector(elements)

    def without(self, indices: Iterable[int]) -> Vector[Number]:
        """A copy without the elements at these indices."""
        left_out = set(indices)
        return Vector({index: value for index, value in self.items() if index not in left_out})

    def _each(self, other: Vector[Number], function: Callable[[Any, Any], Any]) -> Vector[Number]:
        indices = sorted({*self._elements, *other._elements})
        return Vector({index: function(self.get(index), other.get(index)) for index in indices})

    def __add__(self, other: Vector[Number]) -> Vector[Number]:
        return self.plus(other)

    def __sub__(self, other: Vector[Number]) -> Vector[Number]:
        return self.minus(other)

    def __mul__(self, factor: Number) -> Vector[Number]:
        return self.times(factor)

    __rmul__ = __mul__

    def __len__(self) -> int:
        """The number of nonzero elements."""
        return len(self._elements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self._elements == other._elements

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._elements.items())))

    def __repr__(self) -> str:
        return f"Vector({dict(sorted(self._elements.items()))!r})"

    # Methods of state only.

    @writes(index="index")
    def set(self, index: int, value: Number) -> None:
        """Set the value at an index; zero removes it."""
        self._put(INT.conform(index, "an index"), self._conformed(value))

    @writes(index="index")
    def add(self, index: int, amount: Number) -> None:
        """Add to the value at an index. Reading a sum that exceeds 64 bits is an error."""
        INT.conform(index, "an index")
        self._put(index, total(self._type, self._elements.get(index, self._zero), self._conformed(amount)))

    @writes()
    def add_vector(self, amounts: Vector[Number]) -> None:
        """Add to each element."""
        for index, amount in _typed(self._type, amounts).items():
            self.add(index, amount)

    @writes()
    def assign(self, values: Vector[Number]) -> None:
        """Replace all elements by ``values``."""
        new = _typed(self._type, values)
        self.clear()
        for index, value in new.items():
            self._put(index, value)

    @writes()
    def clear(self) -> None:
        """Remove all elements."""
        for index in list(self._elements):
            self._put(index, 0)

    # Conversion to rows.

    def rows(self) -> Iterator[tuple[Key, Any]]:
        return (((index,), self._elements[index]) for index in sorted(self._elements))

    def load(self, rows: Iterable[tuple[Key, Any]]) -> None:
        self._elements.update((key[0], value) for key, value in rows)

    def _row(self, key: Key) -> Any:
        return self._elements.get(key[0])

    def _declare(self, model: ElementModel) -> None:
        self._number = model.value[0].type

    @property
    def _type(self) -> ValueType:
        return FLOAT if self._number is None else self._number

    @property
    def _zero(self) -> Any:
        return 0.0 if self._number is FLOAT else 0

    def _conformed(self, value: Any) -> Any:
        return self._type.conform(value, "a value")

    def _at(self, index: int) -> str:
        return f"{self._name}, index {index}"

    def _put(self, index: int, value: Any) -> None:
        self._touch((index,))
        if value == 0:
            self._elements.pop(index, None)
        else:
            self._elements[index] = value


@dataclass(frozen=True)
class VectorType(ValueType):
    """``Vector[int]`` or ``Vector[float]`` as a value."""

    number: ValueType

    @property
    def spark(self) -> str:  # type: ignore[override]
        return f"struct<indices: array<bigint>, values: array<{self.number.spark}>>"

    @property
    def python(self) -> str:  # type: ignore[override]
        return "Vector" if self.number is FLOAT else f"Vector[{self.number.python}]"

    def conform(self, value: Any, what: str) -> Any:
        if not isinstance(value, Vector):
            raise self._refuse(value, what)
        return _typed(self.number, value, f"an element of {what}")

    def to_row(self, value: Any) -> Any:
        return {"indices": [index for index, _ in value.items()], "values": [number for _, number in value.items()]}

    def from_row(self, value: Any) -> Any:
        return _of(self.number, dict(zip(value["indices"], value["values"], strict=True)))


def _typed(number: ValueType, vector: Vector[Any], what: str = "a value") -> Vector[Any]:
    """The vector as a value with conforming numbers; itself if it is already one."""
    if vector._number is number and not vector._is_state:
        return vector
    return _of(number, {index: number.conform(value, what) for index, value in vector.items()})


def _of(number: ValueType, elements: dict[int, Any]) -> Vector[Any]:
    vector: Vector[Any] = Vector()
    vector._number, vector._elements = number, elements
    return vector
