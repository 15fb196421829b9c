"""The source contract: deterministic slices (thesis 3.4.1: logged streams with a deterministic event sequence)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from epochal.errors import EpochalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


PARTITION = "_partition_of_source"
"""Extra column with the partition of a row."""


class Slice(BaseModel):
    """Input of one epoch from one source: ``[start, end)``. JSON in the manifest, readable by people.

    ``start`` and ``end`` are positions that only the source interprets. ``detail``: what the source needs to read
    exactly the same slice again (files with sizes, offset ranges), and the files that it skips. ``rows``: the number of
    rows, if known before reading.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: dict[str, Any]
    end: dict[str, Any]
    detail: dict[str, Any] = {}
    rows: int | None = None

    @property
    def has_no_rows(self) -> bool:
        """True if the slice only records missing input that is skipped."""
        return self.start == self.end and bool(self.detail.get("missing"))


@dataclass(frozen=True)
class SliceLimits:
    """Limits of a slice. ``max_records``: maximum number of rows, where the source can count them; ``None``: no
    limit."""

    max_records: int | None


@dataclass(frozen=True)
class Backlog:
    """Input beyond the accepted slices, as of the last ``plan`` that the external system answered: records or files;
    ``None`` if the source cannot tell."""

    records: int | None = None
    files: int | None = None
    skipped: int = 0
    """Number of missing files that accepted slices record."""

    @property
    def amount(self) -> int | None:
        return self.files if self.records is None else self.records


class Source(ABC):
    """One source of one application. All calls are made in the driver; ``read`` returns a DataFrame, and Spark reads.

    A new attempt creates a new instance and calls ``restore``, then ``limit_to_bounds`` (or ``limit_to_available`` if
    it processes only the available input), then ``plan``. The engine plans at most one slice ahead: after an aborted
    epoch it calls ``plan`` again with the same ``start``, and the source may return more.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """The source's registered name: ``files``, ``generator``, .."""

    @abstractmethod
    def schema(self, spark: SparkSession) -> StructType:
        """Columns of ``read``, known without input. Raises ``SourceError`` or ``SchemaError`` with the fix."""

    @abstractmethod
    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        """Restore the position from the last checkpoint of the lineage, if any, and all later slices, oldest first."""

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """State for ``restore`` that replaces all slices accepted so far; stored beside a base."""

    @abstractmethod
    def limit_to_available(self) -> None:
        """Limit ``plan`` to the input that exists now; ``ended`` becomes true when it has been planned.

        Raises ``SourceUnavailable`` when the external system does not answer, ``OptionError`` for endless input.
        """

    @abstractmethod
    def plan(self, limits: SliceLimits) -> Slice | None:
        """E1. The next slice after the accepted ones, or ``None`` without new input. Does not accept it.

        Raises ``SourceUnavailable`` while the external system does not answer: epochs continue without the source, and
        the engine plans again.
        """

    @abstractmethod
    def accept(self, slice: Slice) -> None:
        """The slice is decided (E4): the next ``plan`` starts at ``slice.end``."""

    def backlog(self) -> Backlog:
        """Input that is left to read, as of the last ``plan`` and ``accept``. Contacts no external system."""
        return Backlog()

    @abstractmethod
    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        """E2. The rows of exactly this slice; the same rows each time. Raises ``SourceChanged`` when this is
        impossible, here or in a task, and ``SourceUnavailable`` when the external system does not answer."""

    def unreadable(self, slice: Slice) -> EpochalError | None:
        """E2 failed while sources were read: the error to report instead, if this slice can no longer be read.

        ``FilesMissing`` ends the attempt; after ``SliceOutdated``, ``plan`` returns a slice without what is missing.
        """
        return None

    def most_rows(self, slice: Slice) -> int | None:
        """Upper bound of the number of rows of a slice, known without reading it; ``None``: unknown. Small epochs use
        another execution mode, with equal results."""
        return slice.rows

    @property
    def bounded(self) -> bool:
        """True if the input has an end. Once such a source has ``ended``, its watermarks reach ``END``."""
        return False

    def limit_to_bounds(self) -> None:
        """Fix the end of a ``bounded`` source to the input that exists now. Called instead of ``limit_to_available``.

        Raises ``SourceUnavailable`` when the external system does not answer.
        """
        if self.bounded:
            self.limit_to_available()

    @property
    def punctuated(self) -> bool:
        """True if punctuation records in the input end epochs (thesis 3.4.3.1): every slice ends with the next
        punctuation, regardless of limits, and ``plan`` returns ``None`` while none is available. The rest of a bounded
        source is its last slice."""
        return False

    @property
    def urgent(self) -> bool:
        """True if an epoch opens immediately, without waiting for the interval, because callers wait for answers.
        Contacts no external system."""
        return False

    @property
    def partitioned(self) -> bool:
        """True if rows are read from partitions with separate orders, which then have separate watermarks."""
        return False

    def partitions(self) -> frozenset[str]:
        """Partitions seen by ``plan``; empty for a source that is not ``partitioned``."""
        return frozenset()

    def partitions_of(self, slice: Slice) -> frozenset[str]:
        """Partitions from which a slice may have rows."""
        return frozenset()

    def read_partitioned(self, spark: SparkSession, slice: Slice) -> DataFrame:
        """Like :meth:`read`, with ``PARTITION`` as the last column: the partition's name of :meth:`partitions`."""
        raise NotImplementedError

    def read_some(
        self, spark: SparkSession, slice: Slice, unread: frozenset[str], partitioned: bool = False
    ) -> DataFrame:
        """:meth:`read`, or :meth:`read_partitioned`, for a pipeline that does not read the columns ``unread``.

        The columns exist by name and type. Their values may be left out such that reading them fails. The set of rows,
        and of refused rows, must not depend on this.
        """
        return self.read_partitioned(spark, slice) if partitioned else self.read(spark, slice)

    @abstractmethod
    def acknowledge(self, slice: Slice) -> None:
        """E6. The epoch is committed: notify the external system, if needed. Idempotent."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True when ``plan`` will never return another slice: the end, or the limit of available input, is reached.

        A run stops when all of its sources have ended. ``None`` from ``plan`` is weaker: the external system may be
        unavailable.
        """
