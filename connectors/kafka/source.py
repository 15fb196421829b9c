"""``kafka.source``: a slice is a set of offset ranges, recorded in the manifest."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from epochal.backends.kafka.connection import CONSUMER_OPTIONS, Connection, connection
from epochal.backends.kafka.topics import Topic
from epochal.background.task import BackgroundTask
from epochal.connectors.kafka.cluster import Cluster, Selection, missing
from epochal.connectors.kafka.decoding import Tombstones
from epochal.connectors.kafka.frames import Malformed, RecordFormat, record_format
from epochal.connectors.kafka.offsets import (
    OffsetRange,
    Offsets,
    as_json,
    from_json,
    limited,
    moved,
    pairs,
    ranges_between,
)
from epochal.connectors.kafka.punctuation import Punctuations
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.engine.observations import observed
from epochal.errors import OptionError, SourceChanged, SourceError
from epochal.pipeline.definitions import SourceDefinition, check_choice, check_flag
from epochal.secrets import redacted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["json", "string", "raw", "avro"]
Start = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[int, int]]
_log = logging.getLogger(__name__)


def source(
    servers: str,
    topics: str | Sequence[str] | None = None,
    format: Format = "json",
    schema: str | None = None,
    *,
    pattern: str | None = None,
    start: Start = "earliest",
    bounded: bool = False,
    punctuation: str | None = None,
    metadata: Sequence[str] | Mapping[str, str] = (),
    value: str = "value",
    key_format: Literal["string", "raw"] = "string",
    malformed: Malformed = "fail",
    tombstones: Tombstones = "row",
    **options: Any,
) -> SourceDefinition:
    """Read the committed records of topics. New topics and partitions are detected and read from their beginning.

    - ``topics``: names of topics. ``pattern``: regular expression that must match the whole name. Set one of the two.
    - ``format``: ``json`` (``schema`` is Spark DDL) and ``avro`` (``schema`` is Avro's JSON) return a column per field;
      ``string`` and ``raw`` return one column, named by ``value``.
    - ``start``: start position if no state exists: ``"earliest"``, ``"latest"``, a ``datetime`` with time zone, or
      offsets ``{"topic": {0: 17}}``.
    - ``bounded``: read only the records that exist when the run starts, then end.
    - ``punctuation``: record key. Epochs end only at records with this key, one in every partition.
    - ``metadata``: additional columns, any of ``key`` (as ``key_format``), ``topic``, ``partition``, ``offset``,
      ``timestamp`` and ``headers``. A mapping such as ``{"column": "offset"}`` renames them.
    - ``malformed``: handling of a record that does not fit the schema. ``"fail"`` fails the epoch; ``"drop"`` drops
      the record and logs the number of dropped records.
    - ``tombstones``: handling of a record without a value. ``"row"`` returns a row whose value columns are null,
      ``"drop"`` skips the record, ``"fail"`` fails the epoch.
    - ``options``: options of the Kafka client, with ``_`` for ``.``.

    Raises ``OptionError``.
    """
    what = "kafka.source"
    check_flag(what, "bounded", bounded)
    if punctuation == "":
        raise OptionError(f"{what}: punctuation is the key of the records that end an epoch, such as 'end'.")
    selected = _selection(what, topics, pattern)
    return SourceDefinition(
        kind="kafka",
        make=partial(
            KafkaSource,
            connection(what, servers, options, CONSUMER_OPTIONS, SourceError),
            selected,
            _start_position(what, start),
            record_format(what, format, schema, value, metadata, key_format, malformed, tombstones),
            bounded,
            punctuation,
        ),
        description={
            "servers": servers,
            "topics": str(selected),
            "format": format,
            "start": str(start),
            **({"bounded": True} if bounded else {}),
            **({"tombstones": tombstones} if tombstones != "row" else {}),
            **({"punctuation": punctuation} if punctuation is not None else {}),
            **redacted(options),
        },
    )


def _selection(what: str, topics: str | Sequence[str] | None, pattern: str | None) -> Selection:
    """Check the options for topics, by name or by pattern. Raises ``OptionError``."""
    names = (topics,) if isinstance(topics, str) else tuple(topics or ())
    if bool(names) == (pattern is not None):
        raise OptionError(f"{what} requires either topics or a pattern of their names.")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"{what}: the pattern {pattern!r} is not a regular expression: {error}.") from None
    if len(set(names)) < len(names):
        raise OptionError(f"{what}: a topic is named twice in {', '.join(names)}.")
    return Selection(names, pattern)


def _start_position(what: str, start: Start) -> Start:
    """Check the start position. Raises ``OptionError``."""
    if isinstance(start, str):
        check_choice(what, "start", start, ("earliest", "latest"))
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise OptionError(f"{what}: start is {start}, without a time zone: datetime(.., tzinfo=UTC).")
        return start
    for topic, offsets in start.items():
        for partition, offset in offsets.items():
            if type(partition) is not int or type(offset) is not int or partition < 0 or offset < 0:
                raise OptionError(
                    f"{what}: start of topic {topic!r} is {dict(offsets)!r}: write {{partition: offset}}."
                )
    return {topic: dict(offsets) for topic, offsets in start.items()}


class KafkaSource(Source):
    """Kafka source. A position is the next offset of each partition; ``detail`` holds the topic IDs of the broker."""

    def __init__(
        self,
        connection: Connection,
        selection: Selection,
        start: Start,
        format: RecordFormat,
        bounded: bool = False,
        punctuation: str | None = None,
    ) -> None:
        self._bounded = bounded
        self._punctuations = None if punctuation is None else Punctuations(connection, punctuation.encode())
        self._rest_waits = False
        """True if the remaining available records contain no punctuation yet."""
        self._connection = connection
        self._selection = selection
        self._start = start
        self._format = format
        self._cluster = Cluster(connection)
        self._positions: Offsets = {}
        self._identities: dict[str, str] = {}
        self._resume_at: datetime | None = None
        self._available: Offsets | None = None
        self._seen: Offsets | None = None
        self._beginnings_checked = False
        self._planned: Slice | None = None
        self._dropped: list[Observation] = []

    @property
    def kind(self) -> str:
        return "kafka"

    @property
    def bounded(self) -> bool:
        return self._bounded

    @property
    def ended(self) -> bool:
        if self._available is None:
            return False
        return self._rest_waits or not ranges_between(self._positions, self._available)

    @property
    def punctuated(self) -> bool:
        return self._punctuations is not None

    def schema(self, spark: SparkSession) -> StructType:
        return self._format.schema(spark)

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        found = checkpoint or {}
        # Set by an import to another cluster, whose offsets differ.
        self._resume_at = datetime.fromisoformat(found["at"]) if "at" in found else None
        self._positions = from_json(found.get("offsets", {}))
        self._identities = dict(found.get("topics", {}))
        self._beginnings_checked = False
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        return {"offsets": as_json(self._positions), "topics": dict(self._identities)}

    def limit_to_available(self) -> None:
        self._available = self._ends()

    def plan(self, limits: SliceLimits) -> Slice | None:
        ends = self._ends()
        if self._available is not None:
            ends = self._available
        self._seen = ends
        if self._punctuations is not None:
            ranges = self._up_to_punctuation(self._punctuations, ends)
        else:
            ranges = limited(ranges_between(self._positions, ends), limits.max_records)
        if not ranges:
            return None
        self._planned = Slice(
            start={"offsets": as_json(self._positions)},
            end={"offsets": as_json(moved(self._positions, ranges))},
            detail={"topics": dict(self._identities)},
        )
        return self._planned

    def most_rows(self, slice: Slice) -> int | None:
        """The number of offsets, which count records and transaction markers."""
        ranges = ranges_between(from_json(slice.start["offsets"]), from_json(slice.end["offsets"]))
        return sum(range.length for range in ranges)

    def accept(self, slice: Slice) -> None:
        self._positions = from_json(slice.end["offsets"])
        self._identities = dict(slice.detail["topics"])

    def backlog(self) -> Backlog:
        if self._seen is None:
            return Backlog()
        left = sum(range.end - range.start for range in ranges_between(self._positions, self._seen))
        return Backlog(records=left)

    @property
    def partitioned(self) -> bool:
        return True

    def partitions(self) -> frozenset[str]:
        return frozenset(f"{topic}/{number}" for topic, number in pairs(self._positions))

    def partitions_of(self, slice: Slice) -> frozenset[str]:
        return frozenset(f"{range.topic}/{range.partition}" for range in _ranges(slice))

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._format.frame(spark, self._connection, *self._checked(slice))

    def read_partitioned(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._format.partitioned(spark, self._connection, *self._checked(slice))

    def read_some(
        self, spark: SparkSession, slice: Slice, unread: frozenset[str], partitioned: bool = False
    ) -> DataFrame:
        make = self._format.partitioned if partitioned else self._format.frame
        return make(spark, self._connection, *self._checked(slice), unread)

    def _checked(self, slice: Slice) -> tuple[list[OffsetRange], Observation | None]:
        """The offset ranges of the slice, and the counter of dropped records. Raises ``SourceChanged``."""
        if slice != self._planned:  # ``plan`` has just checked its own slice
            self._check_identities(self._cluster.find(self._selection), slice.detail["topics"])
        dropped = None
        if self._format.malformed == "drop":
            from pyspark.sql import Observation

            dropped = Observation()
            self._dropped.append(dropped)
        return _ranges(slice), dropped

    def acknowledge(self, slice: Slice) -> None:
        observations, self._dropped = self._dropped, []
        for observation in observations:
            # The observation completes with the job. For an unread slice it never does, and must not block E6.
            BackgroundTask("dropped-records", partial(_log_dropped, str(self._selection), observation))

    def _ends(self) -> Offsets:
        """The end of each existing partition. Sets missing positions and checks that no unread record was deleted."""
        topics = self._find_topics()
        self._take_up(topics)
        ends = self._cluster.latest([(topic.name, number) for topic in topics.values() for number in _numbers(topic)])
        self._check_kept(ends)
        return ends

    def _up_to_punctuation(self, punctuations: Punctuations, ends: Offsets) -> list[OffsetRange]:
        """Ranges up to the next punctuation of every partition; for a bounded source, also those after the last one."""
        punctuations.look(ranges_between(self._positions, ends))
        found: Offsets = {}
        for topic, number in pairs(ends):
            end = punctuations.first_after(topic, number, self._positions[topic][number])
            if end is None and not (self._bounded and self._available is not None):
                self._rest_waits = self._available is not None
                return []
            found.setdefault(topic, {})[number] = ends[topic][number] if end is None else end
        return ranges_between(self._positions, found)

    def _find_topics(self) -> dict[str, Topic]:
        topics = self._cluster.find(self._selection)
        self._check_identities(topics, self._identities)
        absent = [name for name in self._selection.names if name not in topics]
        if absent:
            raise missing(self._connection, absent)
        return topics

    def _take_up(self, topics: Mapping[str, Topic]) -> None:
        """Set positions of new partitions: ``start`` if no state existed, otherwise the earliest offset."""
        new = [
            (topic.name, number)
            for topic in topics.values()
            for number in _numbers(topic)
            if number not in self._positions.get(topic.name, {})
        ]
        if not new:
            return
        first = not self._positions
        found = self._first_positions(new) if first else self._cluster.earliest(new)
        for topic, number in new:
            self._positions.setdefault(topic, {})[number] = found[topic][number]
        self._identities |= {name: topics[name].identity for name, _ in new}

    def _first_positions(self, partitions: Sequence[tuple[str, int]]) -> Offsets:
        match self._resume_at or self._start:
            case "earliest":
                return self._cluster.earliest(partitions)
            case "latest":
                return self._cluster.latest(partitions)
            case datetime() as moment:
                return self._cluster.at(partitions, moment)
            case offsets:
                found = self._cluster.earliest(partitions)
                for topic, number in partitions:
                    found[topic][number] = offsets.get(topic, {}).get(number, found[topic][number])
                return found

    def _check_identities(self, topics: Mapping[str, Topic], known: Mapping[str, str]) -> None:
        """Raise ``SourceChanged`` if a topic was deleted or recreated, as the same offsets are then other records."""
        for name, identity in known.items():
            if not self._selection.includes(name) or (name in topics and topics[name].identity == identity):
                continue
            what = "was deleted and created again" if name in topics else "no longer exists"
            read = ", ".join(f"{number}: {offset}" for number, offset in self._positions.get(name, {}).items())
            raise SourceChanged(
                f"Topic {name} of Kafka at {self._connection.servers} {what}. It was read up to these offsets "
                f"(partition: offset): {read}; later records may have been lost. To continue without it, remove it "
                "from the source's topics; to read the new topic, start a new application or a fork."
            )

    def _check_kept(self, ends: Offsets) -> None:
        """Check that no unread record was deleted. Raises ``SourceChanged``.

        Requests the earliest offsets only once per attempt; later, the tasks detect deleted records.
        """
        firsts: Offsets = {}
        if not self._beginnings_checked:
            firsts = self._cluster.earliest(list(pairs(ends)))
        for topic, number in pairs(ends):
            position, end = self._positions[topic][number], ends[topic][number]
            first = firsts.get(topic, {}).get(number, 0)
            if not first <= position <= end:
                lost = OffsetRange(topic, number, position, first) if position < first else None
                gone = f"offsets {position} to {lost.end} are missing" if lost else f"it ends at {end}"
                raise SourceChanged(
                    f"Topic {topic}, partition {number}, of Kafka at {self._connection.servers} was read up to offset "
                    f"{position}, but {gone}: retention was too short, or the topic was truncated. Records "
                    "are lost: start a new application or a fork, which begins with the existing records."
                )
        self._beginnings_checked = True


def _ranges(slice: Slice) -> list[OffsetRange]:
    return ranges_between(from_json(slice.start["offsets"]), from_json(slice.end["offsets"]))


def _numbers(topic: Topic) -> range:
    return range(topic.partitions)


def _log_dropped(topics: str, observation: Observation) -> None:
    rows = observed(observation).get("rows", 0)
    if rows:
        _log.warning("Dropped %d records of %s that do not fit the schema.", rows, topics)
