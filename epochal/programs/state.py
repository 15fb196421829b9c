"""Common parts of state classes: elements as rows, declared accesses, immutable values.

An instance is either *state*, which belongs to an instance of a program or to a task and is changed by its methods, or
an immutable *value*: the result of a read, or an object that an author creates. State records the elements that have
changed since it was settled, so that a task can write them as changes of a state table.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from epochal.programs.value_types import INT, ValueType

Method = TypeVar("Method", bound=Callable[..., Any])
Key = tuple[Any, ...]


class FrozenValue(TypeError):
    """An attempt to change a value. Only state can be changed, by its methods."""


@dataclass(frozen=True)
class Column:
    """A column of the rows of a state element."""

    name: str
    type: ValueType

    @property
    def spark(self) -> str:
        return self.type.spark

    def __str__(self) -> str:
        return f"{self.name} {self.spark}"


@dataclass(frozen=True)
class ElementModel:
    """The elements of a state class as rows of a state table: ``key`` identifies the partition, ``sub_key`` the element
    in it. For partial state the instance is the key, and both are the sub-key."""

    key: tuple[Column, ...]
    sub_key: tuple[Column, ...]
    value: tuple[Column, ...]

    def to_row(self, value: Any) -> Any:
        """The value of an element in its row; null: its sum has overflowed."""
        return None if value is OVERFLOWED else self.value[0].type.to_row(value)

    def from_row(self, value: Any) -> Any:
        """The value of a result of :meth:`to_row`."""
        return OVERFLOWED if value is None else self.value[0].type.from_row(value)

    def __str__(self) -> str:
        left = ", ".join(map(str, (*self.key, *self.sub_key)))
        return f"{left} → {', '.join(map(str, self.value))}"


@dataclass(frozen=True)
class Access:
    """The access of a method to state. ``key``: the parameter that identifies the partition, by partitioning;
    ``blind``: the method writes, returns nothing, and fails only because of its arguments, independently of the state;
    ``any_value``: for scalar arguments, failure depends on their types only."""

    key: dict[str, str]
    writes: bool
    blind: bool
    any_value: bool = True


def reads(**key: str) -> Callable[[Method], Method]:
    """Marks a method that reads. ``by="parameter"``: the parameter that is the key for this partitioning."""
    return _marked(Access(key, writes=False, blind=False))


def writes(*, any_value: bool = True, **key: str) -> Callable[[Method], Method]:
    """Marks a blind write (:class:`Access`)."""
    return _marked(Access(key, writes=True, blind=True, any_value=any_value))


def _marked(access: Access) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        method.__access__ = access  # type: ignore[attr-defined]
        return method

    return mark


class State(ABC):
    """A state class. ``partitionings``: the supported partitionings, the default first; empty if there are none.
    ``zero_is_none``: whether an element that becomes zero is removed."""

    partitionings: ClassVar[tuple[str, ...]] = ()
    zero_is_none: ClassVar[bool] = False
    _is_state: bool = False
    _changed: set[Key]
    _name: str = "the state"
    _siblings: tuple[Self, ...] = ()
    """All instances of partial state, in a plain run with several instances."""

    @classmethod
    @abstractmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        """The form of rows for these type arguments. Raises :class:`~epochal.programs.value_types.NotAValueType`."""

    @classmethod
    def of_state(cls, model: ElementModel, name: str) -> Self:
        """Create empty state."""
        state = cls()
        state._is_state, state._changed, state._name, state._siblings = True, set(), name, (state,)
        state._declare(model)
        return state

    @classmethod
    def access(cls, method: str) -> Access | None:
        """The access of a method; ``None`` if it does not access state."""
        access: Access | None = getattr(getattr(cls, method, None), "__access__", None)
        return access

    @classmethod
    def accesses(cls) -> dict[str, Access]:
        """The accesses of all methods, by name."""
        found = {name: cls.access(name) for name in dir(cls)}
        return {name: access for name, access in found.items() if access is not None}

    @classmethod
    def parameters(cls, method: str) -> tuple[str, ...]:
        """The names of a method's parameters."""
        return tuple(_signature(cls, method).parameters)[1:]

    @classmethod
    def bind(cls, method: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the method's parameters, with defaults. Raises ``TypeError``."""
        bound = _signature(cls, method).bind(None, *arguments, **named)
        bound.apply_defaults()
        return {name: bound.arguments[name] for name in cls.parameters(method)}

    @abstractmethod
    def _declare(self, model: ElementModel) -> None:
        """Take the types of elements from the model."""

    @abstractmethod
    def _row(self, key: Key) -> Any:
        """The element of a full key, or ``None``."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[Key, Any]]:
        """All elements as (full key, value), in key order. A value of ``OVERFLOWED`` is null in tables."""

    @abstractmethod
    def load(self, rows: Iterable[tuple[Key, Any]]) -> None:
        """Load elements, without recording changes."""

    def changes(self) -> Iterator[tuple[Key, Any]]:
        """Elements that changed since :meth:`settle`, in undefined order; ``None``: the element was removed."""
        for key in self._changed:
            yield key, self._row(key)

    def settle(self) -> None:
        """Forget the recorded changes, after they were written."""
        self._changed.clear()

    def _touch(self, key: Key) -> None:
        if not self._is_state:
            raise FrozenValue(f"a {type(self).__name__} that is a value cannot be changed; only state can")
        self._changed.add(key)


@cache
def _signature(kind: type[State], method: str) -> inspect.Signature:
    return inspect.signature(getattr(kind, method))


class Overflowed:
    """The value of an integer element whose sum exceeded 64 bits: null in tables, an error for reads."""

    def __repr__(self) -> str:
        return "OVERFLOWED"

    def __reduce__(self) -> str:
        return "OVERFLOWED"


OVERFLOWED = Overflowed()


def total(type: ValueType, before: Any, amount: Any) -> Any:
    """``before + amount`` as an element of this type; ``OVERFLOWED`` if it does not fit."""
    if before is OVERFLOWED:
        return OVERFLOWED
    after = before + amount
    return OVERFLOWED if type is INT and not -(2**63) <= after < 2**63 else after


def legible(value: Any, what: str) -> Any:
    """Return the element. Raises ``OverflowError`` if it has overflowed."""
    if value is OVERFLOWED:
        raise OverflowError(f"the sum in {what} exceeded 64 bits; set a new value to continue")
    return value
