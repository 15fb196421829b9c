"""Source that reads a table of versions (Delta, Iceberg): first all rows of one version, then those that later versions
add.

A position is a version and the number of its files that were read. Slices name their files, so that reading a slice
again does not depend on the versions. Only versions that add rows can be followed: rows that a version removes or
replaces are in the results already, so such a version stops the source by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from epochal.connectors.fetched_frames import shared_out
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Start = Literal["earliest", "latest"]
FEW_FILES: Final = 1_000
"""Maximum number of files in a slice if ``max_files`` is not set."""


def check_start(what: str, start: Start | int) -> None:
    """Check the option ``start`` of connector ``what``. Raises ``OptionError``."""
    is_version = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not is_version and start not in ("earliest", "latest"):
        raise OptionError(f"{what}: start is {start!r}; it must be 'earliest', 'latest' or the number of a version.")


@dataclass(frozen=True)
class VersionFile:
    """A data file of a version. ``detail``: JSON with which tasks read it. ``rows``: ``None`` if unknown."""

    path: str
    rows: int | None
    detail: dict[str, Any]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self.detail["size"])

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "rows": self.rows, **self.detail}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> VersionFile:
        detail = {name: value for name, value in found.items() if name not in ("path", "rows")}
        return cls(str(found["path"]), found["rows"], detail)


@dataclass(frozen=True)
class Version:
    """A version, and the files that a reader of its rows reads, in an order that never changes."""

    number: int
    files: tuple[VersionFile, ...]


class TableVersions(ABC):
    """The versions of a table, in the driver. Methods raise ``SourceError``, and ``SourceUnavailable`` if the table
    cannot be reached."""

    kind: str

    @abstractmethod
    def latest(self) -> int | None:
        """The latest version; ``None`` for a table without any."""

    @abstractmethod
    def whole(self, version: int) -> Version:
        """All files of a version. Raises ``SourceError`` for one that does not exist any more."""

    @abstractmethod
    def added_by(self, version: int) -> Version:
        """The files that a version adds. Raises like :meth:`after`."""

    @abstractmethod
    def after(self, version: int) -> Iterator[Version]:
        """The versions after ``version``, in order, with the files that each adds. Raises ``SourceError`` for a version
        that removes rows, or that does not exist any more."""

    @abstractmethod
    def schema(self) -> StructType:
        """Columns of the table."""

    @abstractmethod
    def frame(self, spark: SparkSession, schema: StructType, files: Sequence[VersionFile]) -> DataFrame:
        """The rows of the files."""


@dataclass(frozen=True)
class _Position:
    """``files``: number of files of ``version`` that were read. ``whole``: of all its files, not of those it adds."""

    version: int
    files: int
    whole: bool

    def as_json(self) -> dict[str, Any]:
        return {"version": self.version, "files": self.files, **({"whole": True} if self.whole else {})}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> _Position | None:
        if not found:
            return None
        return cls(int(found["version"]), int(found["files"]), bool(found.get("whole", False)))


class TableSource(Source):
    """``start``: where a new application begins: with all rows of the latest version, with later versions only, or
    with all rows of a version. ``max_files``: maximum number of files per epoch."""

    def __init__(
        self,
        versions: TableVersions,
        start: Start | int = "earliest",
        max_files: int | None = None,
        bounded: bool = False,
    ) -> None:
        self._versions = versions
        self._start = start
        self._max_files = max_files
        self._bounded = bounded
        self._position: _Position | None = None
        self._pending: list[tuple[_Position, VersionFile]] = []
        """Files after the position that were listed, each with the position after it."""
        self._listed: _Position | None = None
        """Position after the pending files."""
        self._resumed = False
        """True if files of the position's version may be left that this process has not listed."""
        self._limit: int | None = None
        self._is_limited = False
        self._schema: StructType | None = None

    @property
    def kind(self) -> str:
        return self._versions.kind

    @property
    def bounded(self) -> bool:
        return self._bounded

    @property
    def ended(self) -> bool:
        if not self._is_limited:
            return False
        if self._limit is None:
            return True
        listed = self._listed or self._position
        return not self._pending and listed is not None and listed.version >= self._limit

    def schema(self, spark: SparkSession) -> StructType:
        if self._schema is None:
            self._schema = self._versions.schema()
        return self._schema

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = _Position.from_json(slices[-1].end if slices else checkpoint or {})
        self._pending, self._listed, self._resumed = [], self._position, self._position is not None

    def checkpoint(self) -> dict[str, Any]:
        return {} if self._position is None else self._position.as_json()

    def limit_to_available(self) -> None:
        self._limit, self._is_limited = self._versions.latest(), True
        if self._limit is not None:
            self._list()

    def plan(self, limits: SliceLimits) -> Slice | None:
        self._list()
        chosen: list[VersionFile] = []
        end, rows = self._position, 0
        for position, file in self._pending[: self._max_files or FEW_FILES]:
            known = file.rows or 0
            if chosen and limits.max_records is not None and rows + known > limits.max_records:
                break
            chosen.append(file)
            end, rows = position, rows + known
        if not chosen or end is None:
            return None
        return Slice(
            start={} if self._position is None else self._position.as_json(),
            end=end.as_json(),
            detail={"files": [file.as_json() for file in chosen]},
            rows=rows if all(file.rows is not None for file in chosen) else None,
        )

    def accept(self, slice: Slice) -> None:
        self._position = _Position.from_json(slice.end)
        self._pending = self._pending[len(slice.detail["files"]) :]

    def backlog(self) -> Backlog:
        return Backlog(files=len(self._pending))

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        files = [VersionFile.from_json(found) for found in slice.detail["files"]]
        return self._versions.frame(spark, self.schema(spark), files)

    def acknowledge(self, slice: Slice) -> None:
        """Nothing: tables do not know their readers."""

    def _list(self) -> None:
        """Add the files of new versions to the pending ones."""
        if self._listed is None:
            self._begin()
        if self._listed is None or len(self._pending) >= FEW_FILES:
            return
        if self._resumed:
            self._add_rest(self._listed)
            self._resumed = False
        for version in self._versions.after(self._listed.version):
            if self._limit is not None and version.number > self._limit:
                return
            self._add(version, whole=False)
            if len(self._pending) >= FEW_FILES:
                return

    def _begin(self) -> None:
        latest = self._versions.latest()
        if self._start == "latest":
            self._listed = _Position(latest or 0, 0, whole=False)
            return
        first = latest if self._start == "earliest" else self._start
        if first is not None:
            self._add(self._versions.whole(int(first)), whole=True)

    def _add_rest(self, at: _Position) -> None:
        """Add the files of the position's version that were not read."""
        if at.whole:
            self._add(self._versions.whole(at.version), whole=True, first=at.files)
        elif at.files:
            self._add(self._versions.added_by(at.version), whole=False, first=at.files)

    def _add(self, version: Version, whole: bool, first: int = 0) -> None:
        for place in range(first, len(version.files)):
            position = _Position(version.number, place + 1, whole)
            self._pending.append((position, version.files[place]))
        self._listed = _Position(version.number, len(version.files), whole)


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def frame_of(
    spark: SparkSession,
    schema: StructType,
    files: Sequence[VersionFile],
    task: Callable[[Sequence[Sequence[VersionFile]], pa.Schema], Task],
) -> DataFrame:
    """The rows of the files. ``task``: makes the tasks' function from the files of each task and the columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not files:
        return spark.createDataFrame([], schema)
    number = min(len(files), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    run = task(shared_out(files, number), to_arrow_schema(schema, timezone="UTC"))
    return spark.range(0, number, 1, number).mapInArrow(run, schema)
