"""What an epoch runs with beside its slices, chosen at E1, and the times that its operators wait for.

Both stand in the manifest, so that a retry and a replay see the same, and the loop knows what is due without reading
state. All times are UTC, to the microsecond, as Spark's timestamps are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

END_OF_TIME = datetime.max.replace(tzinfo=UTC)
"""The watermark of an input that has ended."""

Trigger = Literal["input", "due", "in_flight", "command"]
"""Why an epoch was opened: new input; a time that was due; records in flight in a loop; a command."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Watermarks(_Record):
    """An operator's: what comes after ``late`` is not late, what waits for ``fire`` or earlier is due. ``None``: not
    yet known."""

    late: AwareDatetime | None = None
    fire: AwareDatetime | None = None


class Due(_Record):
    """The earliest event time and the earliest processing time that something waits for. ``None``: nothing does."""

    event: AwareDatetime | None = None
    processing: AwareDatetime | None = None

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


class EpochConditions(_Record):
    """What every task of an epoch sees alike, however often it is run."""

    epoch_time: AwareDatetime
    """When the epoch was opened, and never before its parent: what processing time means in it."""
    watermarks: dict[str, Watermarks] = {}
    """By operator."""
    opened_for: tuple[Trigger, ...] = ()
    commands: tuple[Command, ...] = ()

    def opened(self, *triggers: Trigger, commands: Sequence[Command] = ()) -> EpochConditions:
        """With what the epoch was opened for."""
        return self.model_copy(update={"opened_for": triggers, "commands": tuple(commands)})


def _earliest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
