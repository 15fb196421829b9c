"""Number of malformed records that a source has dropped, logged by the driver after the epoch's commit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epochal.background.task import BackgroundTask
from epochal.connectors.file_slices import records_of
from epochal.contracts.source import Slice
from epochal.engine.observations import observed

if TYPE_CHECKING:
    from pyspark.sql import Observation

_log = logging.getLogger(__name__)


class DroppedRecords:
    """Counts of dropped records per slice, for the source at ``location``."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._observed: dict[int, Observation] = {}

    def of(self, slice: Slice) -> Observation:
        """The observation in which Spark counts dropped records, as ``rows``, when it reads the slice."""
        from pyspark.sql import Observation

        observation = self._observed[slice.start["files"]] = Observation()
        return observation

    def log(self, slice: Slice) -> None:
        """Log the count in the background, if it is not 0. The observation of an unread slice never completes."""
        observation = None if slice.has_no_rows else self._observed.pop(slice.start["files"], None)
        if observation is not None:
            BackgroundTask("dropped-records", lambda: _log_dropped(self._location, slice, observation))


def _log_dropped(location: str, slice: Slice, observation: Observation) -> None:
    rows = observed(observation).get("rows", 0)
    if rows:
        first = records_of(slice)[0].path
        _log.warning("Dropped %d malformed records of %s, in the slice that begins with %s.", rows, location, first)
