"""Event time in the driver: the opening of an epoch, and observations on Spark's frames.

Rows without a valid event time are removed where it is declared, late rows before the operator to which they are late.
Both are counted where they are removed, without an extra job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from epochal.contracts.conditions import EpochConditions
from epochal.contracts.source import PARTITION, Slice, Source
from epochal.declarations import event_time as expressions
from epochal.engine.job import ObservedTime
from epochal.engine.observations import observed
from epochal.pipeline.event_time import NO_PARTITIONS, Partitions, partitions_in, time_graph
from epochal.pipeline.graph import EventTimeNode, Graph, Node, NodeId, OperatorNode, SideNode
from epochal.state.watermarks import WHOLE, WITHOUT_TIME, Opening, TimeGraph, latest_accepted

NO_PARTITION: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class TimePlan:
    """Watermarks of a program, and the sources of its event-time declarations."""

    graph: TimeGraph = WITHOUT_TIME
    partitions: Partitions = NO_PARTITIONS
    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Declarations by name, for display and for comparison with the next version."""

    @property
    def failing(self) -> frozenset[str]:
        """Declarations that fail the epoch on rows without a valid event time."""
        return frozenset(name for name, details in self.declared.items() if details["on_reject"] == "fail")

    @classmethod
    def of(cls, graph: Graph, sources: Mapping[str, Source]) -> TimePlan:
        declared = {node.name: node.event_time.details() for node in graph.declarations}
        return cls(time_graph(graph), partitions_in(graph, sources), declared)

    def opening(
        self,
        sources: Mapping[str, Source],
        slices: Mapping[str, Slice],
        now: int,
        attempt_began: int,
        known: Mapping[str, Collection[str]] | None = None,
        ended: frozenset[str] = NO_PARTITION,
    ) -> Opening:
        """Opening of an epoch with these slices. ``known``: partitions by declaration, instead of those of the sources.

        ``ended``: declarations whose input has ended.
        """
        partitioned = self.partitions.partitioned
        of_epoch: dict[str, frozenset[str]] = {}
        there = {name: frozenset(partitions) for name, partitions in (known or {}).items() if name in partitioned}
        for declaration, above in self.partitions.sources.items():
            source = partitioned.get(declaration)
            if source is None:
                of_epoch[declaration] = frozenset({WHOLE}) if above & slices.keys() else NO_PARTITION
                continue
            of_epoch[declaration] = sources[source].partitions_of(slices[source]) if source in slices else NO_PARTITION
            if known is None:
                there[declaration] = sources[source].partitions()
        return Opening(now, attempt_began, of_epoch, there, ended)

    def ended(self, sources: Collection[str]) -> frozenset[str]:
        """Declarations whose rows all come from these sources."""
        return frozenset(name for name, above in self.partitions.sources.items() if above <= set(sources))


WITHOUT_EVENT_TIME: Final = TimePlan()


def read_by_operators(graph: Graph, run: Collection[NodeId]) -> frozenset[NodeId]:
    """Declarations among the nodes ``run`` whose accepted rows go only to operators."""
    return frozenset(
        node.id
        for node in graph.declarations
        if node.id in run and _only_operators([graph.node(reader) for reader in graph.consumers(node.id)])
    )


def _only_operators(readers: Sequence[Node]) -> bool:
    streams = [reader for reader in readers if not isinstance(reader, SideNode)]
    return bool(streams) and all(isinstance(reader, OperatorNode) for reader in streams)


