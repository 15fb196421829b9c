"""What an epoch runs with beside its slices, chosen at E1, and the times that its operators wait for.

Both stand in the manifest, so that a retry and a replay see the same, and the loop knows what is due without reading
state. All times are microseconds from the Unix epoch, UTC, as Spark's timestamps are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from epochal.contracts.identity import StorePath

BEGINNING: Final = -(2**63)
"""Before all times: nothing is known to have come."""
END: Final = 2**63 - 1
"""After all times: nothing more will come."""
EARLIEST: Final = -(2**62)
LATEST: Final = 2**62 - 1
"""Event times are between the two, which is 146 thousand years from 1970: an interval can be added to any of them, or
taken from it, without leaving 64 bits."""

Trigger = Literal["input", "due", "in_flight", "command", "drain"]
"""Why an epoch was opened: new input; a time that was due; records in flight in a loop, or a loop that goes in rounds
and has just come to rest; a command; the end of all input, after which everything that waits for event time comes
out."""

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartitionClock(_Record):
    """One partition of a declaration: its watermark, and the epoch time since which no row of it was observed.

    ``idle``: in the epoch that ran with this clock it held up nobody. ``fresh``: rows of it were observed then.
    """

    watermark: int = BEGINNING
    active_at: int
    idle: bool = False
    fresh: bool = False


class Watermarks(_Record):
    """What a declaration or an operator runs with in an epoch. ``idle``: all of its inputs are; it holds up nobody.

    A row is late where its time is before ``late``; what waits for ``fire`` or earlier is due.
    """

    late: int = BEGINNING
    fire: int = BEGINNING
    idle: bool = False


class Clock(_Record):
    """The time of an epoch. ``places``: by the name of a declaration or an operator. ``partitions``: by declaration and
    partition, with what the epoch's rows were seen to hold once it is prepared.

    ``attempt_began``: the epoch time from which its attempt counts who is idle; while no driver ran, nobody could have
    seen a row.
    """

    epoch_time: int
    attempt_began: int = BEGINNING
    places: dict[str, Watermarks] = {}
    partitions: dict[str, dict[str, PartitionClock]] = {}


class Due(_Record):
    """The earliest event time and the earliest processing time that something waits for. ``None``: nothing does."""

    event: int | None = None
    processing: int | None = None

    @property
    def nothing(self) -> bool:
        return self.event is None and self.processing is None

    def earliest(self, other: Due) -> Due:
        """The earlier of each of the two times."""
        return Due(event=_earliest(self.event, other.event), processing=_earliest(self.processing, other.processing))


class Command(_Record):
    """What somebody asked for, and the epoch carries out: ``savepoint``, ``reconfigure``, ``rekey``."""

    kind: str
    detail: dict[str, Any] = {}


class EpochQueries(_Record):
    """The standing queries that an epoch runs with: a file of the store, named as ``FileReference`` names one;
    ``rows``: the queries in it. ``through``: the last command that it has carried out. ``removed``: the queries that
    the parent had, and the epoch has not."""

    path: StorePath
    sha256: str
    bytes: int
    rows: int
    through: int
    removed: tuple[int, ...] = ()


class EpochConditions(_Record):
    """What every task of an epoch sees alike, however often it is run.

    In the manifest of a prepared epoch the clock has what was observed as well.
    """

    clock: Clock
    opened_for: tuple[Trigger, ...] = ()
    commands: tuple[Command, ...] = ()
    hop: int = 0
    """Of the records that come out of loops that go in rounds (``aligned``); 0 where none do."""
    converged: bool = False
    """Such a loop came to rest in the epoch before, and none has records in flight."""
    queries: EpochQueries | None = None
    """``None``: the lineage has never had any."""

    @model_serializer(mode="wrap")
    def _without_loops_where_there_are_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        absent = {"hop": 0, "converged": False, "queries": None}
        return {name: value for name, value in fields.items() if name not in absent or value != absent[name]}

    @property
    def epoch_time(self) -> int:
        """When the epoch was opened, and never before its parent: what processing time means in it."""
        return self.clock.epoch_time

    @property
    def draining(self) -> bool:
        """Nothing comes after it: all watermarks are at the end, and no timer can be waited for."""
        return "drain" in self.opened_for

    def watermarks(self, operator: str) -> Watermarks:
        """Those that an operator runs with; of one without event time nothing is late, and nothing is due."""
        return self.clock.places.get(operator, NO_WATERMARKS)

    def seen(self, clock: Clock) -> EpochConditions:
        """With the clock of the prepared epoch: what its rows were observed to hold."""
        return self.model_copy(update={"clock": clock})

    def opened(self, *triggers: Trigger, commands: Sequence[Command] = ()) -> EpochConditions:
        """With what the epoch was opened for."""
        return self.model_copy(update={"opened_for": triggers, "commands": tuple(commands)})


NO_WATERMARKS: Final = Watermarks()


def microseconds(time: datetime) -> int:
    """``time``, which has a time zone, as microseconds from the Unix epoch."""
    return (time - _UNIX_EPOCH) // _MICROSECOND


def as_datetime(time: int) -> datetime | None:
    """The inverse of :func:`microseconds`, in UTC; ``None`` for what is before or after all that Python can hold."""
    try:
        return _UNIX_EPOCH + timedelta(microseconds=time)
    except OverflowError:
        return None


def _earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


def drained(epoch: int, parent: int | None) -> str:
    """A sentence on what is drained, and what to do. ``parent``: the epoch before, which is kept."""
    return (
        f"Epoch {epoch} is drained: all input had ended, and everything that waited for event time has come out, so "
        f"that whatever came now would be late. Roll back to epoch {parent}, or fork it; next time, --no-drain leaves "
        "out the last epoch."
    )
