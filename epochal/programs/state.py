"""What all state classes have in common: elements that are rows, accesses that the analysis knows, frozen values.

An instance is either *state*, which a program's instance or a task holds and which only its own methods change, or a
*value*, which nothing changes: what a read of state returns, and what authors make themselves. State knows which of its
elements have changed since it was settled, so that a task can write them as changes of a state table.
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
    """A value was to be changed: only state changes, by its own methods."""


@dataclass(frozen=True)
class Column:
    """A column of a state element's rows."""

    name: str
    type: ValueType

    @property
    def spark(self) -> str:
        return self.type.spark

    def __str__(self) -> str:
        return f"{self.name} {self.spark}"


@dataclass(frozen=True)
class ElementModel:
    """The elements of a state class as rows of a state table: ``key`` says which partition, ``sub_key`` which element
    of it; of partial state the instance is the key, and both are the sub-key."""

    key: tuple[Column, ...]
    sub_key: tuple[Column, ...]
    value: tuple[Column, ...]

    def to_row(self, value: Any) -> Any:
        """An element's value as it stands in its row; null: its sum has overflowed."""
        return None if value is OVERFLOWED else self.value[0].type.to_row(value)

    def from_row(self, value: Any) -> Any:
        """What :meth:`to_row` gave, as the element's value."""
        return OVERFLOWED if value is None else self.value[0].type.from_row(value)

    def __str__(self) -> str:
        left = ", ".join(map(str, (*self.key, *self.sub_key)))
        return f"{left} → {', '.join(map(str, self.value))}"


@dataclass(frozen=True)
class Access:
    """What a method does to state. ``key``: which parameter says the partition, by how the state is partitioned;
    ``blind``: it writes, gives nothing back, and fails for its arguments only, whatever the state is; ``any_value``:
    whether it fails for them depends on their types alone, where these are scalars."""

    key: dict[str, str]
    writes: bool
    blind: bool
    any_value: bool = True


def reads(**key: str) -> Callable[[Method], Method]:
    """Marks a method that reads. ``by="parameter"``: the key, where state is partitioned by this."""
    return _marked(Access(key, writes=False, blind=False))


def writes(*, any_value: bool = True, **key: str) -> Callable[[Method], Method]:
    """Marks a method that writes blindly (:class:`Access`)."""
    return _marked(Access(key, writes=True, blind=True, any_value=any_value))


def _marked(access: Access) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        method.__access__ = access  # type: ignore[attr-defined]
        return method

    return mark


class State(ABC):
    """A state class. ``partitionings``: what it can be partitioned by, the usual first; empty: it cannot be.
    ``zero_is_none``: whether an element that becomes zero is gone."""

    partitionings: ClassVar[tuple[str, ...]] = ()
    zero_is_none: ClassVar[bool] = False
    _is_state: bool = False
    _changed: set[Key]
    _name: str = "the state"
    _siblings: tuple[Self, ...] = ()
    """All instances of partial state, where a plain run has several."""

    @classmethod
    @abstractmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        """The rows for these type arguments. Raises :class:`~epochal.programs.value_types.NotAValueType`."""

    @classmethod
    def of_state(cls, model: ElementModel, name: str) -> Self:
        """Empty state."""
        state = cls()
        state._is_state, state._changed, state._name, state._siblings = True, set(), name, (state,)
        state._declare(model)
        return state

    @classmethod
    def access(cls, method: str) -> Access | None:
        """What a method of this name does to state; ``None``: it is none that reads or writes."""
        access: Access | None = getattr(getattr(cls, method, None), "__access__", None)
        return access

    @classmethod
    def accesses(cls) -> dict[str, Access]:
        """All methods that read or write, by name."""
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
        """The element of a full key, ``None`` where there is none."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[Key, Any]]:
        """All elements as (full key, value), in the order of keys. A value of ``OVERFLOWED`` is null in tables."""

    @abstractmethod
    def load(self, rows: Iterable[tuple[Key, Any]]) -> None:
        """Put elements there as they were, which is no change."""

    def changes(self) -> Iterator[tuple[Key, Any]]:
        """Elements that were touched since :meth:`settle`, as they are now; ``None``: it is gone. In no order."""
        for key in self._changed:
            yield key, self._row(key)

    def settle(self) -> None:
        """What has changed so far has been written."""
        self._changed.clear()

    def _touch(self, key: Key) -> None:
        if not self._is_state:
            raise FrozenValue(f"a {type(self).__name__} that is a value cannot be changed; only state can")
        self._changed.add(key)


@cache
def _signature(kind: type[State], method: str) -> inspect.Signature:
    return inspect.signature(getattr(kind, method))


class Overflowed:
    """What an integer element is when its sum has left 64 bits: null in tables, and an error to whoever reads it."""

    def __repr__(self) -> str:
        return "OVERFLOWED"

    def __reduce__(self) -> str:
        return "OVERFLOWED"


OVERFLOWED = Overflowed()


def total(type: ValueType, before: Any, amount: Any) -> Any:
    """``before + amount`` as an element of this type; ``OVERFLOWED`` where it does not fit any more."""
    if before is OVERFLOWED:
        return OVERFLOWED
    after = before + amount
    return OVERFLOWED if type is INT and not -(2**63) <= after < 2**63 else after


def legible(value: Any, what: str) -> Any:
    """The element for a reader. Raises ``OverflowError`` where it has overflowed."""
    if value is OVERFLOWED:
        raise OverflowError(f"the sum in {what} has left 64 bits; set it to go on")
    return value
