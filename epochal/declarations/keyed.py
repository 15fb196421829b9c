"""Base classes of keyed functions: in Python (`KeyedProcess`, `BroadcastProcess`) and over Arrow (`BatchFunction`)."""

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
    "here, state must be keyed: leave the scope out. Use an UnkeyedProcess, stream.process_any(..), for operator and "
    "union state; a BroadcastProcess, stream.connect(control, ..).key_by(..).process(..), for broadcast state; or a "
    "PartialProcess, stream.process_partial(..), for partial state."
)
SCOPES = (StateScope.KEYED, StateScope.BROADCAST)
_BROADCAST_FIX = (
    "a BroadcastProcess has keyed or broadcast state: leave the scope out, or declare it with scope='broadcast'."
)


class KeyedProcess(Ordered):
    """A function that is called once per key and epoch, with the rows of the key in order. Subclass it::

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

    ``process`` is called for the keys that have rows in an epoch, ``on_timer`` for the keys with a due timer. Both must
    be deterministic functions of state, key, rows and ``ctx``, because an epoch can be computed again. Other class
    attributes are settings: ``process(LateStreaks, minutes=30)`` replaces them.
    """

    output: ClassVar[str | StructType]
    """The columns of the output, in Spark's schema syntax. Key columns are included only if they are named here."""
    order_by: ClassVar[str | tuple[str, ...]] = ()
    """Column or columns by which the rows of a key are sorted, ascending, nulls first. The default order is undefined.

    If the class has timers and the first column is the event time, rows and timers are processed in the order of time:
    ``process`` is called once for each time that the watermark has passed, and once for all later rows.
    """
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name. ``yield To("alerts", row)`` writes a row to it."""
    hold: ClassVar[str] = "0 seconds"
    """Maximum delay of output rows behind the watermark. The watermark of the output is lower by this duration."""

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any] | None:
        """Yield (or return a list of) output rows: tuples in the order of ``output``, named tuples, or dicts by name.

        ``key`` is a named tuple of the key columns, each of which can be ``None``. ``rows`` is a sequence of named
        tuples of all columns of the input.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterable[Any] | None:
        """Process a due timer of this key, set for ``at`` (UTC) by ``ctx.timer`` or ``ctx.processing_timer``.

        Yields output rows as ``process`` does. The rows of a key are processed first, then its due timers: event time
        timers, then processing time timers, each ordered by time and name. ``ctx.timer_name`` identifies the timer.
        """
        raise NotImplementedError


def has_timers(process: type[KeyedProcess]) -> bool:
    """Return whether the class defines ``on_timer``."""
    return process.on_timer is not KeyedProcess.on_timer


class BatchState(Protocol):
    """Bulk access to one state table of one subtask. The engine implements it.

    Columns are matched by name. Reads include the changes that were made before, also in the same call.
    """

    def get(self, keys: pa.Table) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """Return ``(found, values)``. Row i is for row i of ``keys`` (full key columns); values are null if not
        found."""

    def put(self, rows: pa.Table) -> None:
        """Write values: full key columns and value columns, at most one row per key."""

    def delete(self, keys: pa.Table) -> None:
        """Delete keys (full key columns). Missing keys are ignored."""


class BatchFunction(ABC):
    """A function that is called once per subtask and epoch with all rows of the subtask, as Arrow. Subclass it::

        class Running(BatchFunction):
            totals = ValueState("total bigint")
            output = "route string, total bigint"

            def process_batch(self, batch, states, ctx):
                slice = batch.group_by("route").aggregate([("delay", "sum")])
                found, old = states["totals"].get(slice.select(["route"]))
                ...

    ``states`` contains a :class:`BatchState` for each declared state. All rows of a key are in the same call. In an
    epoch without rows the function can be called with an empty table.
    """

    output: ClassVar[str | StructType]
    sides: ClassVar[Mapping[str, str | StructType]] = {}
    """The columns of each side output, by its name. ``yield To("alerts", table)`` writes rows to it."""

    @abstractmethod
    def process_batch(
        self, batch: pa.Table, states: Mapping[str, BatchState], ctx: Context
    ) -> pa.Table | Iterable[pa.Table | To]:
        """Return the output rows as a table with the columns of ``output``; or yield tables, and tables for sides."""


def check_process(process: Any) -> None:
    """Check the class of ``key_by(..).process(..)``. Raises ``PipelineError`` with the fix."""
    check_class(process, KeyedProcess, "process()", "process(self, key, rows, ctx)")
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, (StateScope.KEYED,), KEYED_ONLY)


def check_batch_function(function: Any) -> BatchFunction:
    """Check the function of ``process_batch(..)``. Returns an instance. Raises ``PipelineError`` with the fix."""
    if isinstance(function, type) and issubclass(function, BatchFunction):
        try:
            function = function()
        except TypeError as error:
            raise PipelineError(f"{function.__name__} requires arguments ({error}): pass an instance.") from error
    if not isinstance(function, BatchFunction):
        raise PipelineError(f"process_batch() takes a BatchFunction, as a class or an instance, not {function!r}.")
    check_output(type(function))
    check_sides(type(function))
    check_states(type(function), (StateScope.KEYED,), KEYED_ONLY)
    for state in declared_states(type(function)).values():
        if state.expires is not None:
            raise PipelineError(
                f"state {state.name!r} of {type(function).__name__} has a ttl, which process_batch() does not "
                "support. Use a KeyedProcess, or store a time in the state and delete old values."
            )
    return function


class BroadcastProcess(KeyedProcess):
    """A keyed function that a control stream configures through broadcast state. Subclass it::

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

    In each epoch every subtask calls ``process_broadcast`` for all control rows, in the order of ``order_by``, and then
    ``process`` for its keys. Only ``process_broadcast`` can write broadcast state, and it must write the same on every
    subtask: its writes may depend only on control rows and broadcast state, otherwise the epoch is aborted.
    """

    def process_broadcast(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        """Process one control row, a named tuple. Output rows are taken from subtask 0 only."""
        raise NotImplementedError


def check_broadcast(process: Any) -> None:
    """Check the class of ``connect(..).key_by(..).process(..)``. Raises ``PipelineError`` with the fix."""
    methods = ("process(self, key, rows, ctx)", "process_broadcast(self, row, ctx)")
    check_class(process, BroadcastProcess, "process() of connected streams", *methods)
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, SCOPES, _BROADCAST_FIX)
    for state in declared_states(process).values():
        if state.expires is not None and state.expires.clock == "event":
            raise PipelineError(
                f"state {state.name!r} of {process.__name__} has ttl_on='event_time', but a BroadcastProcess has "
                "no event time. Leave ttl_on out to use processing time."
            )
    for name in ("on_timer", "hold"):
        if getattr(process, name) != getattr(KeyedProcess, name):
            raise PipelineError(
                f"{process.__name__} defines {name}, but a BroadcastProcess has no timers and no event time. "
                "Set timers in a KeyedProcess over the output of this operator."
            )


def broadcast_states(process: type[BroadcastProcess]) -> tuple[str, ...]:
    """The names of the broadcast states."""
    return tuple(name for name, state in declared_states(process).items() if state.scope is StateScope.BROADCAST)
