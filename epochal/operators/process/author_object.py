"""The author's object in a task, which must not change its attributes: results would depend on the partitioning.

An object serves many keys, in an undefined order, and is deleted with its task. Values that it keeps between keys are
not state, and are therefore read-only. The check detects assignments and deletions of attributes of the object and of
its class, and changes of lists, dicts, sets and similar containers in them, but not of nested or global objects.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from epochal.declarations.keyed import BatchFunction, BroadcastProcess, KeyedProcess
from epochal.declarations.state import StateDeclaration
from epochal.declarations.unkeyed import PartialProcess, UnkeyedProcess
from epochal.errors import AuthorError
from epochal.tasks.reporting import author_error

MOST_ELEMENTS = 10_000
"""The maximum size of containers that are compared; larger ones would take too long."""
_CONTAINERS = (list, dict, set, bytearray, deque)
_BASES = (KeyedProcess, BroadcastProcess, UnkeyedProcess, PartialProcess, BatchFunction, object)
Author = TypeVar("Author")


@contextmanager
def read_only(instance: Any, where: str) -> Iterator[None]:
    """Inside the block, writing an attribute of ``instance`` raises ``AttributeError`` in the author's code.

    Raises ``AuthorError`` at the end of the block for other changes. ``where`` begins its message.
    """
    plain = type(instance)
    own = {"__slots__": (), "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    frozen = type(plain.__name__, (plain,), {**own, "__setattr__": _refuse, "__delattr__": _refuse})
    holders = [frozen, *(kind for kind in plain.__mro__ if kind not in _BASES)]
    object.__setattr__(instance, "__class__", frozen)
    try:
        before = [dict(vars(holder)) for holder in (instance, *holders)]
        contents = [{name: _content(value) for name, value in held.items()} for held in before]
        yield
        for holder, held, content in zip((instance, *holders), before, contents, strict=True):
            changed = _changed(plain, dict(vars(holder)), held, content)
            if changed is not None:
                raise AuthorError(f"{where}: {_message(plain, changed)}")
    finally:
        object.__setattr__(instance, "__class__", plain)


def _refuse(instance: Any, name: str, *value: Any) -> None:
    declared = getattr(type(instance), name, None)
    if isinstance(declared, StateDeclaration):
        raise AttributeError(
            f"{type(instance).__name__}.{name} is a state: write it with self.{name}.set(..) or clear()."
        )
    raise AttributeError(_message(type(instance), name))


def _message(owner: type, name: str) -> str:
    return (
        f"{owner.__name__}.{name} is written while rows are processed. Its value would be shared by keys in any order, "
        f"and lost with the task: declare a state, {name} = ValueState('value bigint'), and use self.{name}.get() and "
        f"self.{name}.set(..). Settings are read-only; compute constants in __init__."
    )


def _changed(owner: type, now: dict[str, Any], before: dict[str, Any], content: dict[str, bytes | None]) -> str | None:
    for name, value in now.items():
        if name not in before:
            if not name.startswith("__") and not isinstance(getattr(owner, name, None), cached_property):
                return name
        elif value is not before[name] or (content[name] is not None and content[name] != _content(value)):
            return name
    return next((name for name in before if name not in now), None)


def _content(value: Any) -> bytes | None:
    """The bytes of a container; ``None`` for other objects, and for containers that cannot be pickled."""
    if not isinstance(value, _CONTAINERS) or len(value) > MOST_ELEMENTS:
        return None
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  an object in it may raise any error when it is pickled
        return None


def author_object(operator: str, author: type[Author]) -> Author:
    """The object whose methods a task calls. Raises ``AuthorError`` for errors of its constructor."""
    try:
        return author()
    except Exception as error:
        raise author_error(f"Operator {operator!r}, creating {author.__name__}", error) from error
