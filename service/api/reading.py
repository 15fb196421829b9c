"""The parameters that say which state is read: of which epoch or snapshot, and of which key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query

from epochal.errors import InvalidKey, NotYetCommitted
from epochal.service.api.answers import FILES, SNAPSHOT, Errors
from epochal.service.domain.snapshots import ReadFrom
from epochal.service.queries.state.lookups import KeyNotFound
from epochal.wire.bodies import EpochNumber, Name, UtcTime
from epochal.wire.snapshots import LONGEST_NAME
from epochal.wire.state import DEFAULT_WAIT_SECONDS, Isolation, WaitSeconds


def _read_from(
    isolation: Annotated[
        Isolation, Query(description="read_uncommitted: also epochs that are prepared and not yet committed.")
    ] = "read_committed",
    epoch: Annotated[EpochNumber | None, Query(description="Time travel: this committed epoch.")] = None,
    savepoint: Annotated[Name | None, Query(description="Time travel: this savepoint.")] = None,
    tag: Annotated[Name | None, Query(description="Time travel: the snapshot with this tag.")] = None,
    at: Annotated[
        UtcTime | None,
        Query(
            description="Time travel: the state as it was at this time, with its zone: that of the newest epoch of the "
            "application's lineage that was committed by then.",
            examples=["2013-01-31T05:15:00Z"],
        ),
    ] = None,
    min_epoch: Annotated[EpochNumber | None, Query(description="Not before this epoch; waits for it.")] = None,
    wait_seconds: Annotated[WaitSeconds, Query()] = DEFAULT_WAIT_SECONDS,
) -> ReadFrom:
    return ReadFrom(isolation, epoch, savepoint, tag, at, min_epoch, wait_seconds)


LOOKUP: Errors = (KeyNotFound, InvalidKey, NotYetCommitted, *SNAPSHOT, *FILES)
"""What a look-up can answer, besides the state."""

Reading = Annotated[ReadFrom, Depends(_read_from)]
Key = Annotated[
    str,
    Query(
        max_length=20_000,
        description="As in the path of a look-up: the key columns' values in order, separated by commas, each "
        "percent-encoded (once more than the query itself); null is `%00`. Of list and map state, and of windows, "
        "the operator's key alone means all entries.",
        examples=["JFK,LAX"],
    ),
]
Named = Annotated[
    str, Path(max_length=LONGEST_NAME, description="An epoch, a savepoint, a tag, or `head`.", examples=["12"])
]
