"""What authors subclass for a keyed function beside a control stream: rules or prices that every key is to see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epochal.declarations.author_classes import check_class, check_order_by, check_output, check_states
from epochal.declarations.keyed import Context, KeyedProcess
from epochal.declarations.sides import check_sides
from epochal.declarations.state import declared_states
from epochal.errors import PipelineError
from epochal.state.table import StateScope


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


SCOPES = (StateScope.KEYED, StateScope.BROADCAST)
_FIX = "beside a control stream state is keyed or broadcast: leave the scope out, or declare it with scope='broadcast'."


def check_broadcast(process: Any) -> None:
    """Can this class be an operator beside a control stream? Raises ``PipelineError`` with the fix."""
    methods = ("process(self, key, rows, ctx)", "process_broadcast(self, row, ctx)")
    check_class(process, BroadcastProcess, "process() of connected streams", *methods)
    check_output(process)
    check_sides(process)
    check_order_by(process)
    check_states(process, SCOPES, _FIX)
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
