"""What analysis asks of event time: that the columns are there, are timestamps, and were not computed anew since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.declarations.names import closest
from epochal.errors import PipelineError
from epochal.pipeline.graph import EventTimeNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_event_time(node: EventTimeNode, frame: DataFrame) -> None:
    """Raises ``PipelineError`` for a column that is not there or is no timestamp.

    A ``timestamp_ntz`` names no instant: which one is meant depends on a zone that nobody has said.
    """
    name = node.event_time.column
    types = {field.name.casefold(): field.dataType.simpleString() for field in frame.schema}
    type = types.get(name.casefold())
    if type is None:
        raise PipelineError(f"there is no column {name!r}.{closest(name, frame.columns)}")
    if type == "timestamp_ntz":
        raise PipelineError(
            f"column {name!r} is a timestamp without time zone, which names no instant. Say in which zone it is: "
            f"with_columns({name}=\"to_utc_timestamp(CAST({name} AS timestamp), 'Europe/Berlin')\")."
        )
    if type != "timestamp":
        raise PipelineError(
            f"column {name!r} is a {type}, not a timestamp. Convert it before: "
            f'with_columns({name}="to_timestamp({name})") for text, "timestamp_millis({name})" for milliseconds.'
        )
