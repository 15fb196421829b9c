"""What authors subclass: keyed functions in Python (`KeyedProcess`) and over Arrow tables (`BatchFunction`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from epochal.declarations.author_classes import (
    Context,
    Ordered,
    check_class,
    check_order_by,
    check_output,
    check_states,
)
from epochal.declarations.sides import check_sides
from epochal.declarations.state import declared_states
from epochal.errors import PipelineError
from epochal.state.table import StateScope

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from epochal.declarations.sides import To


KEYED_ONLY = (
    "it belongs to no key: leave the scope out; use an UnkeyedProcess, stream.process_any(..), for operator and union "
    "state; a BroadcastProcess, stream.connect(control, ..).key_by(..).process(..), for broadcast state; or a "
    "PartialProcess, stream.process_partial(..), for partial state."
)
SCOPES = (StateScope.KEYED, StateScope.BROADCAST)
_BROADCAST_FIX = (
    "a BroadcastProcess has keyed or broadcast state: leave the scope out, or declare it with scope='broadcast'."
)


class KeyedProcess(Ordered):
    """A function called once per key and epoch, with that key's rows in order. Subclass it::

        class LateStreaks(KeyedProcess):
            current = ValueState("streak int")
            output = "tail string, streak int"
            order_by = "time"

            def process(self, key, rows, ctx):
                streak = self.current.get() or 0
                for row in rows:
                    streak = streak + 1 if row.delay > 15 else 0
                self.current.set(streak)
                yield key.tail, streak

    Only keys that have rows in an epoch are called, and ``on_timer`` for those that a timer is due for. The functions
    must be deterministic in (state, key, rows) and what ``ctx`` says: an epoch may be computed again. Other class
    attributes are settings: ``process(LateStreaks, minutes=30)`` replaces them.
    """

    output: ClassVar[str | StructType]
    """The columns of what ``process`` yields, as Spark spells schemas; key columns only if they are named here."""
    order_by: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns that a key's rows are sorted by, ascending, nulls first. Without it their order is any.

    Where there are timers, and the first column is the one with the event time, rows and timers come in the order of
    time: ``process`` is called once for each time that the watermark has reached, and once for all rows after it.
    """
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name: rows come to it by ``yield To("alerts", row)``."""
    hold: ClassVar[str] = "0 seconds"
    """So far behind the watermark what it yields may have happened: the watermark of its output is that much behind."""

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any] | None:
        """Yield (or return a list of) output rows: tuples in the order of ``output``, named tuples, or dicts by name.

        ``key`` is a named tuple of the key columns, each of which may be ``None``; ``rows`` is a sequence of named
        tuples of all columns of the input.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterable[Any] | None:
        """A timer of this key is due, which was set for ``at`` (UTC) by ``ctx.timer`` or ``ctx.processing_timer``.

        Yields output rows as ``process`` does. Of a key the rows come first, then the timers that are due: those in
        event time, then those in processing time, each by time and name. ``ctx.timer_name`` says which one it is.
        """
        raise NotImplementedError


def has_timers(process: type[KeyedProcess]) -> bool:
    """Whether a class says what to do when a timer is due."""
    return process.on_timer is not KeyedProcess.on_timer


class BatchState(Protocol):
    """One state table of one subtask, many keys at a time. The engine implements it.

    Tables name their columns; their order does not matter. Reads see what was put and deleted before, in this call too.
    """

    def get(self, keys: pa.Table) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """``(found, values)``: row i belongs to row i of ``keys`` (full key columns); null values where not found."""

    def put(self, rows: pa.Table) -> None:
        """Put values: full key columns and value columns, at most one row per key."""

    def delete(self, keys: pa.Table) -> None:
        """Delete keys (full key columns); without effect where there is no value."""


