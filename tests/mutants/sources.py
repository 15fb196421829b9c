"""Wrong ways to list the input of a source and to detect missing files."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

FOLDERS = "tests/spark/test_file_folders.py"
HEADERS = "tests/spark/test_csv_headers.py"
MISSING = "tests/spark/test_missing_files.py"


@mutant("source files: subfolders are ignored", FOLDERS)
def _subfolders_ignored() -> None:
    from epochal.connectors import file_listing

    change(file_listing, "is_read", lambda _: lambda name, recursive: False)


@mutant("source files: folder names give no partition columns", FOLDERS)
def _no_partition_columns() -> None:
    from epochal.connectors.file_partitions import NOT_PARTITIONED, Partitioning

    change(Partitioning, "place", lambda _: lambda self, path: NOT_PARTITIONED)


@mutant("source files: a folder with data only in ignored subfolders is accepted as empty", FOLDERS)
def _elsewhere_is_empty() -> None:
    from epochal.connectors import file_listing

    change(file_listing, "check_not_elsewhere", lambda _: lambda location, found, recursive, every: found)


@mutant("source files: a deleted file is forgotten", MISSING)
def _missing_forgotten() -> None:
    from epochal.connectors.file_slices import TakenFiles

    def forgetful(_: Any) -> Any:
        def wrong(self: Any, listed: Any) -> None:
            self._listed = listed

        return wrong

    change(TakenFiles, "_note_missing", forgetful)


@mutant("source files: a skipped file is not recorded in the slice", MISSING)
def _skipped_unrecorded() -> None:
    from epochal.connectors.file_slices import TakenFiles

    def silent(slice_of: Any) -> Any:
        def wrong(self: Any, chosen: Any, rows: Any) -> Any:
            self._gone = {}
            return slice_of(self, chosen, rows)

        return wrong

    change(TakenFiles, "slice_of", silent)


@mutant("source files: missing files are reported by Spark's error only", MISSING)
def _missing_unexplained() -> None:
    from epochal.connectors.files import FilesSource

    change(FilesSource, "unreadable", lambda _: lambda self, slice: None)


@mutant("tables: a due refresh is skipped", FOLDERS)
def _never_refreshed() -> None:
    from epochal.engine.frames import StaticTables

    def once(of: Any) -> Any:
        def wrong(self: Any, spark: Any, nodes: Any, epoch_time: int) -> Any:
            return of(self, spark, nodes, 0)

        return wrong

    change(StaticTables, "of", once)


@mutant("source files: CSV columns are matched by position", HEADERS)
def _by_position() -> None:
    from epochal.connectors.csv_headers import Layout

    change(Layout, "is_as_declared", lambda _: property(lambda self: True))


@mutant("source files: columns missing in a CSV header are read as null", HEADERS)
def _header_unchecked() -> None:
    from epochal.connectors import csv_headers

    def lenient(of: Any) -> Any:
        def wrong(cls: Any, path: str, names: Any, declared: Any, keys: Any = ()) -> Any:
            known = {name.casefold() for name in names if name is not None}
            missing = [name for name in declared if name.casefold() not in known]
            return of.__func__(cls, path, (*names, *missing), declared, keys)

        return classmethod(wrong)

    csv_headers.Layout.of = lenient(csv_headers.Layout.__dict__["of"])  # type: ignore[method-assign]
