"""Sinks whose target is a table of versions: which of them the driver can compact. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.errors import InvalidInput, NotFound


def kind_of(target: str) -> str:
    """The kind of a sink by its target, such as ``delta``."""
    return target.partition(":")[0]


def check_can_be_compacted(application: str, sink: str, targets: Mapping[str, str]) -> None:
    """``targets``: the sinks of the version that runs. Raises ``NotFound``, and ``InvalidInput`` with an alternative
    for a sink whose files the driver cannot compact."""
    if sink not in targets:
        known = ", ".join(sorted(targets)) or "none"
        raise NotFound(f"Application {application!r} has no sink {sink!r}. Its sinks: {known}.")
    target = targets[sink]
    match kind_of(target):
        case "delta":
            return
        case "iceberg":
            table = target.rpartition("/")[2]
            raise InvalidInput(
                f"Sink {sink!r} writes an Iceberg table, whose files the library pyiceberg cannot rewrite. Call the "
                f"procedure of Spark: `CALL catalog.system.rewrite_data_files('{table}')`. The sink tolerates it at "
                "any time, and iceberg.source skips its snapshots (`replace`)."
            )
        case _:
            raise InvalidInput(
                f"Sink {sink!r} ({target}) does not write a Delta table: it has no files to compact. The command "
                "compacts tables of `delta.sink`."
            )
