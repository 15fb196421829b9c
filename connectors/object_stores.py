"""Definitions of the files source, table and sink for locations on object stores.

:mod:`epochal.connectors.files` chooses them by the location. Spark is not involved in reading: it would need its own
libraries and credentials for each store.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from epochal.backends.object_files.address import ObjectLocation, check_local, without_store_options
from epochal.connectors.file_reading import Reader
from epochal.connectors.file_slices import Taking
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.source import Source
from epochal.errors import OptionError
from epochal.pipeline.definitions import SourceDefinition
from epochal.store_variables import is_object_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_SUPPORTED: Final = {
    "multiLine": "Tasks split files into lines: write each record in one line, or copy the files to a file system.",
    "mergeSchema": "Declare a schema with the columns of all files: columns that a file does not have are null.",
}
_LISTING: Final = (
    "lists all objects of its folder before each epoch, with one request per 1,000 objects (1,000,000 objects: 1,000 "
    "requests). Delete or move files that were read, or set names_rise=True if file names rise in the order in which "
    "files appear."
)


def place_of(what: str, path: str, options: dict[str, Any]) -> tuple[ObjectLocation | None, dict[str, Any]]:
    """The location on an object store, ``None`` elsewhere; and the options that are not of the store."""
    store_options, others = without_store_options(options)
    if is_object_store(path):
        return ObjectLocation.checked(what, path, store_options), others
    check_local(what, path, store_options)
    return None, others


def object_source(
    place: ObjectLocation, path: str, reader: Reader, taking: Taking, names_rise: bool
) -> SourceDefinition:
    rising = {"names_rise": True} if names_rise else {}
    return SourceDefinition(
        kind="files",
        make=partial(_new_source, place, reader, taking, names_rise),
        description={
            "path": path,
            "format": reader.format,
            **reader.described,
            **taking.described,
            **rising,
            **place.address.described,
        },
        note=None if names_rise else _LISTING,
    )


def _new_source(place: ObjectLocation, reader: Reader, taking: Taking, names_rise: bool) -> Source:
    from epochal.connectors.fetched_source import FetchedSource
    from epochal.connectors.object_files import ObjectFiles

    return FetchedSource(ObjectFiles(place, "Source", names_rise), reader, taking)


def read_objects(place: ObjectLocation, reader: Reader, spark: SparkSession) -> DataFrame:
    from epochal.connectors.fetched_source import read_table
    from epochal.connectors.object_files import ObjectFiles

    return read_table(ObjectFiles(place, "Table"), reader, spark)


def object_backend(place: ObjectLocation, format: str, sink: SinkPlace) -> SinkBackend:
    from epochal.backends.object_files.sink import ObjectFilesBackend

    return ObjectFilesBackend(sink, place, format)


def check_spark_options(what: str, options: Mapping[str, Any]) -> None:
    """Raises ``OptionError`` for an option of Spark that requires that Spark reads the files."""
    for name in _NOT_SUPPORTED.keys() & options.keys():
        raise OptionError(f"{what} has no option {name!r} on object stores. {_NOT_SUPPORTED[name]}")