class BatchFunction(ABC):
    """A function called once per subtask and epoch with all of its rows, Arrow in and Arrow out. Subclass it::

        class Running(BatchFunction):
            totals = ValueState("total bigint")
            output = "route string, total bigint"

            def process_batch(self, batch, states, ctx):
                slice = batch.group_by("route").aggregate([("delay", "sum")])
                found, old = states["totals"].get(slice.select(["route"]))
                ...

    ``states`` holds a :class:`BatchState` per declared state. All rows of one key are in the same call. An epoch
    without rows may call it with an empty table.
    """

    output: ClassVar[str | StructType]
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name: rows come to it by ``yield To("alerts", table)``."""

    @abstractmethod
    def process_batch(
        self, batch: pa.Table, states: Mapping[str, BatchState], ctx: Context
    ) -> pa.Table | Iterable[pa.Table | To]:
        """The output rows: a table with the columns of ``output``, by name; or yield tables, and those of sides."""


def check_process(process: Any) -> None:
    """Can this class be an operator? Raises ``PipelineError`` with the fix."""
    check_class(process, KeyedProcess, "process()", "process(self, key, rows, ctx)")
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, (StateScope.KEYED,), KEYED_ONLY)


def check_batch_function(function: Any) -> BatchFunction:
    """The function as an instance. Raises ``PipelineError`` with the fix."""
    if isinstance(function, type) and issubclass(function, BatchFunction):
        try:
            function = function()
        except TypeError as error:
            raise PipelineError(f"{function.__name__} needs arguments ({error}): give an instance.") from error
    if not isinstance(function, BatchFunction):
        raise PipelineError(f"process_batch() takes a BatchFunction, as a class or an instance, not {function!r}.")
    check_output(type(function))
    check_sides(type(function))
    check_states(type(function), (StateScope.KEYED,), KEYED_ONLY)
    for state in declared_states(type(function)).values():
        if state.expires is not None:
            raise PipelineError(
                f"state {state.name!r} of {type(function).__name__} has a ttl, which process_batch() does not keep: "
                "use a KeyedProcess, or keep a time in the state and delete what is old."
            )
    return function


class BroadcastProcess(KeyedProcess):
    """A keyed function that a control stream steers through broadcast state. Subclass it::

        class Alerts(BroadcastProcess):
            limits = MapState(key="kind string", value="most double", scope="broadcast")
            count = ValueState("alerts bigint")
            output = "user string, kind string, alerts bigint"

            def process_broadcast(self, row, ctx):
                self.limits.put(row.kind, row.most)

            def process(self, key, rows, ctx):
                for row in rows:
                    if row.amount > self.limits.get(row.kind, float("inf")):
                        self.count.set((self.count.get() or 0) + 1)
                        yield key.user, row.kind, self.count.get()

    and connect the streams: ``payments.connect(limits, broadcast=True, order_by="at").key_by("user").process(Alerts)``.

    Every subtask calls ``process_broadcast`` with all of an epoch's control rows, in the order of ``order_by``, and
    then ``process`` with its keys. Broadcast state is written by ``process_broadcast`` alone, and the same on every
    subtask: what it writes may depend on control rows and broadcast state only, or the epoch is aborted.
    """

    def process_broadcast(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        """Take one control row, a named tuple. What it yields is output as that of ``process``; subtask 0's counts."""
        raise NotImplementedError


def check_broadcast(process: Any) -> None:
    """Can this class be an operator beside a control stream? Raises ``PipelineError`` with the fix."""
    methods = ("process(self, key, rows, ctx)", "process_broadcast(self, row, ctx)")
    check_class(process, BroadcastProcess, "process() of connected streams", *methods)
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, SCOPES, _BROADCAST_FIX)
    for state in declared_states(process).values():
        if state.expires is not None and state.expires.clock == "event":
            raise PipelineError(
                f"state {state.name!r} of {process.__name__} has ttl_on='event_time'; beside a control stream there is "
                "no event time. Leave ttl_on out, to count in processing time."
            )
    for name in ("on_timer", "hold"):
        if getattr(process, name) != getattr(KeyedProcess, name):
            raise PipelineError(
                f"{process.__name__} has {name}: beside a control stream there are no timers, and no event time. "
                "Set timers in a KeyedProcess over what this operator yields."
            )


def broadcast_states(process: type[BroadcastProcess]) -> tuple[str, ...]:
    """The names of the states that every subtask holds alike."""
    return tuple(name for name, state in declared_states(process).items() if state.scope is StateScope.BROADCAST)
