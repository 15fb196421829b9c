"""Common parts of the classes that authors write: their context, their order of rows, their settings, their checks."""

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
    """A class that declares the order of its rows."""

    order_by: ClassVar[str | tuple[str, ...]] = ()

    @classmethod
    def order_columns(cls) -> tuple[str, ...]:
        """``order_by`` as a tuple."""
        return (cls.order_by,) if isinstance(cls.order_by, str) else tuple(cls.order_by)


def check_class(author: Any, base: type, verb: str, *methods: str) -> None:
    """Check that this is a subclass of ``base`` that defines ``methods``, such as ``process(self, rows, ctx)``.

    ``verb``: the verb that takes the class, for messages. Raises ``PipelineError`` with the fix.
    """
    if not (isinstance(author, type) and issubclass(author, base)):
        shown = f"an instance of {type(author).__name__}" if isinstance(author, base) else repr(author)
        raise PipelineError(f"{verb} takes a subclass of {base.__name__}, not {shown}. Pass the class itself.")
    for method in methods:
        name = method.partition("(")[0]
        if getattr(author, name) is getattr(base, name):
            raise PipelineError(f"{author.__name__} must define {method}.")


def check_order_by(author: Any) -> None:
    """Check that ``order_by`` names columns. Raises ``PipelineError``."""
    order = author.order_by
    names: tuple[Any, ...] = order if isinstance(order, tuple) else (order,)
    if not all(isinstance(name, str) for name in names):
        raise PipelineError(
            f"{author.__name__}.order_by is {order!r}: it must be the name of a column, or a tuple of names."
        )


def check_states(author: type, scopes: Collection[StateScope], fix: str) -> None:
    """Check that all declared states are valid and have one of these scopes. Raises ``SchemaError``,
    ``PipelineError``."""
    for state in declared_states(author).values():
        if state.scope not in scopes:
            raise PipelineError(f"state {state.name!r} of {author.__name__} has the scope {state.scope.value!r}; {fix}")
        state.value_columns()
        state.sub_key_columns()
        state.reconciling()


def check_times_to_live(author: type, event_time: str | None) -> None:
    """Check that the operator has event time if states expire by it. Raises ``PipelineError``."""
    for state in declared_states(author).values():
        check_clock_of_ttl(f"state {state.name!r} of {author.__name__}", state.expires, event_time)


def check_output(author: type) -> None:
    """Check that the class declares its output. Raises ``PipelineError``."""
    output = getattr(author, "output", None)
    if output is None or (isinstance(output, str) and not output.strip()):
        raise PipelineError(
            f"{author.__name__} does not declare its output: add output = 'column type, ..' to the class."
        )


_EVENT, _PROCESSING = ("timer", "delete_timer"), ("processing_timer", "delete_processing_timer")
NO_EVENT_TIME = "Call with_watermark(..) on the input first, or use processing time: ctx.processing_timer(at)."


def checked_hold(process: Any, has_timers: bool, event_time: str | None) -> int:
    """Check the timers that a keyed process uses. Returns its ``hold`` in microseconds.

    ``has_timers``: whether it defines ``on_timer``; ``event_time``: the event time column of its input. Raises
    ``PipelineError`` with the fix.
    """
    used = dict.fromkeys(name for method in (process.process, process.on_timer) for name in _asked_of_context(method))
    if not has_timers:
        for name in used:
            if name in (*_EVENT, *_PROCESSING):
                raise PipelineError(
                    f"{process.__name__} uses ctx.{name}(..) but does not define on_timer(self, key, at, ctx). Define "
                    "it."
                )
    if event_time is None:
        for name in used:
            if name in _EVENT:
                raise PipelineError(
                    f"{process.__name__} uses ctx.{name}(..), but its input has no event time. {NO_EVENT_TIME}"
                )
    hold = fixed_interval(f"{process.__name__}.hold", process.hold, least=0)
    if hold and event_time is None:
        raise PipelineError(
            f"{process.__name__}.hold is {process.hold!r}, but its input has no event time. Call with_watermark(..) "
            "on the input first, or remove hold."
        )
    return hold


