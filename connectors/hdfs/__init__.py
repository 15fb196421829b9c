"""HDFS source, table and sink: JSON lines, CSV and Parquet, over WebHDFS with the ``hdfs`` package.

``url`` is the NameNode's HTTP address (``http://namenode:9870``), or the addresses of all NameNodes separated by ``;``;
the connector finds the active one. Neither the driver nor the executors need Hadoop or its configuration.
Authentication: ``user`` on a cluster without security; ``kerberos=True`` with the ticket of each process;
``token=secret("env:NAME")`` with a delegation token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.file_reading import FORMATS, Format, Reader, checked_reader
from epochal.connectors.file_records import Malformed
from epochal.connectors.file_slices import Missing, Taking
from epochal.connectors.sink_modes import EXACTLY_ONCE, Mode, check_delivery, described, taken_by_folder
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.source import Source
from epochal.pipeline.definitions import (
    SinkDefinition,
    SourceDefinition,
    TableDefinition,
    check_choice,
    check_options,
    check_positive,
    refresh_interval,
)
from epochal.secrets import Secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.backends.hdfs.address import HdfsAddress

_WHO = ("user", "token", "kerberos", "timeout_seconds")
_NOT_HERE = ("multiLine", "mergeSchema")
"""Spark options that these connectors do not support, as they require that Spark reads whole files."""


def source(
    url: str | Sequence[str],
    path: str,
    format: Format = "parquet",
    schema: str | None = None,
    *,
    max_files: int | None = None,
    bounded: bool = False,
    punctuation: str | None = None,
    recursive: bool = False,
    missing: Missing = "fail",
    malformed: Malformed = "fail",
    user: str | None = None,
    token: Secret | None = None,
    kerberos: bool = False,
    timeout_seconds: float = 60.0,
    **options: Any,
) -> SourceDefinition:
    """Read a file, the files of a folder or the matches of a pattern (``/days/*/*.json``), including later files.

    Behaves as ``files.source``: reads the oldest file first. Files must appear atomically (by a rename, as with
    ``hdfs dfs -put``) and must not change. The options ``schema``, ``max_files``, ``bounded``, ``punctuation``,
    ``recursive``, ``missing`` and ``malformed`` have the same meaning. ``timeout_seconds``: timeout for a response of
    HDFS. Raises ``OptionError``.
    """
    where = _address("hdfs.source", url, user, token, kerberos, timeout_seconds)
    reader = _reader("hdfs.source", format, schema, malformed, recursive, options)
    taking = Taking.checked("hdfs.source", max_files, bounded, punctuation, missing)
    return SourceDefinition(
        kind="hdfs",
        make=partial(_source, where, _path("hdfs.source", path), reader, taking),
        description=_described(where, path, format) | reader.described | taking.described,
    )


def table(
    url: str | Sequence[str],
    path: str,
    format: Format = "parquet",
    schema: str | None = None,
    *,
    recursive: bool = False,
    refresh: str | None = None,
    malformed: Malformed = "fail",
    user: str | None = None,
    token: Secret | None = None,
    kerberos: bool = False,
    timeout_seconds: float = 60.0,
    **options: Any,
) -> TableDefinition:
    """Read all files that exist when an attempt starts, as a static table for joins.

    Arguments as in :func:`source`; ``refresh`` as in ``files.table``.
    """
    where = _address("hdfs.table", url, user, token, kerberos, timeout_seconds)
    reader = _reader("hdfs.table", format, schema, malformed, recursive, options)
    return TableDefinition(
        kind="hdfs",
        read=partial(_table, where, _path("hdfs.table", path), reader),
        description=_described(where, path, format) | reader.described,
        refresh=refresh_interval("hdfs.table", refresh),
    )


def sink(
    url: str | Sequence[str],
    path: str,
    format: Format = "parquet",
    *,
    mode: Mode = "append",
    delivery: Delivery | None = None,
    user: str | None = None,
    token: Secret | None = None,
    kerberos: bool = False,
    timeout_seconds: float = 60.0,
    **options: Any,
) -> SinkDefinition:
    """Write each epoch's rows to a subfolder ``epoch=N/``, which appears atomically. Delivery is exactly once.

    The folder must belong to this application alone; the sink creates it if it is missing. ``mode`` as in
    ``files.sink``: ``updates`` accepts streams whose rows replace earlier rows. ``delivery``: only ``exactly_once``.
    Raises ``OptionError``.
    """
    check_options("hdfs.sink", options, ("url", "path", "format", "mode", "delivery", *_WHO))
    check_delivery("hdfs.sink", delivery, EXACTLY_ONCE, "an epoch's rows appear as one folder, or not at all")
    check_choice("hdfs.sink", "format", format, FORMATS)
    where = _address("hdfs.sink", url, user, token, kerberos, timeout_seconds)
    return SinkDefinition(
        kind="hdfs",
        make=partial(_backend, where, _path("hdfs.sink", path), format),
        description={**_described(where, path, format), **described(mode)},
        takes=taken_by_folder("hdfs.sink", mode),
    )


def _address(
    what: str,
    url: str | Sequence[str],
    user: str | None,
    token: Secret | None,
    kerberos: bool,
    timeout_seconds: float,
) -> HdfsAddress:
    from epochal.backends.hdfs.address import address

    check_positive(what, "timeout_seconds", timeout_seconds, whole=False)
    return address(what, url, user, token, kerberos, timeout_seconds)


def _path(what: str, path: str) -> str:
    from epochal.backends.hdfs.address import folder

    return folder(what, path)


def _reader(
    what: str, format: Format, schema: str | None, malformed: Malformed, recursive: bool, options: dict[str, Any]
) -> Reader:
    others = ("url", "path", "format", "schema", "malformed", "recursive", *_WHO)
    return checked_reader(what, format, schema, malformed, options, others, without=_NOT_HERE, recursive=recursive)


def _described(where: HdfsAddress, path: str, format: str) -> dict[str, Any]:
    return {"url": list(where.urls), "path": path, "format": format}


def _source(where: HdfsAddress, path: str, reader: Reader, taking: Taking) -> Source:
    from epochal.backends.hdfs.client import WebHdfs
    from epochal.connectors.hdfs.growing_folder import HdfsSource

    return HdfsSource(WebHdfs(where), path, reader, taking)


def _table(where: HdfsAddress, path: str, reader: Reader, spark: SparkSession) -> DataFrame:
    from epochal.backends.hdfs.client import WebHdfs
    from epochal.connectors.hdfs.growing_folder import read_table

    return read_table(WebHdfs(where), path, reader, spark)


def _backend(where: HdfsAddress, path: str, format: str, place: SinkPlace) -> SinkBackend:
    from epochal.backends.hdfs.client import WebHdfs
    from epochal.backends.hdfs.sink import HdfsBackend

    return HdfsBackend(place, WebHdfs(where), path, format)