@dataclass
class TimedFrames:
    """Removes rejected and late rows of one epoch, and holds the observations to read after the jobs.

    ``run``: nodes whose frames are part of a job; others are not observed. ``read_apart``: nodes whose rejected or late
    rows have a reader; ``sides`` has these rows. ``by_operators``: the declarations of :func:`read_by_operators`; the
    first operator's input observes them together with its late rows, since each observation is one more step for all
    rows, across which Spark generates no code.
    """

    time: TimePlan
    conditions: EpochConditions
    sources: Mapping[str, Source]
    slices: Mapping[str, Slice]
    run: Collection[NodeId]
    read_apart: Collection[NodeId] = ()
    by_operators: Collection[NodeId] = ()
    sides: dict[NodeId, Sequence[DataFrame]] = field(default_factory=dict)
    declared: dict[str, tuple[Observation, tuple[str, ...]]] = field(default_factory=dict)
    late: dict[str, list[Observation]] = field(default_factory=dict)
    _unobserved: dict[NodeId, tuple[EventTimeNode, DataFrame]] = field(default_factory=dict)

    def accepted(self, node: EventTimeNode, frame: DataFrame) -> DataFrame:
        """Rows of a declaration with a valid event time; the latest time is observed."""
        if node.id in self.by_operators:
            self._unobserved[node.id] = node, frame
        elif node.id in self.run:
            frame = self._observing(node, frame)
        if node.id in self.read_apart:
            apart = frame.where(self._rejected(node))
            self.sides[node.id] = [apart.drop(PARTITION) if self._is_partitioned(node) else apart]
        return self._kept(node, frame)

    def on_time(self, node: OperatorNode, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """Rows of an operator's inputs that are not late to it."""
        late = self.conditions.watermarks(node.name).late
        kept, apart = [], []
        for number, (input, above, frame) in enumerate(zip(node.operator.inputs, node.inputs, frames, strict=True)):
            bound = node.operator.late_before(number, late) if input.event_time is not None else None
            is_late = None
            if input.event_time is not None and bound is not None:
                is_late = str(expressions.late(input.event_time, bound))
            declaration = None
            if above in self._unobserved:
                declaration, rows = self._unobserved.pop(above)
                frame = self._observing(declaration, rows, node, is_late)
            elif is_late is not None:
                observation = Observation(f"late rows of {node.name}, input {number}")
                self.late.setdefault(node.name, []).append(observation)
                frame = frame.observe(observation, F.expr(f"count_if({is_late}) AS late"))
            kept.append(self._kept(declaration, frame, None if is_late is None else f"NOT {is_late}"))
            if node.id in self.read_apart:
                apart.append(self._kept(declaration, frame, is_late))
        if node.id in self.read_apart:
            self.sides[node.id] = apart
        return kept

    def _observing(
        self, node: EventTimeNode, frame: DataFrame, reader: OperatorNode | None = None, is_late: str | None = None
    ) -> DataFrame:
        """Rows of a declaration with an observation, which also counts rows that are late to the operator
        ``reader``."""
        rejected, time = self._rejected(node), str(expressions.microseconds(node.event_time.column))
        partitions = self._partitions(node)
        observation = Observation(f"event time of {node.name}")
        self.declared[node.name] = observation, partitions
        metrics = [F.expr(f"count_if({rejected}) AS rejected")]
        for number, partition in enumerate(partitions):
            mine = "" if partition == WHOLE else f" AND {PARTITION} = '{_escaped(partition)}'"
            metrics.append(F.expr(f"max(IF(NOT {rejected}{mine}, {time}, NULL)) AS latest_{number}"))
        if reader is not None and is_late is not None:
            self.late.setdefault(reader.name, []).append(observation)
            metrics.append(F.expr(f"count_if(NOT {rejected} AND {is_late}) AS late"))
        return frame.observe(observation, *metrics)

    def _kept(self, node: EventTimeNode | None, frame: DataFrame, more: str | None = None) -> DataFrame:
        """Rows that the declaration ``node`` does not reject and that meet the condition ``more``, with one filter."""
        conditions = [] if node is None else [f"NOT {self._rejected(node)}"]
        conditions += [] if more is None else [more]
        kept = frame.where(" AND ".join(conditions)) if conditions else frame
        return kept.drop(PARTITION) if node is not None and self._is_partitioned(node) else kept

    def _rejected(self, node: EventTimeNode) -> str:
        latest = latest_accepted(self.conditions.epoch_time, node.event_time.max_ahead)
        return str(expressions.rejected(node.event_time.column, latest))

    def _is_partitioned(self, node: EventTimeNode) -> bool:
        return node.name in self.time.partitions.partitioned

    def observed(self) -> ObservedTime:
        """Observed times, after the jobs. Missing observations are left out, or 0."""
        latest: dict[str, dict[str, int | None]] = {}
        rejected: dict[str, int] = {}
        for name, (observation, partitions) in self.declared.items():
            metrics = observed(observation)
            latest[name] = {partition: metrics.get(f"latest_{n}") for n, partition in enumerate(partitions)}
            rejected[name] = int(metrics.get("rejected", 0))
        late = {
            name: sum(int(observed(observation).get("late", 0)) for observation in observations)
            for name, observations in self.late.items()
        }
        return ObservedTime(latest, rejected, late)

    def _partitions(self, node: EventTimeNode) -> tuple[str, ...]:
        source = self.time.partitions.partitioned.get(node.name)
        if source is None:
            return (WHOLE,)
        slice = self.slices.get(source)
        return () if slice is None else tuple(sorted(self.sources[source].partitions_of(slice)))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
