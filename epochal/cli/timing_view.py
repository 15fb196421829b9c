"""``show --timing``: the parts of the time of an application's latest epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from epochal.cli.formatting import Column, Listing
from epochal.client.models import Epoch
from epochal.contracts.measurements import EpochPart
from epochal.drawing import texts
from epochal.drawing.bars import bar

TIMED_EPOCHS = 20
"""Maximum number of epochs."""
HELP = "docs/operations/observability.md#parts-of-an-epochs-time"
_PARTS: tuple[EpochPart, ...] = get_args(EpochPart)
_BAR = 20
_SAID: dict[EpochPart, str] = {
    "planning": "Planning",
    "spark": "Spark",
    "python": "Python",
    "store": "The snapshot store",
    "sink": "Sinks",
    "protocol": "The protocol",
}


@dataclass(frozen=True)
class PartTime:
    """One part over several epochs. ``share``: of the time of all epochs. ``slowest_epoch``: the epoch in which the
    part took longest."""

    median_seconds: float
    share: float
    slowest_seconds: float
    slowest_epoch: int


@dataclass(frozen=True)
class Timing:
    """The document of ``show --timing --json``. ``epochs``: number of measured epochs, from ``first_epoch`` to
    ``last_epoch``. ``dominant``: the part with the largest share."""

    application: str
    epochs: int
    first_epoch: int | None = None
    last_epoch: int | None = None
    epoch: PartTime | None = None
    parts: Mapping[EpochPart, PartTime] | None = None
    dominant: EpochPart | None = None


def timing_of(application: str, epochs: Sequence[Epoch]) -> Timing:
    """Summary of committed epochs. Epochs whose parts are not known are left out: the driver has not reported them, or
    has version 0.1.0."""
    found = {
        epoch.epoch: epoch.durations.parts
        for epoch in epochs
        if epoch.state == "committed" and epoch.durations is not None and epoch.durations.parts
    }
    if not found:
        return Timing(application, 0)
    wholes = {number: sum(parts.values()) for number, parts in found.items()}
    together = sum(wholes.values())
    parts = {
        part: _part({number: seconds.get(part, 0.0) for number, seconds in found.items()}, together) for part in _PARTS
    }
    dominant = max(_PARTS, key=lambda part: parts[part].share)
    return Timing(application, len(found), min(found), max(found), _part(wholes, together), parts, dominant)


def _part(seconds: Mapping[int, float], together: float) -> PartTime:
    slowest = max(seconds, key=lambda number: seconds[number])
    share = sum(seconds.values()) / together if together else 0.0
    return PartTime(round(median(seconds.values()), 6), round(share, 4), seconds[slowest], slowest)


class TimingPage:
    """The table, with bars in ASCII if the console's encoding requires it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        timing = self._timing
        if timing.epoch is None or timing.parts is None or timing.dominant is None:
            yield Text(f"No epoch of {timing.application} has been measured. Times appear five seconds after a commit.")
            return
        one = timing.first_epoch == timing.last_epoch
        which = f"epoch {timing.last_epoch}" if one else f"epochs {timing.first_epoch} to {timing.last_epoch}"
        yield Text(f"{which}, from the search for input to the commit", style="dim")
        table = Listing(
            Column("part"),
            Column("median", numeric=True),
            Column("share", numeric=True),
            Column("", optional=True),
            Column("slowest", numeric=True),
            Column("in epoch", numeric=True),
        )
        for part, time in timing.parts.items():
            drawn = Text(bar(time.share, _BAR, ascii_only=options.ascii_only), style="cyan")
            table.add(Text(part, style="bold" if part == timing.dominant else ""), *_cells(time, drawn))
        table.add(Text("epoch", style="dim"), *_cells(timing.epoch, Text()))
        yield table
        yield Text()
        share = texts.share(timing.parts[timing.dominant].share)
        took = "take" if timing.dominant == "sink" else "takes"
        yield Text(f"{_SAID[timing.dominant]} {took} most of the time: {share}. What to do: {HELP}")


def _cells(time: PartTime, drawn: Text) -> tuple[str | Text, ...]:
    return (
        f"{time.median_seconds:.3f} s",
        texts.share(time.share),
        drawn,
        f"{time.slowest_seconds:.3f} s",
        str(time.slowest_epoch),
    )
