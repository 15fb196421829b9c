"""Iceberg tables: ``iceberg.sink`` appends each epoch in one snapshot of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from epochal.backends.iceberg.address import IcebergAddress
from epochal.connectors.sink_modes import EXACTLY_ONCE, Mode, check_delivery, described, taken_by_folder
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.errors import OptionError
from epochal.pipeline.definitions import SinkDefinition


def sink(
    table: str,
    *,
    catalog: Mapping[str, Any],
    catalog_name: str = "default",
    partition_by: str | Sequence[str] = (),
    mode: Mode = "append",
    delivery: Delivery | None = None,
) -> SinkDefinition:
    """Append each epoch's rows to an Iceberg table, in one snapshot. Delivery is exactly once, also beside other
    writers.

    The table is created if it does not exist; its namespace must exist. Requires ``pip install 'epochal[iceberg]'``.

    - ``table``: full name, such as ``sales.orders``.
    - ``catalog``: properties of pyiceberg (``{"type": "rest", "uri": .., "token": secret("env:TOKEN")}``). Types are
      ``rest``, ``sql``, and, not tested, ``glue`` and ``hive``.
    - ``catalog_name``: the name under which a ``sql`` catalog keeps its tables.
    - ``partition_by``: partitions of a missing table: columns, ``day(time)``, ``bucket(16, id)``, ``truncate(4, name)``.
    - ``mode``: ``append`` accepts append-only streams; ``updates`` also accepts streams whose rows replace earlier rows
      (such as the result of ``aggregate``), and appends the rows that changed.
    - ``delivery``: only ``exactly_once``.

    Raises ``OptionError``.
    """
    what = "iceberg.sink"
    address = IcebergAddress.checked(what, table, catalog_name, catalog)
    check_delivery(what, delivery, EXACTLY_ONCE, "an epoch's rows appear together in one snapshot, or not at all")
    partitions = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if len(set(partitions)) < len(partitions) or not all(isinstance(each, str) and each for each in partitions):
        raise OptionError(f"{what}: partition_by must name different partitions.")
    if find_spec("pyiceberg") is None:
        raise OptionError(f"{what} needs the package pyiceberg. Install it with: pip install 'epochal[iceberg]'.")
    from epochal.backends.iceberg.schema import partition_of

    for each in partitions:
        partition_of(what, each)
    return SinkDefinition(
        kind="iceberg",
        make=partial(_backend, address, partitions),
        description={
            "table": table,
            "catalog": address.catalog.described,
            "catalog_name": catalog_name,
            **({"partition_by": list(partitions)} if partitions else {}),
            **described(mode),
        },
        takes=taken_by_folder(what, mode),
    )


def _backend(address: IcebergAddress, partition_by: Sequence[str], place: SinkPlace) -> SinkBackend:
    from epochal.backends.iceberg.sink import IcebergSink

    return IcebergSink(place, address, partition_by)
