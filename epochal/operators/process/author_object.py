"""The author's object while it runs: what it keeps for itself would make the result depend on the partitioning.

An object serves many keys, in an order that nobody promises, and is gone with its task. What it keeps from one key for
the next is no state: so it cannot be written. Caught are attributes of the object and of its class that are assigned or
deleted, and lists, dicts, sets and the like in them that are changed; what is hidden deeper, or global, is not seen.
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
"""Larger containers are not compared: that would cost as much as the work itself."""
_CONTAINERS = (list, dict, set, bytearray, deque)
_BASES = (KeyedProcess, BroadcastProcess, UnkeyedProcess, PartialProcess, BatchFunction, object)
Author = TypeVar("Author")


@contextmanager
def read_only(instance: Any, where: str) -> Iterator[None]:
    """Inside the block, writing an attribute of ``instance`` raises ``AttributeError``, which the author's code sees.

    Raises ``AuthorError`` at the block's end for what was changed in another way. ``where`` begins its message.
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
        f"{owner.__name__}.{name} is written while rows are processed. It would be kept from key to key, in any order, "
        f"and lost with the task: declare a state, {name} = ValueState('value bigint'), and use self.{name}.get() and "
        f"self.{name}.set(..). Settings are read-only; what is computed once belongs into __init__."
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
    """The bytes of a container; ``None`` for anything else, and for what has none."""
    if not isinstance(value, _CONTAINERS) or len(value) > MOST_ELEMENTS:
        return None
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  whatever an object in it does about being pickled
        return None


def author_object(operator: str, author: type[Author]) -> Author:
    """The object whose methods a task calls. Raises ``AuthorError`` for what making it raises."""
    try:
        return author()
    except Exception as error:
        raise author_error(f"Operator {operator!r}, making {author.__name__}", error) from error
