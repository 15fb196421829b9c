"""Types of values in state, on edges of the dataflow, and in answers, with their names in Python and Spark.

All values are immutable. A value *conforms* to a type if it has the type, or is an ``int`` for a ``float``. Integers
have 64 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

INTEGERS = range(-(2**63), 2**63)
Conform = Callable[[Any], Any]
"""Converts a value to a type. Raises ``TypeError`` and ``OverflowError``."""


class NotAValueType(Exception):
    """An annotation that is not a value type; the message has the fix."""

    def __init__(self, why: str, mutable: bool = False) -> None:
        super().__init__(why)
        self.mutable = mutable


class ValueType(ABC):
    """A type. ``spark`` and ``python``: its names; ``is_key``: whether it can be a key of state."""

    spark: str
    python: str
    is_key = False

    @abstractmethod
    def conform(self, value: Any, what: str) -> Any:
        """Convert a value to this type. ``what``: its name in messages. Raises ``TypeError`` and ``OverflowError``."""

    def conforming(self, what: str) -> Conform:
        """A fast :meth:`conform` of ``what`` for many values."""
        return lambda value: self.conform(value, what)

    def to_row(self, value: Any) -> Any:
        """The form of the value in a row: the Arrow value of :attr:`spark`."""
        return value

    def from_row(self, value: Any) -> Any:
        """The value of a result of :meth:`to_row`."""
        return value

    def _refuse(self, value: Any, what: str) -> TypeError:
        return TypeError(f"{what} is {value!r}, of type {type(value).__name__}, and not {self.python}")


@dataclass(frozen=True)
class Scalar(ValueType):
    """``str``, ``bool``, ``bytes``."""

    kind: type
    spark: str

    @property
    def python(self) -> str:  # type: ignore[override]
        return self.kind.__name__

    @property
    def is_key(self) -> bool:  # type: ignore[override]
        return True

    def conform(self, value: Any, what: str) -> Any:
        if type(value) is not self.kind:
            raise self._refuse(value, what)
        return value

    def conforming(self, what: str) -> Conform:
        kind = self.kind
        return lambda value: value if type(value) is kind else self.conform(value, what)


@dataclass(frozen=True)
class Integer(ValueType):
    """Signed 64-bit integers."""

    spark = "bigint"
    python = "int"
    is_key = True

    def __reduce__(self) -> str:
        return "INT"  # a singleton, also in other processes

    def conform(self, value: Any, what: str) -> int:
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise self._refuse(value, what)
        number = int(value)
        if number not in INTEGERS:
            raise OverflowError(f"{what} is {number}, which does not fit into 64 bits")
        return number

    def conforming(self, what: str) -> Conform:
        return lambda value: value if type(value) is int and -(2**63) <= value < 2**63 else self.conform(value, what)


@dataclass(frozen=True)
class Float(ValueType):
    """Double precision floats."""

    spark = "double"
    python = "float"

    def __reduce__(self) -> str:
        return "FLOAT"  # a singleton, also in other processes

    def conform(self, value: Any, what: str) -> float:
        if isinstance(value, float):
            return float(value)
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise self._refuse(value, what)
        try:
            return float(value)
        except OverflowError:
            raise OverflowError(f"{what} is an integer that is too large for a float") from None


@dataclass(frozen=True)
class Optional(ValueType):
    """``X | None``."""

    inner: ValueType

    @property
    def spark(self) -> str:  # type: ignore[override]
        return self.inner.spark

    @property
    def python(self) -> str:  # type: ignore[override]
        return f"{self.inner.python} | None"

    def conform(self, value: Any, what: str) -> Any:
        return None if value is None else self.inner.conform(value, what)

    def conforming(self, what: str) -> Conform:
        inner = self.inner.conforming(what)
        return lambda value: None if value is None else inner(value)

    def to_row(self, value: Any) -> Any:
        return None if value is None else self.inner.to_row(value)

    def from_row(self, value: Any) -> Any:
        return None if value is None else self.inner.from_row(value)


@dataclass(frozen=True)
class Sequence(ValueType):
    """``tuple[X, ...]``; with ``kind`` list for answers, or for values of all instances."""

    element: ValueType
    kind: type[tuple[Any, ...]] | type[list[Any]] = tuple

    @property
    def spark(self) -> str:  # type: ignore[override]
        return f"array<{self.element.spark}>"

    @property
    def python(self) -> str:  # type: ignore[override]
        inner = self.element.python
        return f"tuple[{inner}, ...]" if self.kind is tuple else f"list[{inner}]"

    def conform(self, value: Any, what: str) -> Any:
        if type(value) is not self.kind:
            raise self._refuse(value, what)
        return self.kind(self.element.conform(each, f"an element of {what}") for each in value)

    def to_row(self, value: Any) -> Any:
        return [self.element.to_row(each) for each in value]

    def from_row(self, value: Any) -> Any:
        return self.kind(self.element.from_row(each) for each in value)


@dataclass(frozen=True)
class Fields(ValueType):
    """``tuple[X, Y]``."""

    elements: tuple[ValueType, ...]

    @property
    def spark(self) -> str:  # type: ignore[override]
        return f"struct<{', '.join(f'_{n}: {each.spark}' for n, each in enumerate(self.elements, 1))}>"

    @property
    def python(self) -> str:  # type: ignore[override]
        return f"tuple[{', '.join(each.python for each in self.elements)}]"

    def conform(self, value: Any, what: str) -> Any:
        if type(value) is not tuple or len(value) != len(self.elements):
            raise self._refuse(value, what)
        pairs = zip(self.elements, value, strict=True)
        return tuple(type.conform(each, f"element {n} of {what}") for n, (type, each) in enumerate(pairs))

    def to_row(self, value: Any) -> Any:
        pairs = zip(self.elements, value, strict=True)
        return {f"_{n}": type.to_row(each) for n, (type, each) in enumerate(pairs, 1)}

    def from_row(self, value: Any) -> Any:
        return tuple(type.from_row(value[f"_{n}"]) for n, type in enumerate(self.elements, 1))


@dataclass(frozen=True)
class Answers(ValueType):
    """``dict[K, V]``, only for answers."""

    key: ValueType
    value: ValueType

    @property
    def spark(self) -> str:  # type: ignore[override]
        return f"map<{self.key.spark}, {self.value.spark}>"

    @property
    def python(self) -> str:  # type: ignore[override]
        return f"dict[{self.key.python}, {self.value.python}]"

    def conform(self, value: Any, what: str) -> Any:
        if type(value) is not dict:
            raise self._refuse(value, what)
        return {
            self.key.conform(key, f"a key of {what}"): self.value.conform(each, f"a value of {what}")
            for key, each in value.items()
        }

    def to_row(self, value: Any) -> Any:
        return [(self.key.to_row(key), self.value.to_row(each)) for key, each in value.items()]

    def from_row(self, value: Any) -> Any:
        return {self.key.from_row(key): self.value.from_row(each) for key, each in value}


@dataclass(frozen=True)
class Nothing(ValueType):
    """``None``: the answer of an entry that only changes state."""

    spark = "void"
    python = "None"

    def __reduce__(self) -> str:
        return "NOTHING"  # a singleton, also in other processes

    def conform(self, value: Any, what: str) -> None:
        if value is not None:
            raise self._refuse(value, what)

    def conforming(self, what: str) -> Conform:
        return lambda value: None if value is None else self.conform(value, what)


INT, FLOAT, NOTHING = Integer(), Float(), Nothing()
SCALARS: Mapping[Any, ValueType] = {
    int: INT,
    float: FLOAT,
    str: Scalar(str, "string"),
    bool: Scalar(bool, "boolean"),
    bytes: Scalar(bytes, "binary"),
}


def number_type(arguments: tuple[Any, ...]) -> ValueType:
    """The number type of a vector or matrix; the default is ``float``, as in NumPy."""
    number = SCALARS.get(arguments[0] if arguments else float)
    if number not in (INT, FLOAT):
        raise NotAValueType("vectors and matrices hold int or float")
    assert number is not None
    return number


def python_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))
