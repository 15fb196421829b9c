"""Delta tables: ``delta.source`` follows the rows that versions add, ``delta.sink`` appends epochs as versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.transaction import FILE_BYTES
from epochal.connectors.sink_modes import (
    EXACTLY_ONCE,
    Mode,
    buffering_of,
    check_delivery,
    check_installed,
    described,
    different_names,
    taken_by_folder,
    taken_by_keys,
)
from epochal.connectors.table_source import Start, check_start
from epochal.contracts.backend import Buffering, SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.source import Source
from epochal.pipeline.definitions import (
    SinkDefinition,
    SourceDefinition,
    check_flag,
    check_options,
    check_positive,
)

_OWN: Final = ("mode", "delivery", "partition_by", "keys", "commit_every", "target_file_size", "add_columns")


def source(
    path: str,
    *,
    start: Start | int = "earliest",
    max_files: int | None = None,
    bounded: bool = False,
    **options: Any,
) -> SourceDefinition:
    """Read a Delta table, then the rows that later versions add. Requires ``pip install 'epochal[delta]'``.

    Compactions are skipped. A version that removes or replaces rows stops the source, which names it.

    - ``start``: where a new application begins: ``"earliest"`` with all rows of the present version, ``"latest"`` with
      the rows of later versions, a number with all rows of that version.
    - ``max_files``: maximum number of files per epoch.
    - ``bounded``: read only the versions that exist when the run starts, then end.
    - ``options``: credentials of an object store, as in ``files.source``.

    Raises ``OptionError``.
    """
    what = "delta.source"
    address, others = DeltaAddress.checked(what, path, options)
    check_options(what, others, ("start", "max_files", "bounded"))
    check_start(what, start)
    check_positive(what, "max_files", max_files, whole=True)
    check_flag(what, "bounded", bounded)
    check_installed(what, "deltalake", "delta")
    return SourceDefinition(
        kind="delta",
        make=partial(_source, address, start, max_files, bounded),
        description={
            "path": path,
            "start": start,
            **({"max_files": max_files} if max_files else {}),
            **({"bounded": True} if bounded else {}),
            **address.described,
        },
    )


def sink(
    path: str,
    *,
    partition_by: str | Sequence[str] = (),
    keys: str | Sequence[str] = (),
    commit_every: str | None = None,
    target_file_size: int = FILE_BYTES,
    add_columns: bool = False,
    mode: Mode = "append",
    delivery: Delivery | None = None,
    **options: Any,
) -> SinkDefinition:
    """Append each epoch's rows to a Delta table, in one version. Delivery is exactly once, also beside other writers.

    The table is created if it does not exist. Rows may lack columns of the table that are not NOT NULL. Requires
    ``pip install 'epochal[delta]'``.

    - ``path``: folder of the table, local or on S3, GCS or Azure (``s3://bucket/orders``).
    - ``partition_by``: columns by which a missing table is partitioned: strings, integers, booleans or dates.
    - ``keys``: columns by which rows replace those of the table (copy on write, by the driver). Accepts upsert streams
      with these keys, such as the result of ``aggregate``. Combine it with ``commit_every``.
    - ``commit_every``: interval such as ``"60 s"`` in which epochs are collected and committed together, in few files.
      An epoch is committed, and visible to look-ups, when it is in the table.
    - ``target_file_size``: size in bytes at which another file begins.
    - ``add_columns``: add columns that an existing table lacks, when the application starts. They may be null.
    - ``mode``: ``append`` accepts append-only streams; ``updates`` also accepts streams whose rows replace earlier rows
      (such as the result of ``aggregate``), and appends the rows that changed.
    - ``delivery``: only ``exactly_once``.
    - ``options``: credentials of an object store, as in ``files.source``.

    Raises ``OptionError``.
    """
    what = "delta.sink"
    address, others = DeltaAddress.checked(what, path, options)
    check_options(what, others, _OWN)
    check_delivery(what, delivery, EXACTLY_ONCE, "an epoch's rows appear together in one version, or not at all")
    columns = different_names(what, "partition_by", partition_by)
    key_columns = different_names(what, "keys", keys)
    check_installed(what, "deltalake", "delta")
    check_positive(what, "target_file_size", target_file_size, whole=True)
    check_flag(what, "add_columns", add_columns)
    buffering = buffering_of(what, commit_every)
    return SinkDefinition(
        kind="delta",
        make=partial(_backend, address, columns, buffering, target_file_size, key_columns, add_columns),
        description={
            "path": path,
            **({"partition_by": list(columns)} if columns else {}),
            **({"keys": list(key_columns)} if key_columns else {}),
            **({"commit_every": commit_every} if commit_every else {}),
            **({"add_columns": True} if add_columns else {}),
            **described(mode),
            **address.described,
        },
        takes=taken_by_keys(what, mode, "keys", key_columns) if key_columns else taken_by_folder(what, mode),
    )


def _source(address: DeltaAddress, start: Start | int, max_files: int | None, bounded: bool) -> Source:
    from epochal.connectors.delta_versions import DeltaVersions
    from epochal.connectors.table_source import TableSource

    return TableSource(DeltaVersions(address), start, max_files, bounded)


def _backend(
    address: DeltaAddress,
    partition_by: Sequence[str],
    buffering: Buffering | None,
    file_bytes: int,
    keys: Sequence[str],
    add_columns: bool,
    place: SinkPlace,
) -> SinkBackend:
    from epochal.backends.delta_lake.sink import DeltaSink

    return DeltaSink(place, address, partition_by, buffering, file_bytes, keys, add_columns)
