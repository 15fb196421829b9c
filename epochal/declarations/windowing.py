"""What an author says of the results of windows: how late rows may come, when results go out, and which columns say of
which window they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from epochal.declarations.intervals import fixed_interval, written_interval
from epochal.declarations.windows import GridWindows, SessionWindows, Windows
from epochal.errors import PipelineError

Emit = Literal["final", "updates"]
_EMIT: Final[tuple[Emit, ...]] = ("final", "updates")

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME: Final = "window_time"
"""The event time of results: the last microsecond of the window."""
WINDOW_COLUMNS: Final = (WINDOW_START, WINDOW_END, WINDOW_TIME)


@dataclass(frozen=True)
class Windowing:
    """``window(..)``. ``allowed_lateness``: microseconds after its end until which rows still count for a window."""

    windows: Windows
    allowed_lateness: int
    emit: Emit

    @property
    def hold(self) -> int:
        """So far behind the watermark may the time of a result be, in microseconds.

        A session closes when the watermark is past its end, a microsecond later than other windows: a row at the end
        itself would make it longer.
        """
        return self.allowed_lateness + isinstance(self.windows, SessionWindows)

    def state_details(self) -> dict[str, Any]:
        """What open windows lie by in state: with another of it they would close too early, too late or twice."""
        return {name: value for name, value in self.details().items() if name != "emit"}

    def details(self) -> dict[str, Any]:
        """For people."""
        said: dict[str, Any] = {"window": self.windows.details()}
        if self.allowed_lateness:
            said["allowed_lateness"] = written_interval(self.allowed_lateness)
        return {**said, "emit": self.emit}


def windowing(windows: object, allowed_lateness: object, emit: object) -> Windowing:
    """What an author says, checked. Raises ``PipelineError`` that names the argument, with the fix."""
    if not isinstance(windows, GridWindows | SessionWindows):
        raise PipelineError(
            f"window() takes tumbling(..), sliding(..), cumulative(..) or session(..), not {windows!r}: "
            "window(tumbling('1 hour'))."
        )
    lateness = fixed_interval("window(): allowed_lateness", allowed_lateness, least=0)
    for known in _EMIT:
        if emit == known:
            if known == "updates" and isinstance(windows, SessionWindows):
                raise PipelineError(
                    "window(session(..), emit='updates'): two sessions become one when a row comes between them, and "
                    "what was said of them before could not be taken back. Leave emit out: each session goes out "
                    "when it has closed."
                )
            return Windowing(windows, lateness, known)
    raise PipelineError(f"window(): emit is {emit!r}: it is 'final' or 'updates'.")
