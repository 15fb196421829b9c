"""What all classes that authors write have in common, and what is checked of each before it can be an operator."""

from __future__ import annotations

import dis
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import CodeType
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from epochal.declarations.intervals import fixed_interval
from epochal.declarations.names import closest, listed
from epochal.declarations.state import declared_states
from epochal.declarations.time_to_live import check_clock_of_ttl
from epochal.errors import PipelineError
from epochal.state.table import StateScope

Process = TypeVar("Process")


class Ordered:
    """A class that says in which order its rows come."""

    order_by: ClassVar[str | tuple[str, ...]] = ()

    @classmethod
    def order_columns(cls) -> tuple[str, ...]:
        """``order_by`` as a tuple."""
        return (cls.order_by,) if isinstance(cls.order_by, str) else tuple(cls.order_by)


def check_class(author: Any, base: type, verb: str, *methods: str) -> None:
    """Is it a subclass of ``base`` that defines ``methods``, such as ``process(self, rows, ctx)``?

    ``verb``: what takes the class, for messages. Raises ``PipelineError`` with the fix.
    """
    if not (isinstance(author, type) and issubclass(author, base)):
        shown = f"an instance of {type(author).__name__}" if isinstance(author, base) else repr(author)
        raise PipelineError(f"{verb} takes a subclass of {base.__name__}, not {shown}. Give the class itself.")
    for method in methods:
        name = method.partition("(")[0]
        if getattr(author, name) is getattr(base, name):
            raise PipelineError(f"{author.__name__} does not define {method}: define it.")


def check_order_by(author: Any) -> None:
    """Does ``order_by`` name columns? Raises ``PipelineError``."""
    order = author.order_by
    names: tuple[Any, ...] = order if isinstance(order, tuple) else (order,)
    if not all(isinstance(name, str) for name in names):
        raise PipelineError(f"{author.__name__}.order_by is {order!r}: give a column's name, or a tuple of names.")


def check_states(author: type, scopes: Collection[StateScope], fix: str) -> None:
    """Are all declared states valid, and of one of these scopes? Raises ``SchemaError`` and ``PipelineError``."""
    for state in declared_states(author).values():
        if state.scope not in scopes:
            raise PipelineError(f"state {state.name!r} of {author.__name__} is {state.scope.value} state; {fix}")
        state.value_columns()
        state.sub_key_columns()
        state.reconciling()


def check_times_to_live(author: type, event_time: str | None) -> None:
    """Is there an event time where a state expires by it? Raises ``PipelineError``."""
    for state in declared_states(author).values():
        check_clock_of_ttl(f"state {state.name!r} of {author.__name__}", state.expires, event_time)


def check_output(author: type) -> None:
    """Does the class say what it yields? Raises ``PipelineError``."""
    output = getattr(author, "output", None)
    if output is None or (isinstance(output, str) and not output.strip()):
        raise PipelineError(f"{author.__name__} does not say what it yields: add output = 'column type, ..' to it.")


_EVENT, _PROCESSING = ("timer", "delete_timer"), ("processing_timer", "delete_processing_timer")
NO_EVENT_TIME = "Say with_watermark(..) of its input first, or set it in processing time: ctx.processing_timer(at)."


def checked_hold(process: Any, has_timers: bool, event_time: str | None) -> int:
    """The ``hold`` of a keyed process, in microseconds, and whether it may use the timers that it uses.

    ``has_timers``: whether it defines ``on_timer``; ``event_time``: the column of its input that says when a row
    happened. Raises ``PipelineError`` with the fix.
    """
    used = dict.fromkeys(name for method in (process.process, process.on_timer) for name in _asked_of_context(method))
    if not has_timers:
        for name in used:
            if name in (*_EVENT, *_PROCESSING):
                raise PipelineError(
                    f"{process.__name__} uses ctx.{name}(..) and defines no on_timer(self, key, at, ctx): define it."
                )
    if event_time is None:
        for name in used:
            if name in _EVENT:
                raise PipelineError(
                    f"{process.__name__} uses ctx.{name}(..), and its input has no event time. {NO_EVENT_TIME}"
                )
    hold = fixed_interval(f"{process.__name__}.hold", process.hold, least=0)
    if hold and event_time is None:
        raise PipelineError(
            f"{process.__name__}.hold is {process.hold!r}, and its input has no event time that its output could be "
            "behind: say with_watermark(..) of it first, or remove hold."
        )
    return hold


def _asked_of_context(method: Callable[..., Any]) -> Iterator[str]:
    """The attributes that a method reads of its last argument, as far as its own code shows it."""
    code = getattr(method, "__code__", None)
    if isinstance(code, CodeType) and code.co_argcount == 4:
        yield from _attributes_of(code.co_varnames[3], code)