def _asked_of_context(method: Callable[..., Any]) -> Iterator[str]:
    """The attributes that the code of a method reads from its last argument."""
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
    """The context of a call: epoch, subtask, times and timers.

    ``epoch_time``: the time at which the epoch was opened, in UTC. Unlike the clock, it is the same when the epoch is
    computed again. ``watermark``: rows with an earlier event time have arrived; ``None`` if no watermark exists yet, or
    without event time. In ``process`` it is the watermark that decides whether rows are late, in ``on_timer`` the one
    that fires timers. It is the last instant of the year 9999 when the input has ended. ``hop``: the number of the
    round of an ``aligned`` loop that this epoch processes; 0 in other epochs. ``converged``: an ``aligned`` loop has
    no more records; this epoch follows its last round.

    A timer is identified by its time, its name and its time domain (event or processing time). Setting an existing
    timer again has no effect. A key can have any number of timers. Times without a zone are UTC.
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
        """In ``on_timer``: the name of the timer."""
        raise self._no_timers("timer_name")

    @property
    def time_domain(self) -> TimeDomain:
        """In ``on_timer``: the time domain of the timer, ``"event"`` or ``"processing"``."""
        raise self._no_timers("time_domain")

    def timer(self, at: datetime, name: str = "") -> None:
        """Set a timer: ``on_timer`` is called for this key when the watermark reaches ``at``.

        If the watermark is already past ``at``, the timer fires in this epoch, after the rows. If a timer of the key
        with this or a later time has already fired in this epoch, it fires in the next epoch, which opens immediately.
        """
        raise self._no_timers("timer()")

    def processing_timer(self, at: datetime, name: str = "") -> None:
        """Set a timer that fires when the epoch time reaches ``at``. See :meth:`timer`."""
        raise self._no_timers("processing_timer()")

    def delete_timer(self, at: datetime, name: str = "") -> None:
        """Delete a timer of :meth:`timer`. A missing timer is ignored."""
        raise self._no_timers("delete_timer()")

    def delete_processing_timer(self, at: datetime, name: str = "") -> None:
        """Delete a timer of :meth:`processing_timer`. A missing timer is ignored."""
        raise self._no_timers("delete_processing_timer()")

    def _no_timers(self, what: str) -> PipelineError:
        return PipelineError(
            f"Operator {self.operator!r}: ctx.{what} is only available in a KeyedProcess that defines "
            "on_timer(self, key, at, ctx), in key_by(..).process(..)."
        )


def with_settings(process: type[Process], settings: Mapping[str, Any]) -> type[Process]:
    """A subclass of ``process`` with replaced class attributes.

    Raises ``PipelineError`` for an unknown attribute, and for a value that does not have the type of the attribute.
    """
    if not settings:
        return process
    fixed = {"process", "output", "order_by", "sides", *declared_states(process)}
    known = [name for name in dir(process) if not name.startswith("_") and not callable(getattr(process, name))]
    for name in settings:
        if name not in known or name in fixed:
            raise PipelineError(
                f"{process.__name__} has no setting {name!r}; the settings are its class attributes "
                f"{listed(other for other in known if other not in fixed)}.{closest(name, known)}"
            )
    checked = {name: _setting(process, name, value) for name, value in settings.items()}
    return type(process.__name__, (process,), {"__module__": process.__module__, **checked})


def _setting(process: type, name: str, value: Any) -> Any:
    """``value``, validated against the annotation of the attribute or, without one, the type of its default."""
    default = getattr(process, name)
    annotated = _annotation(process, name)
    kind = annotated if annotated is not None else type(default) if default is not None else Any
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]["msg"]
        shown = getattr(kind, "__name__", str(kind))
        raise PipelineError(f"{process.__name__}: setting {name!r} must be {shown}, not {value!r}: {wrong}.") from None
    except PydanticUserError:  # a type with its own configuration
        return TypeAdapter(kind).validate_python(value, strict=True)


def _annotation(process: type, name: str) -> Any:
    """The annotation of a class attribute; ``None`` if it has none, or if it cannot be evaluated here."""
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
