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
"""The column, beside those of the schema, that names the partition that a row is of."""


class Slice(BaseModel):
    """What one epoch reads of one source: ``[start, end)``. JSON, in the manifest, readable by people.

    ``start`` and ``end`` are positions that only the source interprets; ``detail`` is what it needs to read the slice
    again exactly (files with sizes, offset ranges), and the files that it skips; ``rows`` is the count where the source
    knows it before reading.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: dict[str, Any]
    end: dict[str, Any]
    detail: dict[str, Any] = {}
    rows: int | None = None

    @property
    def has_no_rows(self) -> bool:
        """Whether it only records input that is missing, and that is skipped."""
        return self.start == self.end and bool(self.detail.get("missing"))


@dataclass(frozen=True)
class SliceLimits:
    """At most ``max_records`` rows in a slice, where the source can tell; ``None`` is no limit."""

    max_records: int | None


@dataclass(frozen=True)
class Backlog:
    """What is there beyond what was accepted, as the last ``plan`` saw it: records or files, ``None`` where the source
    cannot tell. ``reachable`` is false while its place does not answer."""

    records: int | None = None
    files: int | None = None
    reachable: bool = True
    skipped: int = 0
    """Files that the accepted slices record as missing."""

    @property
    def amount(self) -> int | None:
        return self.files if self.records is None else self.records


class Source(ABC):
    """One source of one application. All calls are made in the driver; ``read`` only describes, Spark reads.

    A new attempt makes a new instance and calls ``restore`` before ``plan``, and between the two ``limit_to_bounds``;
    or ``limit_to_available`` if it takes only what is available now. The engine plans at most one slice ahead:
    ``plan`` is called again with the same ``start`` when an epoch was aborted, and may then answer with more.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """The source's registered name: ``files``, ``generator``, .."""

    @abstractmethod
    def schema(self, spark: SparkSession) -> StructType:
        """The columns of ``read``, known without input. Raises ``SourceError`` or ``SchemaError`` with the fix."""

    @abstractmethod
    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        """Recovery: the last checkpoint of this lineage, if any, and every slice after it, oldest first."""

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """What ``restore`` needs instead of all slices planned and ``accept``ed so far; stored beside a base."""

    @abstractmethod
    def limit_to_available(self) -> None:
        """From now on ``plan`` takes only what is there at this moment, and ``ended`` comes true once it is taken.

        Raises ``SourceError`` when the place cannot be asked, ``OptionError`` for input that never ends.
        """

    @abstractmethod
    def plan(self, limits: SliceLimits) -> Slice | None:
        """E1. The next slice after what was accepted, or ``None`` when there is nothing new. Accepts nothing."""

    @abstractmethod
    def accept(self, slice: Slice) -> None:
        """E4 landed: the next ``plan`` starts at ``slice.end``."""

    def backlog(self) -> Backlog:
        """What is left to read. Asks nobody: it tells what ``plan`` and ``accept`` have seen."""
        return Backlog()

    @abstractmethod
    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        """E2. The rows of exactly this slice; the same rows each time. Raises ``SourceChanged`` when that cannot be."""

    def unreadable(self, slice: Slice) -> EpochalError | None:
        """E2 failed while sources were read: the error to report instead, if this slice can no longer be read.

        ``FilesMissing`` ends the attempt; after ``SliceOutdated``, ``plan`` returns a slice without what is missing.
        """
        return None

    def most_rows(self, slice: Slice) -> int | None:
        """An upper bound of the rows of a slice, known without reading it; ``None`` where there is none. Small epochs
        are planned in another way, with equal results."""
        return slice.rows

    @property
    def bounded(self) -> bool:
        """Whether the input has an end. Once such a source has ``ended``, watermarks reach the end of all times."""
        return False

    def limit_to_bounds(self) -> None:
        """Called where ``limit_to_available`` is not: of a ``bounded`` source what is there now is all that there is.

        Raises ``SourceError`` when the place cannot be asked.
        """
        if self.bounded:
            self.limit_to_available()

    @property
    def punctuated(self) -> bool:
        """Whether records of its own say where an epoch ends (thesis 3.4.3.1): every slice ends with the next such
        record, whatever the limits are, and ``plan`` gives ``None`` while none has come. What a bounded source has
        after its last one is its last slice."""
        return False

    @property
    def urgent(self) -> bool:
        """Whether an epoch is opened at once, without waiting for the interval: somebody waits for what has come.
        Asks nobody."""
        return False

    @property
    def partitioned(self) -> bool:
        """Whether rows come in partitions, each in an order of its own: their watermarks are kept apart then."""
        return False

    def partitions(self) -> frozenset[str]:
        """The partitions that there are, as far as ``plan`` has seen. Of one that is not ``partitioned`` none."""
        return frozenset()

    def partitions_of(self, slice: Slice) -> frozenset[str]:
        """The partitions that a slice may have rows of."""
        return frozenset()

    def read_partitioned(self, spark: SparkSession, slice: Slice) -> DataFrame:
        """As :meth:`read`, with the column ``PARTITION`` at the end: text, as :meth:`partitions` has it."""
        raise NotImplementedError

    def read_some(
        self, spark: SparkSession, slice: Slice, unread: frozenset[str], partitioned: bool = False
    ) -> DataFrame:
        """:meth:`read`, or :meth:`read_partitioned`, for a pipeline that looks into none of the columns ``unread``.

        They are there by name and type. What is in them may be left out, in a way that fails whoever looks. Which rows
        there are, and which are refused, may not depend on it.
        """
        return self.read_partitioned(spark, slice) if partitioned else self.read(spark, slice)

    @abstractmethod
    def acknowledge(self, slice: Slice) -> None:
        """E6. The epoch is committed: an outside system may be notified. Idempotent."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True when ``plan`` will never give another slice: its bound is reached, or all that was available is taken.

        A run stops when all of its sources have ended. That ``plan`` gave ``None`` says less: the place may be away.
        """
