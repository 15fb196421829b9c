"""``@program`` and ``@entry``: a class with state elements and entries, which also runs as it is, sequentially."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

from epochal.programs.conforming import Conforming
from epochal.programs.distribution import Distributed, Distribution
from epochal.programs.rule import Place
from epochal.programs.rules import RULES
from epochal.programs.state import ElementModel, State
from epochal.programs.value_types import NotAValueType, python_name

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class StateElement:
    """A state element: an attribute of the class. ``by``: what it is partitioned by; ``None`` of partial state."""

    name: str
    kind: type[State]
    arguments: tuple[Any, ...]
    distribution: Distribution
    by: str | None
    model: ElementModel

    @property
    def shown_kind(self) -> str:
        inner = ", ".join(map(python_name, self.arguments))
        return f"{self.kind.__name__}[{inner}]" if inner else self.kind.__name__

    def make(self) -> State:
        """Empty state of one instance."""
        return self.kind.of_state(self.model, self.name)


@dataclass(frozen=True)
class Declaration:
    """What a program's class declares."""

    program: type
    file: str
    elements: dict[str, StateElement]
    entries: dict[str, Conforming]
    methods: dict[str, FunctionType]
    """Those that are no entries."""


def entry(function: Function) -> Function:
    """Marks a method that is called from outside: one call is one row of its input."""
    function.__entry__ = True  # type: ignore[attr-defined]
    return function


def program(cls: Class) -> Class:
    """Marks a class whose annotated attributes are state, so that it can be translated to a dataflow.

    Instances run it sequentially in plain Python: ``Words().seen("a")``. Arguments, answers and variables with a type
    are checked when they are assigned, here as in the dataflow.
    """
    cls.__program__ = True  # type: ignore[attr-defined]
    own = vars(cls).get("__init__")
    if own is None:
        cls.__init__ = _initialise  # type: ignore[misc]
    for name, function in list(vars(cls).items()):
        if isinstance(function, FunctionType) and getattr(function, "__entry__", False):
            setattr(cls, name, _plain(name, function))
    return cls


def sequential(cls: type[Any], instances: int = 1) -> Any:
    """An instance for a plain run in which partial state has several ``instances``.

    The first call accesses the first of them, the next call the next one, and so on; ``Global`` accesses all.
    """
    plain = cls()
    plain.__dict__["_instances"] = [dict(plain._instances[0]) for _ in range(instances)]
    for name, element in declared(cls).elements.items():
        if element.distribution is Distribution.PARTIAL:
            siblings = tuple(element.make() for _ in range(instances))
            for each, state in zip(plain._instances, siblings, strict=True):
                state._siblings = siblings
                each[name] = state
    return plain


def declared(cls: type) -> Declaration:
    """The class's declaration. Raises ``ProgramRefused`` for what is wrong with state elements and entries."""
    kept = cls.__dict__.get("__declaration__")
    if isinstance(kept, Declaration):
        return kept
    file = inspect.getsourcefile(_any_function(cls)) or "?"
    elements = {element.name: element for element in _elements(cls, file)}
    if "__init__" in vars(cls) and vars(cls)["__init__"] is not _initialise:
        raise RULES["own-constructor"].refuse(_place(cls, file, "def __init__"), f"{cls.__name__} has a constructor")
    functions = {name: each for name, each in vars(cls).items() if isinstance(each, FunctionType)}
    entries = {name: inspect.unwrap(each) for name, each in functions.items() if hasattr(each, "__entry__")}
    if not entries:
        raise RULES["no-entry"].refuse(_place(cls, file, "class "), f"{cls.__name__} has no entry")
    methods = {name: each for name, each in functions.items() if name not in entries and name != "__init__"}
    declaration = Declaration(
        cls, file, elements, {name: Conforming.of(each) for name, each in entries.items()}, methods
    )
    cls.__declaration__ = declaration  # type: ignore[attr-defined]
    return declaration


def _elements(cls: type, file: str) -> typing.Iterator[StateElement]:
    try:
        hints = typing.get_type_hints(cls, globalns=_names(cls), include_extras=True)
    except Exception as error:  # noqa: BLE001 # whatever the author's annotations raise
        what = f"an annotation of {cls.__name__} cannot be evaluated ({type(error).__name__}: {error})"
        raise RULES["state-class"].refuse(_place(cls, file, "class "), what) from None
    for name, hint in hints.items():
        if typing.get_origin(hint) is typing.ClassVar:
            continue
        place = _place(cls, file, f"{name}:")
        marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Distributed)]
        kind = hint.__origin__ if marks else hint
        base = typing.get_origin(kind) or kind
        if not (isinstance(base, type) and issubclass(base, State) and base is not State):
            raise RULES["state-class"].refuse(place, f"{name} is of class {python_name(base)}")
        if not marks:
            raise RULES["undistributed"].refuse(place, f"{name} is a {python_name(base)}")
        (mark,), arguments = marks, typing.get_args(kind)
        partitioned = mark.distribution is Distribution.PARTITIONED
        by = (mark.by or base.partitionings[0]) if partitioned else None
        if by is not None and by not in base.partitionings:
            raise RULES["other-partitioning"].refuse(place, f"a {base.__name__} cannot be partitioned by {by}")
        try:
            model = base.model(arguments, by)
        except NotAValueType as error:
            raise RULES["element-types"].refuse(place, f"{name}: {error}") from None
        yield StateElement(name, base, arguments, mark.distribution, by, model)


def _any_function(cls: type) -> Any:
    functions = [each for each in vars(cls).values() if isinstance(each, FunctionType) and each is not _initialise]
    return inspect.unwrap(functions[0]) if functions else cls


def _names(cls: type) -> dict[str, Any] | None:
    """Those that the class's module has, wherever it was loaded."""
    function = _any_function(cls)
    return function.__globals__ if isinstance(function, FunctionType) else None


def _place(cls: type, file: str, begins: str) -> Place:
    """The line of the class that begins so."""
    try:
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return Place(file, 0)
    for number, line in enumerate(lines, first):
        if line.strip().startswith(begins):
            return Place(file, number, line.strip())
    return Place(file, first)


def _initialise(self: Any) -> None:
    self._instances = [{name: element.make() for name, element in declared(type(self)).elements.items()}]
    self._calls = 0
    self.__dict__.update(self._instances[0])


def _plain(name: str, function: FunctionType) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        conforming = declared(type(self)).entries[name]
        self.__dict__.update(self._instances[self._calls % len(self._instances)])
        self._calls += 1
        return conforming.call(self, conforming.arguments(arguments, named))

    return call
