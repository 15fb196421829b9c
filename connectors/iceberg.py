"""Iceberg tables: ``iceberg.source`` follows the rows that snapshots add, ``iceberg.sink`` appends each epoch in one
snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from epochal.backends.iceberg.address import IcebergAddress
from epochal.connectors.sink_modes import (
    EXACTLY_ONCE,
    Mode,
    buffering_of,
    check_delivery,
    check_installed,
    described,
    different_names,
    taken_by_folder,
)
from epochal.connectors.table_source import Start, check_start
from epochal.contracts.backend import Buffering, SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.source import Source
from epochal.pipeline.definitions import SinkDefinition, SourceDefinition, check_flag, check_positive

_EACH_EPOCH = (
    "adds a snapshot to the table for each epoch. If epochs are shorter than a minute, set commit_every='60 s', or "
    "expire snapshots often."
)

_OFTEN = (
    "adds a snapshot to the table more often than once a minute. Set commit_every='60 s', or expire snapshots often."
)
_MINUTE = 60.0


def source(
    table: str,
    *,
    catalog: Mapping[str, Any],
    catalog_name: str = "default",
    start: Start | int = "earliest",
    max_files: int | None = None,
    bounded: bool = False,
) -> SourceDefinition:
    """Read an Iceberg table, then the rows that later snapshots add. Requires ``pip install 'epochal[iceberg]'``.

    Rewritten files are skipped. A snapshot that removes or replaces rows stops the source, which names it. Tables of
    format version 2.

    - ``table``, ``catalog``, ``catalog_name``: as in :func:`sink`.
    - ``start``: where a new application begins: ``"earliest"`` with all rows of the present snapshot, ``"latest"`` with
      the rows of later snapshots, a number with all rows of the snapshot with that sequence number.
    - ``max_files``: maximum number of files per epoch.
    - ``bounded``: read only the snapshots that exist when the run starts, then end.

    Raises ``OptionError``.
    """
    what = "iceberg.source"
    address = IcebergAddress.checked(what, table, catalog_name, catalog)
    check_start(what, start)
    check_positive(what, "max_files", max_files, whole=True)
    check_flag(what, "bounded", bounded)
    check_installed(what, "pyiceberg", "iceberg")
    return SourceDefinition(
        kind="iceberg",
        make=partial(_source, address, start, max_files, bounded),
        description={
            "table": table,
            "catalog": address.catalog.described,
            "catalog_name": catalog_name,
            "start": start,
            **({"max_files": max_files} if max_files else {}),
            **({"bounded": True} if bounded else {}),
        },
    )


def sink(
    table: str,
    *,
    catalog: Mapping[str, Any],
    catalog_name: str = "default",
    partition_by: str | Sequence[str] = (),
    commit_every: str | None = None,
    add_columns: bool = False,
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
    - ``partition_by``: partitions of a missing table: columns, ``day(time)``, ``bucket(16, id)``,
      ``truncate(4, name)``.
    - ``commit_every``: interval such as ``"60 s"`` in which epochs are collected and committed together, in few files.
      An epoch is committed, and visible to look-ups, when it is in the table.
    - ``add_columns``: add columns that an existing table lacks, when the application starts. They are optional.
    - ``mode``: ``append`` accepts append-only streams; ``updates`` also accepts streams whose rows replace earlier rows
      (such as the result of ``aggregate``), and appends the rows that changed.
    - ``delivery``: only ``exactly_once``.

    Raises ``OptionError``.
    """
    what = "iceberg.sink"
    address = IcebergAddress.checked(what, table, catalog_name, catalog)
    check_delivery(what, delivery, EXACTLY_ONCE, "an epoch's rows appear together in one snapshot, or not at all")
    partitions = different_names(what, "partition_by", partition_by)
    check_installed(what, "pyiceberg", "iceberg")
    from epochal.backends.iceberg.schema import partition_of

    for each in partitions:
        partition_of(what, each)
    check_flag(what, "add_columns", add_columns)
    buffering = buffering_of(what, commit_every)
    return SinkDefinition(
        kind="iceberg",
        make=partial(_backend, address, partitions, buffering, add_columns),
        description={
            "table": table,
            "catalog": address.catalog.described,
            "catalog_name": catalog_name,
            **({"partition_by": list(partitions)} if partitions else {}),
            **({"commit_every": commit_every} if commit_every else {}),
            **({"add_columns": True} if add_columns else {}),
            **described(mode),
        },
        takes=taken_by_folder(what, mode),
        note=_note(buffering),
    )


def _note(buffering: Buffering | None) -> str | None:
    if buffering is None:
        return _EACH_EPOCH
    return _OFTEN if buffering.seconds < _MINUTE else None


def _source(address: IcebergAddress, start: Start | int, max_files: int | None, bounded: bool) -> Source:
    from epochal.connectors.iceberg_snapshots import IcebergSnapshots
    from epochal.connectors.table_source import TableSource

    return TableSource(IcebergSnapshots(address), start, max_files, bounded)


def _backend(
    address: IcebergAddress,
    partition_by: Sequence[str],
    buffering: Buffering | None,
    add_columns: bool,
    place: SinkPlace,
) -> SinkBackend:
    from epochal.backends.iceberg.sink import IcebergSink

    return IcebergSink(place, address, partition_by, buffering, add_columns)