def _attributes_of(name: str, code: CodeType) -> Iterator[str]:
    loaded = False
    for instruction in dis.get_instructions(code):
        if loaded and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield str(instruction.argval)
        found = instruction.argval
        last = found[-1] if isinstance(found, tuple) and found else found
        loaded = instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last == name
    for constant in code.co_consts:  # generator expressions and functions inside see the same variable
        if isinstance(constant, CodeType) and name in constant.co_freevars:
            yield from _attributes_of(name, constant)


TimeDomain = Literal["event", "processing"]


@dataclass(frozen=True, slots=True)
class Context:
    """What an author's function may know besides its rows and its state.

    ``epoch_time``: when the epoch was opened, in UTC: the same however often it is computed, unlike the clock.
    ``watermark``: rows before it have come; ``None`` before any is known, or without event time. In ``process`` it is
    the one that rows are late by, in ``on_timer`` the one that timers fire by; the last moment of the year 9999 when no
    more rows can come. ``hop``: of the records that come out of a loop in rounds (``aligned``), how often they have
    been round; 0 in other epochs. ``converged``: such a loop has come to rest; this epoch follows its last round.

    A timer is known by its time and its name (and whether that is event time or processing time): setting one that is
    set already changes nothing, and a key may have any number of them. Times without a zone are UTC.
    """

    epoch: int
    operator: str
    subtask: int
    epoch_time: datetime
    watermark: datetime | None
    hop: int
    converged: bool

    @property
    def timer_name(self) -> str:
        """In ``on_timer``: the name that the timer was set with."""
        raise self._no_timers("timer_name")

    @property
    def time_domain(self) -> TimeDomain:
        """In ``on_timer``: whether the timer was set in ``"event"`` or in ``"processing"`` time."""
        raise self._no_timers("time_domain")

    def timer(self, at: datetime, name: str = "") -> None:
        """Have ``on_timer`` called for this key when the watermark reaches ``at``.

        If it has already: in this epoch, after the rows; in the next, which opens at once, where a timer of the key at
        this time or a later one has fired in this epoch.
        """
        raise self._no_timers("timer()")

    def processing_timer(self, at: datetime, name: str = "") -> None:
        """As :meth:`timer`, when the epoch time reaches ``at``."""
        raise self._no_timers("processing_timer()")

    def delete_timer(self, at: datetime, name: str = "") -> None:
        """Take back :meth:`timer`; without effect when there is no such timer any more."""
        raise self._no_timers("delete_timer()")

    def delete_processing_timer(self, at: datetime, name: str = "") -> None:
        """Take back :meth:`processing_timer`; without effect when there is no such timer any more."""
        raise self._no_timers("delete_processing_timer()")

    def _no_timers(self, what: str) -> PipelineError:
        return PipelineError(
            f"Operator {self.operator!r}: ctx.{what} is only where there are timers: in a KeyedProcess that defines "
            "on_timer(self, key, at, ctx), called by key_by(..).process(..)."
        )


def with_settings(process: type[Process], settings: Mapping[str, Any]) -> type[Process]:
    """``process`` with class attributes replaced.

    Raises ``PipelineError`` for one that it does not have, and for a value that is not of the attribute's type.
    """
    if not settings:
        return process
    fixed = {"process", "output", "order_by", "sides", *declared_states(process)}
    known = [name for name in dir(process) if not name.startswith("_") and not callable(getattr(process, name))]
    for name in settings:
        if name not in known or name in fixed:
            raise PipelineError(
                f"{process.__name__} has no setting {name!r}; its settings are the class attributes "
                f"{listed(other for other in known if other not in fixed)}.{closest(name, known)}"
            )
    checked = {name: _setting(process, name, value) for name, value in settings.items()}
    return type(process.__name__, (process,), {"__module__": process.__module__, **checked})


def _setting(process: type, name: str, value: Any) -> Any:
    """``value`` as the setting's type has it: that of its annotation, or else of the value in the class."""
    default = getattr(process, name)
    annotated = _annotation(process, name)
    kind = annotated if annotated is not None else type(default) if default is not None else Any
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]["msg"]
        shown = getattr(kind, "__name__", str(kind))
        raise PipelineError(
            f"{process.__name__}: setting {name!r} is {shown}, and cannot be {value!r}: {wrong}."
        ) from None
    except PydanticUserError:  # a kind that brings a configuration of its own
        return TypeAdapter(kind).validate_python(value, strict=True)


def _annotation(process: type, name: str) -> Any:
    """What the class says that an attribute is; ``None`` where it says nothing, or what cannot be read here."""
    owner = next((kind for kind in process.__mro__ if name in vars(kind).get("__annotations__", {})), None)
    if owner is None:
        return None
    holder = type("Holder", (), {"__annotations__": {name: owner.__annotations__[name]}})
    known = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    try:
        found = typing.get_type_hints(holder, globalns=known, localns=dict(vars(owner))).get(name)
    except (NameError, TypeError):
        return None
    return typing.get_args(found)[0] if typing.get_origin(found) is ClassVar else found
