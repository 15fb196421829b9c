"""Console sink, for development: ``delays.write("look", console.sink())``."""

from __future__ import annotations

from functools import partial
from typing import Any

from epochal.connectors.sink_modes import EXACTLY_ONCE, check_delivery
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.stream_kind import EVERY_KIND
from epochal.pipeline.definitions import SinkDefinition, check_options, check_positive


def sink(rows: int = 20, *, delivery: Delivery | None = None, **options: Any) -> SinkDefinition:
    """Print up to ``rows`` rows of each epoch to the driver's standard output when the epoch commits."""
    check_options("console.sink", options, ("rows", "delivery"))
    check_delivery("console.sink", delivery, EXACTLY_ONCE, "it prints an epoch when it commits")
    check_positive("console.sink", "rows", rows, whole=True)
    return SinkDefinition(kind="console", make=partial(_backend, rows), description={"rows": rows}, takes=EVERY_KIND)


def _backend(rows: int, place: SinkPlace) -> SinkBackend:
    from epochal.backends.console import ConsoleBackend

    return ConsoleBackend(rows)
