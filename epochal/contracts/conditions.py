"""Conditions of an epoch beside its slices, chosen at E1, and the times that its operators wait for.

The manifest stores both, so that a retry and a replay see the same conditions, and the loop finds due times without
reading state. All times are microseconds from the Unix epoch, UTC, as Spark's timestamps are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from epochal.contracts.identity import PackPlace, StorePath

BEGINNING: Final = -(2**63)
"""Before all times: the watermark before the first row."""
END: Final = 2**63 - 1
"""After all times: the watermark after the last row."""
EARLIEST: Final = -(2**62)
LATEST: Final = 2**62 - 1
"""Range of event times: 146,000 years around 1970. Adding an interval to an event time, or subtracting one, cannot
overflow 64 bits."""

Trigger = Literal["input", "due", "in_flight", "command", "drain"]
"""Reason why an epoch was opened: new input; a due time; records in flight in a loop, or an aligned loop that has just
converged; a command; the end of all input, which fires everything that waits for event time."""

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartitionClock(_Record):
    """One partition of a declaration: its watermark, and the epoch time since which no row of it was observed.

    ``idle``: the partition did not hold back the watermark in the epoch with this clock. ``fresh``: the epoch observed
    rows of it.
    """

    watermark: int = BEGINNING
    active_at: int
    idle: bool = False
    fresh: bool = False


class Watermarks(_Record):
    """Watermarks of a declaration or an operator in an epoch. ``idle``: all of its inputs are idle, and it does not
    hold back other watermarks.

    A row is late if its time is before ``late``. Windows and timers that wait for ``fire`` or earlier are due.
    """

    late: int = BEGINNING
    fire: int = BEGINNING
    idle: bool = False


class Clock(_Record):
    """The time of an epoch. ``places``: by the name of a declaration or an operator. ``partitions``: by declaration and
    partition, including the times observed in the epoch's rows, once it is prepared.

    ``attempt_began``: epoch time at which the attempt began. Idleness is measured from there, since no rows are
    observed while no driver runs.
    """

    epoch_time: int
    attempt_began: int = BEGINNING
    places: dict[str, Watermarks] = {}
    partitions: dict[str, dict[str, PartitionClock]] = {}


class Due(_Record):
    """Earliest event time and earliest processing time that an operator waits for. ``None``: it waits for none."""

    event: int | None = None
    processing: int | None = None

    @property
    def nothing(self) -> bool:
        return self.event is None and self.processing is None

    def earliest(self, other: Due) -> Due:
        """The earlier of each of the two times."""
        return Due(event=_earliest(self.event, other.event), processing=_earliest(self.processing, other.processing))


class Command(_Record):
    """Request of a user that the epoch carries out: ``savepoint``, ``reconfigure``, ``rekey``."""

    kind: str
    detail: dict[str, Any] = {}


class EpochQueries(_Record):
    """Standing queries of an epoch: a file of the store, with the fields of ``FileReference``. ``rows``: number of
    queries. ``through``: the last command that has been carried out. ``removed``: queries of the parent that the epoch
    does not have."""

    path: StorePath
    sha256: str
    bytes: int
    rows: int
    through: int
    removed: tuple[int, ...] = ()
    within: PackPlace | None = None


class EpochConditions(_Record):
    """Conditions that every task of an epoch sees alike, in every run of the task.

    In the manifest of a prepared epoch, the clock includes the observed times.
    """

    clock: Clock
    opened_for: tuple[Trigger, ...] = ()
    commands: tuple[Command, ...] = ()
    hop: int = 0
    """Hop of the records that leave aligned loops in this epoch; 0 if none do."""
    converged: bool = False
    """An aligned loop converged in the previous epoch, and none has records in flight."""
    queries: EpochQueries | None = None
    """``None``: the lineage has never had standing queries."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        absent = {"hop": 0, "converged": False, "queries": None}
        return {name: value for name, value in fields.items() if name not in absent or value != absent[name]}

    @property
    def epoch_time(self) -> int:
        """Time at which the epoch was opened, never before its parent's: processing time in this epoch."""
        return self.clock.epoch_time

    @property
    def draining(self) -> bool:
        """The last epoch: all watermarks are at ``END``, and no timer can be set."""
        return "drain" in self.opened_for

    def watermarks(self, operator: str) -> Watermarks:
        """Watermarks of an operator; without event time no row is late, and no time is due."""
        return self.clock.places.get(operator, NO_WATERMARKS)

    def seen(self, clock: Clock) -> EpochConditions:
        """These conditions with the clock of the prepared epoch, which includes the observed times."""
        return self.model_copy(update={"clock": clock})

    def opened(self, *triggers: Trigger, commands: Sequence[Command] = ()) -> EpochConditions:
        """These conditions with the triggers and commands of the epoch."""
        return self.model_copy(update={"opened_for": triggers, "commands": tuple(commands)})


NO_WATERMARKS: Final = Watermarks()


def microseconds(time: datetime) -> int:
    """``time``, which has a time zone, as microseconds from the Unix epoch."""
    return (time - _UNIX_EPOCH) // _MICROSECOND


def as_datetime(time: int) -> datetime | None:
    """The inverse of :func:`microseconds`, in UTC; ``None`` outside Python's range of dates."""
    try:
        return _UNIX_EPOCH + timedelta(microseconds=time)
    except OverflowError:
        return None


def _earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


def drained(epoch: int, parent: int | None) -> str:
    """Message for a drained snapshot. ``parent``: the previous epoch, which can be continued."""
    return (
        f"Epoch {epoch} is drained: all input has ended and all windows and timers have fired, so that any further row "
        f"would be late. Roll back to epoch {parent}, or fork it. To continue an application after its input has "
        f"ended, "
        "run it with --no-drain."
    )
