"""HDFS as source, table and sink: JSON lines, CSV and Parquet, over WebHDFS with the ``hdfs`` package.

``url`` is the NameNode's HTTP address (``http://namenode:9870``), or all of them with ``;`` between: the one that is
active is found. Neither driver nor executors need Hadoop or its settings. Who asks: ``user`` on a cluster without
security; ``kerberos=True`` with the ticket of each process; ``token=secret("env:NAME")``, a delegation token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.deliveries import EXACTLY_ONCE, check_delivery
from epochal.connectors.file_reading import FORMATS, Format, Reader, checked_reader
from epochal.connectors.file_records import Malformed
from epochal.connectors.file_slices import Missing, Taking
from epochal.connectors.sink_modes import Mode, described, taken_by_folder
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
"""Spark's options that need it to see whole files."""


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
    """The records of a folder's files, of a file, or of what a pattern (``/days/*/*.json``) finds; later ones too.

    As ``files.source``: oldest file first, a file must appear whole (a rename; ``hdfs dfs -put`` does so) and stay as
    it is; ``bounded``: those that are there when the run begins are all; ``punctuation``: a file whose name fits this
    pattern ends an epoch; subfolders, ``recursive`` and ``missing`` as there. ``timeout_seconds`` is how long HDFS may
    take to answer. Raises ``OptionError``.
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
    """All records of the files that exist when an attempt starts, to join with. Arguments as :func:`source`;
    ``refresh`` as in ``files.table``."""
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
    """A folder in which an epoch's rows appear at once, as ``epoch=N/``. No row is missing or doubled, whatever fails.

    The folder is this application's own, and is made when it is missing. ``mode`` as in ``files.sink``: ``updates`` for
    rows that replace earlier ones. ``delivery`` is ``exactly_once``. Raises ``OptionError``.
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
